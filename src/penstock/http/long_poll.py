"""Answers that are waited for: not for longer than was asked, nor for anybody who has hung up."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.requests import Request


async def patiently(request: Request, work: Coroutine[Any, Any, Any], seconds: float) -> None:
    """Until it is done, has failed, the time is over, or nobody waits for the answer any more."""
    waits = [asyncio.ensure_future(work), asyncio.ensure_future(_hung_up(request))]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
