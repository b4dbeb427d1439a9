"""Who asks, and how a browser signs in and out: `/`, `GET /api/v1/me`, and `/api/v1/session`."""

from importlib.metadata import version
from typing import Final

from starlette.responses import RedirectResponse, Response

from penstock.http import parsing
from penstock.http.access import Access
from penstock.http.json_response import json_response
from penstock.http.principal import Principal
from penstock.http.route import RequestContext, Route
from penstock.http.routes.home import show_home
from penstock.http.schemas.requests import HomeQuery, NoQuery, SessionRequest
from penstock.http.schemas.responses import MeAnswer
from penstock.http.tokens import token_digest
from penstock.server.urls import parse

_SESSION: Final = "/api/v1/session"
_ME: Final = {200: MeAnswer}


class SessionRoutes:
    """The routes that know the service's ways of access."""

    def __init__(self, access: Access) -> None:
        self._access = access

    @property
    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/",
                self.get_home,
                "A page for people",
                whole_app=True,
                responses={200: None, 303: None},
                query=HomeQuery,
                media_type="text/html; charset=utf-8",
            ),
            Route("GET", "/api/v1/me", self.get_me, "Who asks, and what they may do", enqueuer=True, responses=_ME),
            Route(
                "POST",
                _SESSION,
                self.open_session,
                "Get a browser a cookie for a token",
                role=None,
                responses=_ME,
                body=SessionRequest,
            ),
            Route(
                "DELETE",
                _SESSION,
                self.end_session,
                "Have a browser forget its cookie",
                role=None,
                responses={204: None},
                query=NoQuery,
            ),
        ]

    async def get_home(self, context: RequestContext) -> Response:
        """The page; with the token of the link it goes to a cookie, and out of the address."""
        query: HomeQuery = context.query
        if not query.token:
            return await show_home(context)
        cookie = self._access.sessions.set_cookie(context.request, token_digest(query.token))
        headers = {"Set-Cookie": cookie, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
        return RedirectResponse(f"{_base(context)}/", 303, headers)

    async def get_me(self, context: RequestContext) -> Response:
        has_session = self._access.token_of_session(context.request) is not None
        return json_response(_me(context, context.principal, f"{_base(context)}{_SESSION}" if has_session else None))

    async def open_session(self, context: RequestContext) -> Response:
        request: SessionRequest = parsing.decode(context.body, SessionRequest)
        principal = self._access.principal_of_token(context.request, request.token)
        context.details.append(f"as {principal.name}")
        cookie = self._access.sessions.set_cookie(context.request, token_digest(request.token))
        return json_response(_me(context, principal, f"{_base(context)}{_SESSION}"), headers={"Set-Cookie": cookie})

    async def end_session(self, context: RequestContext) -> Response:
        cookie = self._access.sessions.delete_cookie(context.request)
        return Response(status_code=204, headers={"Set-Cookie": cookie})


def _me(context: RequestContext, principal: Principal, sign_out: str | None) -> MeAnswer:
    return MeAnswer(
        name=principal.name,
        role=principal.role,
        contents=principal.reads_contents,
        limits=principal.sets_limits,
        queues=list(principal.queues),
        tasks=list(principal.tasks),
        namespace=context.program.name,
        version=version("penstock"),
        server=str(parse(context.program.settings.url)) if principal.sees_whole_app else "",
        base=_base(context),
        sign_out=sign_out,
    )


def _base(context: RequestContext) -> str:
    return str(context.request.scope.get("root_path", "")).rstrip("/")
