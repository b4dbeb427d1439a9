"""Reading the stream of events: forward, in pages, without missing what it still holds or polling for what comes."""

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
_BLOCK: Final = 5.0  #: seconds that a blocking read lasts on the server; it is asked again, the answer is only a hint
_ANSWER: Final = 2.0  #: seconds that its answer may take beyond that
_SLOWEST: Final = 2.0  #: seconds between two tries to reach the server, at most

_event = msgspec.msgpack.Decoder(tuple[int, list[tuple[str, str, str, int, str, str]]]).decode


class Line(NamedTuple):
    """One job's part in one entry; one of a whole queue, lane or schedule has no job."""

    verb: str
    queue: str
    task: str
    attempt: int
    note: str
    job: str


class Entry(NamedTuple):
    """What one call of a script did."""

    id: str
    at: int
    lines: list[Line]


class EntryPage(NamedTuple):
    """The entry at a place, and those after it; without the first, what came after it may have been trimmed, too."""

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
        found = await self._script_client.ask(lambda client: client.xrevrange(self._key, count=1))
        return found[0][0].decode() if found else BEGINNING

    async def at(self, moment: int) -> tuple[str, bool]:
        """The place before the first entry since this time, and whether everything since then is still kept."""
        found, first = await self._script_client.ask(lambda client: self._ends(client, moment).execute())
        # An entry of the very millisecond may follow others that are gone.
        kept = not first or _time_of(first[0][0]) < moment or await self._untrimmed()
        return (found[0][0].decode() if found else BEGINNING), kept

    def _ends(self, client: Any, moment: int) -> Any:
        pipe = client.pipeline(transaction=False)
        pipe.xrevrange(self._key, max=f"({moment}-0", count=1)
        pipe.xrange(self._key, count=1)
        return pipe

    async def _untrimmed(self) -> bool:
        info: Any = await self._script_client.ask(lambda client: client.xinfo_stream(self._key))
        return bool(info["entries-added"] <= info["length"])

    async def after(self, place: str) -> EntryPage:
        """A page of entries after a place. The one there is read along with them, so that its trimming is noticed."""
        layout, found = await self._script_client.ask(lambda client: self._page(client, place).execute())
        if layout is not None and layout.decode() != SCHEMA:
            raise mismatch(layout.decode())
        entries = [_entry(entry_id.decode(), fields[b"e"]) for entry_id, fields in found]
        if entries and entries[0].id == place:
            return EntryPage(entries[0], entries[1:])
        return EntryPage(None, entries)

    def _page(self, client: Any, place: str) -> Any:
        """No script reads the stream, so the layout is asked for along with it."""
        pipe = client.pipeline(transaction=False)
        pipe.hget(self._script_client.keys("meta"), "schema")
        pipe.xrange(self._key, min=place, count=_PAGE + 1)
        return pipe

    async def wait(self, place: str) -> None:
        """Until there is something after this place, or for a while; an error that may pass is waited out, too."""
        try:
            async with asyncio.timeout(_BLOCK + _ANSWER):
                client: Any = await self._script_client.endpoint.client()
                await client.xread({self._key: place}, count=1, block=round(_BLOCK * 1000))
            self._pause = 0.05
        except (RedisError, OSError, TimeoutError) as error:
            if (hopeless := lasting(error, self._script_client.endpoint)) is not None:
                raise hopeless from None
            await self._script_client.endpoint.forget()
            await self.rest()

    async def rest(self) -> None:
        """Before another try."""
        await asyncio.sleep(random.uniform(self._pause / 2, self._pause))  # noqa: S311  (jitter)
        self._pause = min(self._pause * 2, _SLOWEST)


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
