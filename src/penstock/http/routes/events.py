"""`GET /api/v1/events`: what happens, as it happens, as server-sent events."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.api.events import GAP, Event, Events
from penstock.errors import PenstockError
from penstock.http import request_limits, scope
from penstock.http.contents import hide_note
from penstock.http.json_response import encode_json
from penstock.http.long_poll import until_disconnect
from penstock.http.principal import Principal
from penstock.http.request_limits import Place, RequestLimits
from penstock.http.route import RequestContext, Route
from penstock.http.schemas.requests import EventsQuery
from penstock.model.durations import milliseconds

HEARTBEAT_INTERVAL: Final = 15.0  #: seconds without an event after which a comment is sent
SEND_TIMEOUT: Final = 10.0  #: seconds that a slow reader may take to make room; then it is dropped and may resume
_EVENT_ID: Final = re.compile(r"(0|\d+-\d+(/\d+)?)\Z")  #: or 0 for the beginning
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EventFeed:
    """The readers of one service, whose number is bounded."""

    def __init__(self) -> None:
        self._limits = RequestLimits(
            request_limits.MAX_READERS_OF_ONE, request_limits.MAX_READERS_OF_OTHERS, request_limits.MAX_READERS
        )

    @property
    def route(self) -> Route:
        return Route(
            "GET",
            "/api/v1/events",
            self.get_events,
            "What happens, as it happens: server-sent events that never end",
            responses={200: None},
            query=EventsQuery,
            headers={"Last-Event-ID": "Go on after this event."},
            media_type="text/event-stream",
        )

    async def get_events(self, context: RequestContext) -> Response:
        query: EventsQuery = context.query
        if query.queue:
            scope.require_queue(context.principal, query.queue)
        since = context.request.headers.get("last-event-id") or query.since
        if since and not _EVENT_ID.match(since):
            milliseconds(since, "since")  # a bad one is refused before the response begins
        events = Events(
            context.program.client().engine,
            queue=query.queue or None,
            kinds=query.kinds.split(",") if query.kinds else None,
            since=since or None,
            job=query.job or None,
        )
        if context.request.method == "HEAD":  # it asks for no events, so it must not count as a reader
            return Response(headers=_HEADERS, media_type="text/event-stream")
        place = self._limits.enter(context.principal)
        return _EventStreamResponse(_shown_to(context.principal, events), place)


class _EventStreamResponse(Response):
    """Sends events until the client disconnects or reads too slowly, or the server cannot be used."""

    def __init__(self, events: AsyncGenerator[Event, None], place: Place) -> None:
        super().__init__(status_code=200, headers=_HEADERS, media_type="text/event-stream")
        del self.headers["content-length"]
        self._events = events
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  (ASGI's signature)
        disconnected = asyncio.ensure_future(until_disconnect(receive))
        try:
            with self._place:
                async with asyncio.timeout(SEND_TIMEOUT):
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    await send(_body_part(b"retry: 3000\n\n"))
                await self._send_events(disconnected, send)
        except (TimeoutError, PenstockError):
            pass  # the reader is too slow, or the server cannot be used: the client reconnects and resumes
        finally:
            disconnected.cancel()
            with suppress(TimeoutError, OSError):
                async with asyncio.timeout(1):
                    await send({"type": "http.response.body", "body": b""})

    async def _send_events(self, disconnected: "asyncio.Future[None]", send: Send) -> None:
        next_event = asyncio.ensure_future(anext(self._events))
        try:
            while not disconnected.done():
                waits = (next_event, disconnected)
                await asyncio.wait(waits, timeout=HEARTBEAT_INTERVAL, return_when=asyncio.FIRST_COMPLETED)
                text = b": alive\n\n"
                if next_event.done():
                    text = _encode_event(next_event.result())
                    next_event = asyncio.ensure_future(anext(self._events))
                async with asyncio.timeout(SEND_TIMEOUT):
                    await send(_body_part(text))
        finally:
            next_event.cancel()
            await asyncio.gather(next_event, return_exceptions=True)


async def _shown_to(principal: Principal, events: Events) -> AsyncGenerator[Event, None]:
    """The events of jobs that this principal may use, without what it may not read."""
    async for event in events:
        if event.kind == GAP or principal.uses(event.queue, event.task):
            yield event if principal.reads_contents else hide_note(event)


def _body_part(text: bytes) -> dict[str, object]:
    return {"type": "http.response.body", "body": text, "more_body": True}


def _encode_event(event: Event) -> bytes:
    return b"id: " + event.id.encode() + b"\ndata: " + encode_json(event) + b"\n\n"
