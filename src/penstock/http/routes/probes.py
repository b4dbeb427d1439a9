"""Probes for load balancers and orchestrators; they need no credentials."""

import asyncio
from typing import Final

from starlette.responses import PlainTextResponse, Response

from penstock.http.problems import HttpError
from penstock.http.route import RequestContext, Route

_READY_TIMEOUT: Final = 2.0  #: seconds that the server may take to answer


async def livez(_: RequestContext) -> Response:
    return PlainTextResponse("alive\n")


async def readyz(context: RequestContext) -> Response:
    """Whether the server can be used. The reason is not told: everybody may ask."""
    try:
        async with asyncio.timeout(_READY_TIMEOUT):
            await context.program.client().views.now()
    except Exception:  # noqa: BLE001  (whatever it is, it is not ready)
        raise HttpError(503, "the server cannot be reached", {"Retry-After": "1"}) from None
    return PlainTextResponse("ready\n")


_TEXT: Final = "text/plain; charset=utf-8"
ROUTES: Final = [
    Route("GET", "/livez", livez, "The service turns", role=None, responses={200: None}, media_type=_TEXT),
    Route("GET", "/readyz", readyz, "The server can be used", role=None, responses={200: None}, media_type=_TEXT),
]
