"""Reads the stream of events forward, in pages. It misses no stored entry, and does not poll for new ones."""

import asyncio
import random
from typing import Any, Final, NamedTuple

import msgspec
from redis.exceptions import RedisError

from penstock.engine.keys import SEPARATOR
from penstock.engine.scripts import SCHEMA
from penstock.engine.transport.error_policy import lasting, mismatch
from penstock.engine.transport.script_client import ScriptClient

BEGINNING: Final = "0-0"  #: before the first entry
_PAGE: Final = 100
_BLOCK_SECONDS: Final = 5.0  #: of a blocking read on the server; its answer is only a hint to read again
_ANSWER_TIMEOUT: Final = 2.0  #: seconds for its answer beyond that
_MAX_PAUSE: Final = 2.0  #: seconds between two tries to reach the server

_event = msgspec.msgpack.Decoder(tuple[int, list[tuple[str, str, str, int, str, str]]]).decode


class Line(NamedTuple):
    """The part of an entry about one job. It has no job if it is about a whole queue, lane or schedule."""

    verb: str
    queue: str
    task: str
    attempt: int
    note: str
    job: str


class Entry(NamedTuple):
    """The events of one script call."""

    id: str
    at: int
    lines: list[Line]


class EntryPage(NamedTuple):
    """The entry at a place, and those after it. If the first is gone, entries after it may have been trimmed, too."""

    here: Entry | None
    entries: list[Entry]


class EventStream:
    """The stream of one namespace."""

    def __init__(self, script_client: ScriptClient) -> None:
        self._script_client = script_client
        self._key = script_client.keys("events")
        self._pause = 0.05

    async def end(self) -> str:
        """The place after the last entry."""
        entries = await self._script_client.ask(lambda client: client.xrevrange(self._key, count=1))
        return entries[0][0].decode() if entries else BEGINNING

    async def at(self, moment: int) -> tuple[str, bool]:
        """The place before the first entry since this time, and whether all entries since then are still stored."""
        earlier, first = await self._script_client.ask(lambda client: self._ends(client, moment).execute())
        # Entries of the same millisecond may have been trimmed before this one.
        kept = not first or _time_of(first[0][0]) < moment or await self._untrimmed()
        return (earlier[0][0].decode() if earlier else BEGINNING), kept

    def _ends(self, client: Any, moment: int) -> Any:
        pipe = client.pipeline(transaction=False)
        pipe.xrevrange(self._key, max=f"({moment}-0", count=1)
        pipe.xrange(self._key, count=1)
        return pipe

    async def _untrimmed(self) -> bool:
        info: Any = await self._script_client.ask(lambda client: client.xinfo_stream(self._key))
        return bool(info["entries-added"] <= info["length"])

    async def after(self, place: str) -> EntryPage:
        """A page of entries after a place. The entry at the place is read, too, to notice that it was trimmed."""
        layout, rows = await self._script_client.ask(lambda client: self._page(client, place).execute())
        if layout is not None and layout.decode() != SCHEMA:
            raise mismatch(layout.decode())
        entries = [_entry(entry_id.decode(), fields[b"e"]) for entry_id, fields in rows]
        if entries and entries[0].id == place:
            return EntryPage(entries[0], entries[1:])
        return EntryPage(None, entries)

    def _page(self, client: Any, place: str) -> Any:
        """Read the stream and the layout version: without a script nothing else checks the version."""
        pipe = client.pipeline(transaction=False)
        pipe.hget(self._script_client.keys("meta"), "schema")
        pipe.xrange(self._key, min=place, count=_PAGE + 1)
        return pipe

    async def wait(self, place: str) -> None:
        """Wait for an entry after this place, at most for a while; errors that may pass are waited out."""
        try:
            async with asyncio.timeout(_BLOCK_SECONDS + _ANSWER_TIMEOUT):
                client: Any = await self._script_client.endpoint.client()
                await client.xread({self._key: place}, count=1, block=round(_BLOCK_SECONDS * 1000))
            self._pause = 0.05
        except (RedisError, OSError, TimeoutError) as error:
            if (hopeless := lasting(error, self._script_client.endpoint)) is not None:
                raise hopeless from None
            await self._script_client.endpoint.forget()
            await self.rest()

    async def rest(self) -> None:
        """Pause before another try."""
        await asyncio.sleep(random.uniform(self._pause / 2, self._pause))  # noqa: S311  (jitter)
        self._pause = min(self._pause * 2, _MAX_PAUSE)


def _time_of(entry_id: bytes) -> int:
    return int(entry_id.partition(b"-")[0])


def _entry(entry_id: str, raw: bytes) -> Entry:
    at, groups = _event(raw)
    return Entry(
        entry_id,
        at,
        [
            Line(verb, queue, task, attempt, note, job)
            for verb, queue, task, attempt, note, ids in groups
            for job in ids.split(SEPARATOR)
        ],
    )
