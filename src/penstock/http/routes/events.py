"""`GET /api/v1/events`: what happens, as it happens, as server-sent events."""

import asyncio
import re
from contextlib import suppress
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.api.events import Event, Events
from penstock.errors import PenstockError
from penstock.http.json_response import encode
from penstock.http.problems import HttpError
from penstock.http.route import RequestContext, Route
from penstock.http.schemas.requests import EventsQuery
from penstock.model.durations import milliseconds

BEAT: Final = 15.0  #: seconds of silence after which a sign of life is sent
PATIENCE: Final = 10.0  #: seconds that a reader may take to make room; then it is dropped, and may resume
MOST: Final = 100  #: readers at once: each has a connection to the server
_ID: Final = re.compile(r"(0|\d+-\d+(/\d+)?)\Z")  #: of an event, or the beginning
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class Feed:
    """All who read events from one service."""

    def __init__(self) -> None:
        self._readers = 0

    @property
    def route(self) -> Route:
        return Route(
            "GET",
            "/api/v1/events",
            self.get,
            "What happens, as it happens: server-sent events that never end",
            answers={200: None},
            query=EventsQuery,
            headers={"Last-Event-ID": "Go on after this event."},
            media="text/event-stream",
        )

    async def get(self, ask: RequestContext) -> Response:
        if self._readers >= MOST:
            raise HttpError(503, f"{MOST} read events already", {"Retry-After": "5"})
        query: EventsQuery = ask.query
        since = ask.request.headers.get("last-event-id") or query.since
        if since and not _ID.match(since):
            milliseconds(since, "since")  # a bad one is refused before the answer begins
        events = Events(
            ask.program.client().engine,
            queue=query.queue or None,
            kinds=query.kinds.split(",") if query.kinds else None,
            since=since or None,
            job=query.job or None,
        )
        return _Stream(events, self)

    def joined(self) -> None:
        self._readers += 1

    def left(self) -> None:
        self._readers -= 1


class _Stream(Response):
    """An answer that goes on until one of the two sides has had enough."""

    def __init__(self, events: Events, feed: Feed) -> None:
        super().__init__(status_code=200, headers=_HEADERS, media_type="text/event-stream")
        del self.headers["content-length"]
        self._events = events
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  (ASGI's signature)
        self._feed.joined()
        gone = asyncio.ensure_future(_hung_up(receive))
        try:
            async with asyncio.timeout(PATIENCE):
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await send(_part(b"retry: 3000\n\n"))
            await self._tell(gone, send)
        except (TimeoutError, PenstockError):
            pass  # it reads too slowly, or there is nothing to be read: whoever wants more comes back
        finally:
            gone.cancel()
            self._feed.left()
            with suppress(TimeoutError, OSError):
                async with asyncio.timeout(1):
                    await send({"type": "http.response.body", "body": b""})

    async def _tell(self, gone: "asyncio.Future[None]", send: Send) -> None:
        coming = asyncio.ensure_future(anext(self._events))
        try:
            while not gone.done():
                await asyncio.wait((coming, gone), timeout=BEAT, return_when=asyncio.FIRST_COMPLETED)
                said = b": alive\n\n"
                if coming.done():
                    said = _shown(coming.result())
                    coming = asyncio.ensure_future(anext(self._events))
                async with asyncio.timeout(PATIENCE):
                    await send(_part(said))
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _part(said: bytes) -> dict[str, object]:
    return {"type": "http.response.body", "body": said, "more_body": True}


def _shown(event: Event) -> bytes:
    return b"id: " + event.id.encode() + b"\ndata: " + encode(event) + b"\n\n"
