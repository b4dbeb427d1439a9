"""The HTTP service: an ASGI app that can be mounted under any path."""

import logging
import secrets
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.api.program import Program
from penstock.errors import PenstockError
from penstock.http import parsing, request_limits
from penstock.http.access import Access, check_origin
from penstock.http.audit import AuditLog, printable
from penstock.http.body import Body
from penstock.http.principal import Principal
from penstock.http.problems import HttpError, Refused, http_error, problem_response
from penstock.http.request_limits import RequestLimits
from penstock.http.request_metrics import RequestMetrics
from penstock.http.route import Match, RequestContext, Route, RouteTable, path_segments
from penstock.http.scope import authorize

log = logging.getLogger("penstock.http")

CONNECTION: Final = "penstock.connection"  #: where `penstock serve` puts a request's connection into its scope
ANYBODY: Final = Principal("anybody", "viewer", contents=False)  #: where no credentials are needed
_MAX_PATH_LENGTH: Final = 4096  #: characters


@dataclass(slots=True)
class _Exchange:
    """A request, and what is known of it while it is answered."""

    request: Request
    body: Body
    match: Match | None
    places: ExitStack
    principal: Principal | None = None
    route: Route | None = field(init=False)

    def __post_init__(self) -> None:
        method = "GET" if self.request.method == "HEAD" else self.request.method
        self.route = None if self.match is None else self.match.routes.get(method)


class Service:
    """Answers requests for one app, or for a namespace without its code."""

    def __init__(self, program: Program, access: Access, table: RouteTable, metrics: RequestMetrics) -> None:
        self._program = program
        self._access = access
        self._table = table
        self._metrics = metrics
        self._audit = AuditLog()
        self._limits = RequestLimits(request_limits.MAX_OF_ONE, request_limits.MAX_OF_OTHERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        elif scope["type"] == "http":
            body = Body(scope, receive)
            request, match = Request(scope, body.receive), self._table.find(path_segments(scope))
            with ExitStack() as places:  # which are left once the response has been sent
                response = await self._respond(_Exchange(request, body, match, places))
                await response(scope, body.receive, send)
        else:  # a websocket: closed before it is accepted
            await send({"type": "websocket.close", "code": 1000})

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await self._program.client().aclose()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _respond(self, exchange: _Exchange) -> Response:
        """Answer the request, whatever happens, and count it."""
        started, route = time.perf_counter(), exchange.route
        response = await self._respond_to_errors(exchange)
        response.headers["X-Content-Type-Options"] = "nosniff"
        method, path = (route.method, route.path) if route else ("", "")
        self._metrics.record(method, path, response.status_code, time.perf_counter() - started)
        return response

    async def _respond_to_errors(self, exchange: _Exchange) -> Response:
        try:
            return await self._handle(exchange)
        except HttpError as error:
            problem = error
        except PenstockError as error:
            problem = http_error(error)
        except Exception:
            mark, request = secrets.token_hex(4), exchange.request
            log.exception("%s %s failed (%s)", request.method, printable(request.url.path), mark)
            problem = HttpError(500, f"this is a fault of the service; its log has it under {mark}")
        if isinstance(problem, Refused):
            self._refuse(exchange, problem)
        await exchange.body.drop()
        return problem_response(problem)

    def _refuse(self, exchange: _Exchange, refused: Refused) -> None:
        self._metrics.refused(refused.cause)
        address = self._access.address_of(exchange.request)
        self._audit.refusal(exchange.request, exchange.principal, refused, address)

    async def _handle(self, exchange: _Exchange) -> Response:
        """Find the route, check credentials, query and body, and call the handler."""
        request, match, route = exchange.request, exchange.match, exchange.route
        if match is None and len(request.scope["path"]) > _MAX_PATH_LENGTH:
            raise HttpError(414, f"a path has at most {_MAX_PATH_LENGTH:,} characters")
        principal = await self._identify(exchange)  # before 404, so that paths cannot be probed
        if match is None:
            raise HttpError(404, "there is nothing here; /openapi.json says what there is")
        if route is None:
            raise HttpError(405, f"{request.method} is not possible here", {"Allow": _allowed_methods(match)})
        self._authorize(request, route, principal)
        content = await self._read_body(request, route, exchange.body)
        query = parsing.parse_query(request, route.query)
        context = RequestContext(request, self._program, principal, match.parameters, query, content)
        return await (self._handle_audited(context, route) if route.writes else route.handle(context))

    async def _identify(self, exchange: _Exchange) -> Principal:
        """The sender, who takes one of the places."""
        if exchange.route is not None and exchange.route.role is None:
            return ANYBODY
        principal = exchange.principal = await self._access.identify(exchange.request)
        connection = exchange.request.scope.get(CONNECTION)
        if connection is not None:
            connection.belongs_to(principal)
        exchange.places.enter_context(self._limits.enter(principal))
        return principal

    def _authorize(self, request: Request, route: Route, principal: Principal) -> None:
        if route.role is not None:
            try:
                authorize(principal, route)
            except Refused as refused:
                raise self._access.with_hint(refused) from None
        check_origin(request, route.method)

    async def _read_body(self, request: Request, route: Route, body: Body) -> bytes:
        content = await body.read(self._program.settings.payload_limit) if route.writes else b""
        if route.body is not None:
            parsing.check_content_type(request)
        return content

    async def _handle_audited(self, context: RequestContext, route: Route) -> Response:
        """Handle a request that may change something, and log how it ended."""
        status = 500
        try:
            response = await route.handle(context)
            status = response.status_code
        except Refused:
            status = 0  # it is logged as such
            raise
        except HttpError as error:
            status = error.status
            raise
        except PenstockError as error:
            status = http_error(error).status
            raise
        else:
            return response
        finally:
            if status and self._audit.is_on:
                self._audit.change(context, route, status, self._access.address_of(context.request))


def _allowed_methods(match: Match) -> str:
    return ", ".join(sorted({*match.routes, *(["HEAD"] if "GET" in match.routes else [])}))
