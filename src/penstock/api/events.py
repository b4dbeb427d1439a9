"""Events of jobs as they happen: an async iterator over the durable stream that the scripts write."""

import logging
import re
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Self

from penstock.engine.engine import Engine
from penstock.engine.read.event_stream import BEGINNING, Entry, EventStream, Line
from penstock.engine.read.views import Views
from penstock.engine.scripts import load
from penstock.errors import BadOption, JobNotFound, Unavailable, may_pass
from penstock.model.durations import Duration, instant, milliseconds
from penstock.model.header import FINISHED
from penstock.model.options import queue_name, unknown

log = logging.getLogger("penstock")

#: an event's id, a moment, or how long ago; None: from now on
Since = str | datetime | Duration | None

GAP: Final = "gap"  #: the kind of an event that stands for events no longer stored
_OTHER_KINDS: Final = frozenset({"hold", GAP})  #: beside the verbs
_ID: Final = re.compile(r"(\d+-\d+)(?:/(\d+))?\Z")
_UNFINISHED_KINDS: Final = frozenset(
    {
        "enqueue",
        "promote",
        "lease",
        "admit",
        "hold",
        "progress",
        "log",
        "reschedule",
        "revive",
        "transfer",
        # These end an attempt; the job may end in the same millisecond, with the next.
        "retry",
        "snooze",
        "release",
        "retire",
    }
)


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened to a job, or to a whole queue, lane or schedule (then `job` is empty).

    `app.events(since=event.id)` resumes after it. The kind `gap` says that events before it are no longer stored.
    """

    id: str
    at: datetime
    kind: str
    queue: str
    task: str
    job: str
    attempt: int
    note: str  #: why, how far, which lane: depends on the kind


class Events:
    """An async iterator that never ends by itself; across reconnects it misses no event that is still stored."""

    def __init__(
        self,
        engine: Engine,
        *,
        queue: str | None = None,
        since: Since = None,
        kinds: Iterable[str] | str | None = None,
        job: str | None = None,
    ) -> None:
        self._views = Views(engine)
        self._codecs = engine.codecs
        self._stream = EventStream(engine.script_client)
        self._queue = None if queue is None else queue_name(queue)
        self._kinds = checked_kinds(kinds)
        self._job = job
        self._since = since
        self._place, self._seen = _place(since)
        self._buffer: deque[Event] = deque()
        self._has_connected = False  #: whether the server was reached once: from then on an outage is waited out

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._buffer:
            try:
                if not await self._advance():
                    await self._stream.wait(self._place)
            except Unavailable as error:
                if not self._has_connected or not may_pass(error):
                    raise
                log.warning("events cannot be read (%s); trying again until they can", error)
                await self._stream.rest()
        return self._buffer.popleft()

    async def kept(self) -> AsyncIterator[Event]:
        """Events stored by now; ends where it would have to wait for more."""
        more = True
        while more:
            more = await self._advance()
            while self._buffer:
                yield self._buffer.popleft()

    async def _advance(self) -> bool:
        """Read the next page; returns whether there was one."""
        kept = bool(self._place) or await self._begin()
        page = await self._stream.after(self._place)
        self._has_connected = True
        if not kept or (page.here is None and self._place != BEGINNING):
            self._add_gap(page.entries)
        elif page.here is not None and self._seen is not None:
            self._add(page.here, self._seen + 1)
        for entry in page.entries:
            self._add(entry, 0)
        self._seen = None
        if page.entries:
            self._place = page.entries[-1].id
        elif page.here is None:
            self._place = BEGINNING  # every entry from now on is new
        return bool(page.entries)

    async def _begin(self) -> bool:
        """Find the place of `since`; returns whether all events since then are still stored."""
        if self._since is None:
            self._place = await self._stream.end()
            return True
        self._place, kept = await self._stream.at(_moment(self._since, await self._views.now()))
        return kept

    def _add_gap(self, entries: list[Entry]) -> None:
        at = datetime.fromtimestamp(entries[0].at / 1000, UTC) if entries else datetime.now(UTC)
        since = "" if self._place == BEGINNING else f" after {self._place}"
        note = f"what happened{since} and before this moment is no longer kept"
        self._buffer.append(Event(self._place, at, GAP, "", "", "", 0, note))

    def _add(self, entry: Entry, first: int) -> None:
        for number, line in enumerate(entry.lines):
            if number >= first and self._wants(line):
                note = line.note
                if line.verb == "progress":
                    note = self._codecs.shown_progress(note, line.task, line.job)
                fields = (line.verb, line.queue, line.task, line.job, line.attempt, note)
                at = datetime.fromtimestamp(entry.at / 1000, UTC)
                self._buffer.append(Event(f"{entry.id}/{number}", at, *fields))

    def _wants(self, line: Line) -> bool:
        return (
            (self._queue is None or line.queue == self._queue)
            and (self._kinds is None or line.verb in self._kinds)
            and (self._job is None or line.job == self._job)
        )


class JobEvents:
    """The events of one job from its beginning, or from `since` on, to its end."""

    def __init__(self, engine: Engine, job_id: str, since: Since = None) -> None:
        self._engine = engine
        self._views = Views(engine)
        self._job = job_id
        self._since = since
        self._events: Events | None = None
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if self._ended:
            raise StopAsyncIteration
        if self._events is None:
            self._events = await self._open()
        event = await anext(self._events)
        self._ended = event.kind not in _UNFINISHED_KINDS and await self._has_ended(event)
        return event

    async def _open(self) -> Events:
        record = await self._views.job(self._job)
        if record is None:
            raise JobNotFound(f"no job {self._job!r} is known here")
        begin = self._since or datetime.fromtimestamp(record.header.created / 1000, UTC)
        return Events(self._engine, since=begin, job=self._job)

    async def _has_ended(self, event: Event) -> bool:
        record = await self._views.job(self._job)
        if record is None:
            return True
        ended = datetime.fromtimestamp(record.header.since / 1000, UTC)
        return record.header.state in FINISHED and (event.at >= ended or event.kind == GAP)


def checked_kinds(kinds: Iterable[str] | str | None) -> frozenset[str] | None:
    """The kinds asked for, checked; gaps always come."""
    if kinds is None:
        return None
    names = frozenset([kinds] if isinstance(kinds, str) else kinds)
    valid = load().keys() | _OTHER_KINDS
    for name in sorted(names - valid):
        raise BadOption(unknown("kind of event", str(name), valid))
    return names


def _place(since: Since) -> tuple[str, int | None]:
    """The entry to begin after, and the last line of it that was seen; empty if `since` is a time."""
    if since == "0":
        return BEGINNING, None
    match = _ID.match(since) if isinstance(since, str) else None
    if match is None:
        return "", None
    return match[1], int(match[2]) if match[2] else None


def _moment(since: Since, now: int) -> int:
    if isinstance(since, datetime):
        return instant(since, "since")
    try:
        return max(now - milliseconds(since or 0, "since"), 0)
    except BadOption:
        raise BadOption(f"since={since!r}: use an event's id, an aware datetime, or how long ago it was") from None
