"""A request's body as it comes: bounded in bytes and time. What a refused request still sends is read and dropped."""

import asyncio
from contextlib import suppress
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

from penstock.http.problems import HttpError

BODY_TIMEOUT: Final = 10.0  #: seconds
#: Bytes that are dropped, and for how long, so that a client that is still sending can read why it was refused. Its
#: connection is closed after that, which many clients take for a network error.
MAX_DROPPED: Final = 8 * 2**20
DROP_TIMEOUT: Final = 5.0  #: seconds


class Body:
    """The body of one request."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        headers = Headers(scope=scope)
        length = headers.get("content-length", "")
        self._length = int(length) if length.isascii() and length.isdecimal() else 0
        self._receive = receive
        self._is_read = not self._length and "transfer-encoding" not in headers
        self._waits_for_continue = "expect" in headers  # the client sends nothing before the first `receive`

    async def receive(self) -> Message:
        message = await self._receive()
        self._waits_for_continue = False
        self._is_read = message["type"] == "http.disconnect" or not message.get("more_body", False)
        return message

    async def read(self, limit: int) -> bytes:
        """Read the whole body; refuse it before more than `limit` bytes are in memory."""
        if self._length > limit:
            raise _too_large(limit)
        body, more = b"", True
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                while more:
                    message = await self.receive()
                    if message["type"] == "http.disconnect":
                        raise HttpError(400, "the body ended too soon")
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > limit:
                        raise _too_large(limit)
        except TimeoutError:
            raise HttpError(408, f"the body did not come within {BODY_TIMEOUT:g} s", {"Connection": "close"}) from None
        return body

    async def drop(self) -> None:
        """Read the rest and forget it: no more than the bounds above."""
        dropped = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(DROP_TIMEOUT):
                while dropped < MAX_DROPPED and not self._is_read and not self._waits_for_continue:
                    dropped += len((await self.receive()).get("body", b""))


def _too_large(limit: int) -> HttpError:
    text = f"the body has more than {limit:,} bytes: send less, or a reference"
    return HttpError(413, text, {"Connection": "close"})
