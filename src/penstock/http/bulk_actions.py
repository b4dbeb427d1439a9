"""Actions on many jobs: page by page until the time is over; asking again goes on."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.responses import Response

from penstock.api.selection import Told
from penstock.http.json_response import answer
from penstock.http.schemas.responses import ChangedAnswer

SECONDS: Final = 20.0  #: after which it answers how far it came


async def bounded(work: Callable[[Told], Awaitable[int]]) -> Response:
    """Do it, and say how many were changed. Each page is a script that ends what it began, so it can be stopped."""
    done = [0]
    try:
        async with asyncio.timeout(SECONDS):
            changed = await work(done.append)
    except TimeoutError:
        return answer(ChangedAnswer(done[-1], more=True))
    return answer(ChangedAnswer(changed, more=False))
