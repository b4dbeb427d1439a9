"""Waiting on behalf of a client: never longer than asked, and only while the client is connected."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive


async def wait_while_connected(receive: Receive, work: Coroutine[Any, Any, Any], seconds: float) -> None:
    """Run `work` until it ends or fails, the time is over, or the client disconnects; its result is dropped."""
    waits = [asyncio.ensure_future(work), asyncio.ensure_future(until_disconnect(receive))]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
