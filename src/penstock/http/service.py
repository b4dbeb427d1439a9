"""The HTTP service: an ASGI app that can be mounted under any path."""

import logging
import secrets
import time
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.api.program import Program
from penstock.errors import PenstockError
from penstock.http import parsing
from penstock.http.access import Access, Principal, check_origin
from penstock.http.problems import HttpError, http_error, problem_response
from penstock.http.request_metrics import RequestMetrics
from penstock.http.route import Match, RequestContext, Route, RouteTable, path_segments

log = logging.getLogger("penstock.http")
audit = logging.getLogger("penstock.audit")

_MAX_PATH_LENGTH: Final = 4096  #: characters
_MAX_LOGGED_NAME: Final = 300  #: characters of a path or name in a log line


class Service:
    """Answers requests for one app, or for a namespace without its code."""

    def __init__(self, program: Program, access: Access, table: RouteTable, metrics: RequestMetrics) -> None:
        self._program = program
        self._access = access
        self._table = table
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        elif scope["type"] == "http":
            response = await self._respond(Request(scope, receive))
            await response(scope, receive, send)
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

    async def _respond(self, request: Request) -> Response:
        """Answer the request, whatever happens, and count it."""
        started, match = time.perf_counter(), self._table.find(path_segments(request.scope))
        response = await self._respond_to_errors(request, match)
        route = match.routes.get(_method(request)) if match is not None else None
        seconds = time.perf_counter() - started
        method, path = (route.method, route.path) if route else ("", "")
        self._metrics.record(method, path, response.status_code, seconds)
        return response

    async def _respond_to_errors(self, request: Request, match: Match | None) -> Response:
        try:
            return await self._handle(request, match)
        except HttpError as error:
            return problem_response(error)
        except PenstockError as error:
            return problem_response(http_error(error))
        except Exception:
            mark = secrets.token_hex(4)
            log.exception("%s %s failed (%s)", request.method, _printable(request.url.path), mark)
            return problem_response(HttpError(500, f"this is a fault of the service; its log has it under {mark}"))

    async def _handle(self, request: Request, match: Match | None) -> Response:
        """Find the route, check credentials, query and body, and call the handler."""
        if match is None:
            raise self._not_found(request)
        route = match.routes.get(_method(request))
        if route is None:
            self._access.identify(request)
            raise HttpError(405, f"{request.method} is not possible here", {"Allow": _allowed_methods(match)})
        principal = self._authorize(request, route)
        body = await self._read_body(request, route)
        query = parsing.parse_query(request, route.query)
        context = RequestContext(request, self._program, principal, match.parameters, query, body)
        return await (_handle_audited(context, route) if route.writes else route.handle(context))

    def _not_found(self, request: Request) -> HttpError:
        if len(request.scope["path"]) > _MAX_PATH_LENGTH:
            return HttpError(414, f"a path has at most {_MAX_PATH_LENGTH:,} characters")
        self._access.identify(request)  # authenticate before 404, so that paths cannot be probed
        return HttpError(404, "there is nothing here; /openapi.json says what there is")

    def _authorize(self, request: Request, route: Route) -> Principal | None:
        if route.role is None:
            return None
        principal = self._access.identify(request)
        if not principal.may(route.role):
            raise HttpError(403, f"this needs the role {route.role}; {principal.name} has {principal.role}")
        check_origin(request, route.method, principal)
        return principal

    async def _read_body(self, request: Request, route: Route) -> bytes:
        body = await parsing.read_body(request, self._program.settings.payload_limit) if route.writes else b""
        if route.body is not None:
            parsing.check_content_type(request)
        return body


def _method(request: Request) -> str:
    return "GET" if request.method == "HEAD" else request.method


async def _handle_audited(context: RequestContext, route: Route) -> Response:
    """Handle a request that may change something, and log who asked for what and how it ended. Never arguments."""
    status = 500
    try:
        response = await route.handle(context)
        status = response.status_code
    except HttpError as error:
        status = error.status
        raise
    except PenstockError as error:
        status = http_error(error).status
        raise
    else:
        return response
    finally:
        fields = _audit_fields(context, route, status)
        text = f"{route.action} {fields['target']}".rstrip()
        audit.info("%s: %s, %d", fields["who"], text, status, extra=fields)


def _audit_fields(context: RequestContext, route: Route, status: int) -> dict[str, Any]:
    client = context.request.client
    return {
        "who": context.principal.name if context.principal else "anybody",
        "action": route.action,
        "target": _printable(" ".join(context.path.values())),
        "status": status,
        "client": client.host if client else "",
    }


def _printable(text: str) -> str:
    """Escape line breaks and the like, so that a name that somebody sends cannot forge a log line."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text[:_MAX_LOGGED_NAME])


def _allowed_methods(match: Match) -> str:
    return ", ".join(sorted({*match.routes, *(["HEAD"] if "GET" in match.routes else [])}))
