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
from penstock.http import parsing, problems
from penstock.http.access import Access, Principal, check_origin
from penstock.http.problems import HttpError
from penstock.http.request_metrics import RequestMetrics
from penstock.http.route import Match, RequestContext, Route, Table, segments_of

log = logging.getLogger("penstock.http")
audit = logging.getLogger("penstock.audit")

_LONGEST_PATH: Final = 4096  #: characters
_LONGEST_NAME: Final = 300  #: characters of what was asked for, in a log


class Service:
    """Answers requests for one app, or for a namespace without its code."""

    def __init__(self, program: Program, access: Access, table: Table, meters: RequestMetrics) -> None:
        self._program = program
        self._access = access
        self._table = table
        self._meters = meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            response = await self._respond(Request(scope, receive))
            await response(scope, receive, send)
        else:  # a websocket: refused before it is accepted
            await send({"type": "websocket.close", "code": 1000})

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await self._program.client().aclose()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _respond(self, request: Request) -> Response:
        """Whatever happens, there is an answer, and it is counted."""
        begun, match = time.perf_counter(), self._table.find(segments_of(request.scope))
        response = await self._try(request, match)
        method = "GET" if request.method == "HEAD" else request.method
        route = match.routes.get(method) if match is not None else None
        seconds = time.perf_counter() - begun
        self._meters.note(route.method if route else "", route.path if route else "", response.status_code, seconds)
        return response

    async def _try(self, request: Request, match: Match | None) -> Response:
        try:
            return await self._answer(request, match)
        except HttpError as refused:
            return problems.reply(refused)
        except PenstockError as error:
            return problems.reply(problems.refusal(error))
        except Exception:
            mark = secrets.token_hex(4)
            log.exception("%s %s failed (%s)", request.method, _on_one_line(request.url.path), mark)
            return problems.reply(HttpError(500, f"this is a fault of the service; its log has it under {mark}"))

    async def _answer(self, request: Request, match: Match | None) -> Response:
        if match is None:
            raise self._nothing(request)
        method = "GET" if request.method == "HEAD" else request.method
        route = match.routes.get(method)
        who = None if route is not None and route.role is None else self._access.identify(request)
        if route is None:
            raise HttpError(405, f"{request.method} is not possible here", {"Allow": _allowed(match)})
        if who is not None and route.role is not None:
            _check(who, route, request)
        body = b""
        if route.changes:
            body = await parsing.read(request, self._program.settings.payload_limit)
        if route.body is not None:
            parsing.check_type(request)
        ask = RequestContext(request, self._program, who, match.values, parsing.query(request, route.query), body)
        if not route.changes:
            return await route.handle(ask)
        return await _noted(ask, route)

    def _nothing(self, request: Request) -> HttpError:
        if len(request.scope["path"]) > _LONGEST_PATH:
            return HttpError(414, f"a path has at most {_LONGEST_PATH:,} characters")
        self._access.identify(request)  # what there is, and what there is not, is not for everybody
        return HttpError(404, "there is nothing here; /openapi.json says what there is")


def _check(who: Principal, route: Route, request: Request) -> None:
    assert route.role is not None
    if not who.may(route.role):
        raise HttpError(403, f"this needs the role {route.role}; {who.name} has {who.role}")
    check_origin(request, route.method, who)


async def _noted(ask: RequestContext, route: Route) -> Response:
    """Every change, and every try, is a line of the audit log: who, what, how it ended. Never arguments."""
    status = 500
    try:
        response = await route.handle(ask)
        status = response.status_code
    except HttpError as refused:
        status = refused.status
        raise
    except PenstockError as error:
        status = problems.refusal(error).status
        raise
    else:
        return response
    finally:
        name = ask.who.name if ask.who else "anybody"
        target = _on_one_line(" ".join(ask.path.values()))
        text = f"{route.action} {target}".rstrip()
        audit.info("%s: %s, %d", name, text, status, extra=_fields(ask, name, route, target, status))


def _fields(ask: RequestContext, name: str, route: Route, target: str, status: int) -> dict[str, Any]:
    client = ask.request.client.host if ask.request.client else ""
    return {"who": name, "action": route.action, "target": target, "status": status, "client": client}


def _on_one_line(text: str) -> str:
    """What somebody sent, as a log may have it: a name with a line break in it must not look like a line of ours."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text[:_LONGEST_NAME])


def _allowed(match: Match) -> str:
    return ", ".join(sorted({*match.routes, *(["HEAD"] if "GET" in match.routes else [])}))
