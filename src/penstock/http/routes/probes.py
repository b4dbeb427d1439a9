"""Probes for load balancers and orchestrators; they need no credentials."""

import asyncio
from typing import Final

from starlette.responses import PlainTextResponse, Response

from penstock.api.program import Program
from penstock.http.problems import HttpError
from penstock.http.route import RequestContext, Route

_READY_TIMEOUT: Final = 2.0  #: seconds that the server may take to answer


async def livez(_: RequestContext) -> Response:
    return PlainTextResponse("alive\n")


class Readiness:
    """Whether the server can be used, asked once for all who want to know it at the same time: everybody may."""

    def __init__(self) -> None:
        self._asked: asyncio.Task[bool] | None = None

    async def readyz(self, context: RequestContext) -> Response:
        """The reason is not told."""
        if self._asked is None or self._asked.done():
            self._asked = asyncio.create_task(_can_be_used(context.program))
        if not await asyncio.shield(self._asked):
            raise HttpError(503, "the server cannot be reached", {"Retry-After": "1"})
        return PlainTextResponse("ready\n")


async def _can_be_used(program: Program) -> bool:
    try:
        async with asyncio.timeout(_READY_TIMEOUT):
            await program.client().views.now()
    except Exception:  # noqa: BLE001  (whatever it is, it is not ready)
        return False
    return True


def routes() -> list[Route]:
    readyz = Readiness().readyz
    return [
        Route("GET", "/livez", livez, "The service turns", role=None, responses={200: None}, media_type=_TEXT),
        Route("GET", "/readyz", readyz, "The server can be used", role=None, responses={200: None}, media_type=_TEXT),
    ]


_TEXT: Final = "text/plain; charset=utf-8"
