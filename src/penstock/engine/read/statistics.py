"""Measurements: sums of the last minutes, the age of waiting jobs, the latest dead jobs. Plain reads, in pages."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

from penstock.engine.keys import SEPARATOR
from penstock.engine.record.record import read_header
from penstock.engine.transport.script_client import ScriptClient

_MAX_PRIORITIES: Final = 10  #: of a queue whose first jobs are read


class Statistic(NamedTuple):
    """How often a verb moved jobs of a queue in one minute.

    For `wait`, `run` and `lane`, milliseconds; with a range behind it (`wait 50`, `run more`), how many fell into it.
    """

    minute: int
    queue: str
    name: str
    value: int


class Statistics:
    """Questions about the load of one namespace."""

    def __init__(self, script_client: ScriptClient) -> None:
        self._script_client = script_client
        self._key = script_client.keys

    async def sums(self) -> list[Statistic]:
        """All stored statistics, about two hours."""
        fields: dict[bytes, bytes] = {}
        cursor = 0
        while True:
            cursor, page = await self._script_client.ask(
                lambda client, at=cursor: client.hscan(self._key("stats"), at, count=2000)  # type: ignore[misc]
            )
            fields |= page
            if cursor == 0:
                return [_sum(name.decode(), int(value)) for name, value in fields.items() if name]

    async def oldest(self, queues: Iterable[str]) -> dict[str, int]:
        """Queue → since when its oldest ready job waits, in ms: reads the first job of each priority."""
        starts = {queue: f"[{queue}{SEPARATOR}" for queue in queues}
        heads: dict[str, list[str]] = {queue: [] for queue in starts}
        for _ in range(_MAX_PRIORITIES):
            members = await self._first(starts)
            starts = {}
            for queue, member in members.items():
                heads[queue].append(member.split(SEPARATOR)[2])
                starts[queue] = f"[{queue}{SEPARATOR}{int(member.split(SEPARATOR)[1][:2]) + 1:02d}"
            if not starts:
                break
        return await self._since({queue: ids for queue, ids in heads.items() if ids})

    async def _first(self, starts: dict[str, str]) -> dict[str, str]:
        """Queue → its first member of `ready` from this start on."""
        if not starts:
            return {}
        ranges = await self._script_client.ask(lambda client: self._firsts(client, starts).execute())
        return {queue: members[0].decode() for queue, members in zip(starts, ranges, strict=True) if members}

    def _firsts(self, client: Any, starts: dict[str, str]) -> Any:
        pipe = client.pipeline(transaction=False)
        for queue, start in starts.items():
            pipe.zrange(self._key("ready"), start, f"({queue} ", bylex=True, offset=0, num=1)
        return pipe

    async def _since(self, heads: dict[str, list[str]]) -> dict[str, int]:
        pairs = [(queue, job_id) for queue, ids in heads.items() for job_id in ids]
        if not pairs:
            return {}
        ids = [job_id for _, job_id in pairs]
        records = await self._script_client.ask(lambda client: client.hmget(self._key("jobs"), ids))
        since: dict[str, int] = {}
        for (queue, _), raw in zip(pairs, records, strict=True):
            with suppress(msgspec.MsgspecError):  # the audit reports it
                header = read_header(raw or b"")
                if header.state == "ready":
                    since[queue] = min(since.get(queue, header.since), header.since)
        return since

    async def latest_dead(self, most: int) -> list[str]:
        """Ids of the jobs that died last, the latest first."""
        ids = await self._script_client.ask(lambda client: client.zrevrange(self._key("dead"), 0, most - 1))
        return [job_id.decode() for job_id in ids if job_id]


def _sum(name: str, value: int) -> Statistic:
    minute, queue, what = name.split(SEPARATOR)
    return Statistic(int(minute), queue, what, value)
