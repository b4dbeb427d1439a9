"""Dead jobs in groups with the same error: counts, first and last seen, read from one index."""

import json
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from penstock.engine.engine import Engine
from penstock.engine.keys import SEPARATOR
from penstock.engine.read.listing import Filter, Listing
from penstock.engine.record.record import read_header
from penstock.model.header import Attempt

_AFTER: Final = chr(ord(SEPARATOR) + 1)
MAX_GROUPS: Final = 1000  #: in one answer

_history = msgspec.msgpack.Decoder(list[Attempt]).decode


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead jobs with the same error: class, message without its variable parts, innermost frame of user code."""

    group: str  #: the fingerprint
    count: int
    first: int  #: when the first one died, ms
    last: int
    sample: str  #: the id of the one that died last
    task: str  #: of the sample, like all fields below
    queue: str
    reason: str
    type: str
    message: str


class DeadGroups:
    """Questions about the dead of one namespace."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._script_client = engine.script_client
        self._key = engine.keys

    async def groups(self, wanted: Filter | None = None, most: int = MAX_GROUPS) -> list[DeadGroup]:
        """The groups with the most jobs first, at most `most`."""
        seen = await self._counted(most) if wanted is None else await self._scanned(wanted, most)
        groups = [await self._group(name, *row) for name, row in seen.items()]
        return sorted(groups, key=lambda group: (-group.count, group.group))

    async def _counted(self, most: int) -> dict[str, tuple[int, str, str]]:
        """Group → count, first and last member, from the index alone, so the number of jobs does not matter."""
        seen: dict[str, tuple[int, str, str]] = {}
        place = "("
        while len(seen) < most and (first := await self._first(place)):
            name = first.partition(SEPARATOR)[0]
            number, last = await self._script_client.ask(partial(self._bounds, name))
            seen[name] = number, first, last[0].decode() if last else first
            place = f"[{name}{_AFTER}"
        return seen

    async def _first(self, place: str) -> str:
        key = self._key("deaths")
        members = await self._script_client.ask(
            lambda client: client.zrange(key, place, "+", bylex=True, offset=0, num=1)
        )
        return members[0].decode() if members else ""

    async def _bounds(self, name: str, client: Any) -> Any:
        first, last, key = f"[{name}{SEPARATOR}", f"({name}{_AFTER}", self._key("deaths")
        pipe = client.pipeline(transaction=False)
        pipe.zlexcount(key, first, last)
        pipe.zrange(key, last, first, bylex=True, desc=True, offset=0, num=1)
        return await pipe.execute()

    async def _scanned(self, wanted: Filter, most: int) -> dict[str, tuple[int, str, str]]:
        """The same for jobs that match a filter: reads all dead jobs in pages, and keeps only the groups."""
        seen: dict[str, tuple[int, str, str]] = {}
        async for job in Listing(self._engine).each(wanted._replace(state="dead")):
            name, member = job.header.death, SEPARATOR.join((job.header.death, f"{job.header.since:014d}", job.id))
            count, first, last = seen.get(name, (0, member, member))
            if count or len(seen) < most:
                seen[name] = count + 1, min(first, member), max(last, member)
        return seen

    async def _group(self, name: str, count: int, first: str, last: str) -> DeadGroup:
        sample = last.rpartition(SEPARATOR)[2]
        raw, attempts = await self._script_client.ask(lambda client: self._sample(client, sample).execute())
        task, queue, reason = _about(raw)
        kind, message = self._error(attempts, task, sample)
        times = [int(member.split(SEPARATOR)[1]) for member in (first, last)]
        return DeadGroup(name, count, times[0], times[1], sample, task, queue, reason, kind, message)

    def _error(self, raw: bytes | None, task: str, job_id: str) -> tuple[str, str]:
        try:
            attempts = self._engine.codecs.shown_attempts(_history(raw)[-1:], task, job_id) if raw else []
            found = json.loads(attempts[-1].error)
            return str(found.get("type", "")), str(found.get("message", "")).partition("\n")[0]
        except (msgspec.MsgspecError, ValueError, IndexError, AttributeError):
            return "", ""

    def _sample(self, client: Any, job_id: str) -> Any:
        pipe = client.pipeline(transaction=False)
        pipe.hget(self._key("jobs"), job_id)
        pipe.hget(self._key("attempts"), job_id)
        return pipe


def _about(raw: bytes | None) -> tuple[str, str, str]:
    try:
        header = read_header(raw or b"")
    except (msgspec.MsgspecError, TypeError):
        return "", "", ""
    return header.task, header.queue, header.reason
