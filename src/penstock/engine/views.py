"""Reading what is stored, in pages, with plain commands that change nothing."""

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import msgspec

from penstock.engine.engine import Engine
from penstock.engine.keys import SEPARATOR
from penstock.errors import PenstockError
from penstock.job import Attempt, Header

_header = msgspec.msgpack.Decoder(Header).decode
_history = msgspec.msgpack.Decoder(list[Attempt]).decode
_event = msgspec.msgpack.Decoder(tuple[int, list[tuple[str, str, str, list[str | int]]]]).decode
_node = msgspec.msgpack.Decoder(tuple[str, list[str], int, int]).decode


class Record(NamedTuple):
    """Everything that is stored of one job."""

    id: str
    header: Header
    payload: bytes | None
    result: bytes | None
    attempts: list[Attempt]


class Event(NamedTuple):
    """One job's part in one entry of the stream; `id` of the entry and the place in it resume after it."""

    id: str
    at: int
    verb: str
    queue: str
    task: str
    job: str
    attempt: int
    note: str


class Node(NamedTuple):
    """A live worker."""

    worker: str
    alive_until: int
    info: str
    queues: list[str]
    life: int
    since: int


class Run(NamedTuple):
    """A job that a worker runs."""

    id: str
    task: str
    attempt: int
    since: int


class Views:
    """Questions about one namespace. Numbers of one answer may be a moment apart; nothing here decides anything."""

    def __init__(self, engine: Engine) -> None:
        self._link = engine.link
        self._key = engine.keys

    async def job(self, job_id: str) -> Record | None:
        return _record(job_id, await self._link.ask(lambda client: self._parts(client, job_id).execute()))

    def job_sync(self, job_id: str) -> Record | None:
        return _record(job_id, self._link.ask_sync(lambda client: self._parts(client, job_id).execute()))

    def _parts(self, client: Any, job_id: str) -> Any:
        pipe = client.pipeline(transaction=False)
        for name in ("jobs", "payloads", "results", "attempts"):
            pipe.hget(self._key(name), job_id)
        return pipe

    async def counts(self) -> dict[str, dict[str, int]]:
        """Queue → state → how many."""
        counted: dict[str, dict[str, int]] = {}
        found = await self._link.ask(lambda client: client.hgetall(self._key("counts")))
        for name, number in found.items():
            if name:
                queue, state = name.decode().split(SEPARATOR)
                counted.setdefault(queue, {})[state] = int(number)
        return counted

    async def queues(self) -> dict[str, bool]:
        """Queue → whether it is paused."""
        found = await self._link.ask(lambda client: client.hgetall(self._key("queues")))
        return {name.decode(): value == b"paused" for name, value in found.items() if name}

    async def workers(self) -> list[Node]:
        alive, nodes = await self._link.ask(lambda client: self._lives(client).execute())
        return [Node(name.decode(), int(until), *_node(nodes[name])) for name, until in alive if name in nodes and name]

    def _lives(self, client: Any) -> Any:
        pipe = client.pipeline(transaction=False)
        pipe.zrange(self._key("workers"), 0, -1, withscores=True)
        pipe.hgetall(self._key("nodes"))
        return pipe

    async def runs(self, most: int = 1000) -> dict[str, list[Run]]:
        """Worker → what it runs, the first of all in the order of their names."""
        leases = await self._link.ask(lambda client: client.zrange(self._key("leases"), 0, most))
        held = [member.decode().split(SEPARATOR) for member in leases if member]
        found = await self._link.ask(lambda client: client.hmget(self._key("jobs"), [row[2] for row in held] or [""]))
        runs: dict[str, list[Run]] = {}
        for (worker, _, job_id), raw in zip(held, found, strict=False):
            with suppress(msgspec.MsgspecError, TypeError):
                header = _header(raw)
                runs.setdefault(worker, []).append(Run(job_id, header.task, header.attempt, header.started))
        return runs

    async def position(self, job_id: str) -> int | None:
        """How many are before this job in its queue; None if it does not wait there."""
        record = await self.job(job_id)
        if record is None or record.header.state != "ready":
            return None
        header = record.header
        first = f"[{header.queue}{SEPARATOR}"
        member = f"({header.queue}{SEPARATOR}{header.priority:02d}{header.seq:014d}{SEPARATOR}{job_id}"
        return int(await self._link.ask(lambda client: client.zlexcount(self._key("ready"), first, member)))

    async def explain(self, job_id: str) -> str:
        """Why a job is not running, in a sentence."""
        record = await self.job(job_id)
        if record is None:
            return f"no job {job_id!r} is known here"
        header = record.header
        match header.state:
            case "scheduled":
                why = f" ({header.reason})" if header.reason else ""
                return f"scheduled until {_moment(header.due)}{why}"
            case "ready":
                return await self._why_ready(job_id, header)
            case "running":
                return f"running since {_moment(header.started)} on {header.claim.split(SEPARATOR)[0]}"
            case _:
                return f"{header.state} since {_moment(header.since)}" + (f": {header.reason}" if header.reason else "")

    async def _why_ready(self, job_id: str, header: Header) -> str:
        if (await self.queues()).get(header.queue):
            return f"queue {header.queue!r} is paused"
        serving = [node for node in await self.workers() if "*" in node.queues or header.queue in node.queues]
        if not serving:
            return f"no live worker serves queue {header.queue!r}"
        before = await self.position(job_id)
        return f"ready: {before} jobs of queue {header.queue!r} come before it, {len(serving)} workers serve it"

    async def headers(self) -> AsyncIterator[tuple[str, Header]]:
        """All jobs whose headers can be read, in no order, in pages."""
        cursor = 0
        while True:
            cursor, page = await self._link.ask(partial(self._page, cursor))
            for job_id, raw in page.items():
                if job_id:
                    with suppress(msgspec.MsgspecError, UnicodeDecodeError):  # the audit reports those
                        yield job_id.decode(), _header(raw)
            if cursor == 0:
                return

    def _page(self, cursor: int, client: Any) -> Any:
        return client.hscan(self._key("jobs"), cursor, count=500)

    async def events(self, after: str = "-", count: int = 100) -> list[Event]:
        """The next entries of the stream after the one with this id, a line per job."""
        start, key = after if after == "-" else f"({after}", self._key("events")
        found = await self._link.ask(lambda client: client.xrange(key, min=start, max="+", count=count))
        return [event for entry_id, fields in found for event in _lines(entry_id.decode(), fields[b"e"])]

    async def last_event(self) -> bytes:
        found = await self._link.ask(lambda client: client.xrevrange(self._key("events"), count=1))
        return bytes(found[0][0]) if found else b""


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")


def _record(job_id: str, found: list[bytes | None]) -> Record | None:
    header, payload, result, attempts = found
    if not header:
        return None
    try:
        return Record(job_id, _header(header), payload, result, _history(attempts) if attempts else [])
    except msgspec.MsgspecError as error:
        raise PenstockError(
            f"what is stored of job {job_id!r} cannot be read: {error}; see `penstock doctor`"
        ) from None


def _triples(values: list[str | int]) -> list[tuple[str | int, ...]]:
    return list(zip(values[::3], values[1::3], values[2::3], strict=True))


def _lines(entry_id: str, raw: bytes) -> list[Event]:
    now, groups = _event(raw)
    return [
        Event(entry_id, now, verb, queue, task, str(job), int(attempt), str(note))
        for verb, queue, task, lines in groups
        for job, attempt, note in _triples(lines) or [("", 0, "")]  # of a whole queue: pause, resume
    ]
