"""Actions on many jobs: page by page until the time is over. The client asks again to go on."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.responses import Response

from penstock.api.selection import ProgressCallback
from penstock.http.json_response import json_response
from penstock.http.schemas.responses import ChangedAnswer

BULK_TIMEOUT: Final = 20.0  #: seconds after which the response says how far it came


async def run_bulk_action(action: Callable[[ProgressCallback], Awaitable[int]]) -> Response:
    """Run it and answer how many jobs it changed. It can be stopped between pages: each is one script."""
    progress = [0]
    try:
        async with asyncio.timeout(BULK_TIMEOUT):
            changed = await action(progress.append)
    except TimeoutError:
        return json_response(ChangedAnswer(progress[-1], more=True))
    return json_response(ChangedAnswer(changed, more=False))
