"""Reading what is stored, in pages, with plain commands that change nothing."""

import re
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import msgspec

from penstock.engine.answers import due_cron
from penstock.engine.engine import Engine
from penstock.engine.keys import SEPARATOR, rank
from penstock.engine.read.lane_views import LaneViews
from penstock.engine.record.lane_entry import waiting_place
from penstock.engine.record.record import read_header, read_payload
from penstock.errors import PenstockError
from penstock.model.batch_state import BatchStatus, read_state, status_of
from penstock.model.header import STATES, Attempt, Header
from penstock.model.schedule import ScheduleSpec, Standing

AT_ONE_MOMENT = 500  #: queues whose jobs are counted at one moment
_COUNTED = tuple(state for state in STATES if state != "ready")
_MOST = re.compile(r"max=(\d+)\.")
_history = msgspec.msgpack.Decoder(list[Attempt]).decode
_event = msgspec.msgpack.Decoder(tuple[int, list[tuple[str, str, str, int, str, str]]]).decode
_log = msgspec.msgpack.Decoder(tuple[list[str | int], int, list[tuple[int, int, str, str]]]).decode
_node = msgspec.msgpack.Decoder(tuple[str, list[str], int, int]).decode


class JobRecord(NamedTuple):
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


class LogLine(NamedTuple):
    """A line that an attempt wrote."""

    at: int
    attempt: int
    level: str
    text: str


class JobLog(NamedTuple):
    """How many lines of a job are no longer kept, and those that are."""

    gone: int
    lines: list[LogLine]


class QueueSettings(NamedTuple):
    """What was set for a queue by hand."""

    paused: bool = False
    limit: int | None = None  #: how many of its jobs may run at once
    max_size: int | None = None  #: how many may wait in it


class Node(NamedTuple):
    """A live worker."""

    worker: str
    alive_until: int
    info: str
    queues: list[str]
    life: int
    since: int


class CronRecord(NamedTuple):
    """A schedule, where it stands, and whether workers live but none of them has it in its code, as it should be."""

    id: str
    spec: ScheduleSpec
    standing: Standing
    orphaned: bool


class Run(NamedTuple):
    """A job that a worker runs."""

    id: str
    task: str
    attempt: int
    since: int


class Views:
    """Questions about one namespace. Numbers of one answer may be a moment apart; nothing here decides anything."""

    def __init__(self, engine: Engine) -> None:
        self._script_client = engine.script_client
        self._key = engine.keys

    async def job(self, job_id: str) -> JobRecord | None:
        return _record(job_id, await self._script_client.ask(lambda client: self._parts(client, job_id).execute()))

    def _parts(self, client: Any, job_id: str) -> Any:
        pipe = client.pipeline(transaction=False)
        for name in ("jobs", "payloads", "results", "attempts"):
            pipe.hget(self._key(name), job_id)
        return pipe

    async def counts(self, queues: Iterable[str] | None = None) -> dict[str, dict[str, int]]:
        """Queue → state → how many, of all queues or of these.

        Those of up to 500 queues are of one moment: a job that goes from one state to another is never in none. Of more
        queues they are asked in pages, so that the server has time for others between two.
        """
        names = list(await self.queue_settings()) if queues is None else list(dict.fromkeys(queues))
        counted: dict[str, dict[str, int]] = {}
        for at in range(0, len(names), AT_ONE_MOMENT):
            page = names[at : at + AT_ONE_MOMENT]
            fields = [f"{queue}{SEPARATOR}{state}" for queue in page for state in _COUNTED]
            *in_line, found = await self._script_client.ask(partial(self._count, page, fields))
            for n, queue in enumerate(page):
                numbers = zip(_COUNTED, found[n * len(_COUNTED) :], strict=False)
                counted[queue] = {"ready": in_line[n]} | {
                    state: int(number) for state, number in numbers if number is not None
                }
        return counted

    def _count(self, queues: Iterable[str], fields: list[str], client: Any) -> Any:
        """Those that are ready are not counted: the line itself tells."""
        pipe = client.pipeline(transaction=True)
        for queue in queues:
            pipe.zlexcount(self._key("ready"), f"[{queue}{SEPARATOR}", f"({queue} ")
        pipe.hmget(self._key("counts"), fields)
        return pipe.execute()

    async def queues(self) -> dict[str, bool]:
        """Queue → whether it is paused."""
        return {name: found.paused for name, found in (await self.queue_settings()).items()}

    async def queue_settings(self) -> dict[str, QueueSettings]:
        """Queue → what was set by hand, of all queues that are known; read in pages."""
        cursor, found = 0, dict[str, QueueSettings]()
        while True:
            cursor, page = await self._script_client.ask(partial(self._queue_page, cursor))
            found |= {name.decode(): setting_of(value.decode()) for name, value in page.items() if name}
            if cursor == 0:
                return found

    def _queue_page(self, cursor: int, client: Any) -> Any:
        return client.hscan(self._key("queues"), cursor, count=1000)

    async def queue_setting(self, queue: str) -> QueueSettings:
        """What was set for this one by hand."""
        found = await self._script_client.ask(lambda client: client.hget(self._key("queues"), queue))
        return setting_of((found or b"").decode())

    async def workers(self) -> list[Node]:
        alive, nodes = await self._script_client.ask(lambda client: self._lives(client).execute())
        return [Node(name.decode(), int(until), *_node(nodes[name])) for name, until in alive if name in nodes and name]

    def _lives(self, client: Any) -> Any:
        pipe = client.pipeline(transaction=False)
        pipe.zrange(self._key("workers"), 0, -1, withscores=True)
        pipe.hgetall(self._key("nodes"))
        return pipe

    async def now(self) -> int:
        """The server's time."""
        if self._script_client.test_clock is not None:
            return self._script_client.test_clock()
        seconds, microseconds = await self._script_client.ask(lambda client: client.time())
        return int(seconds) * 1000 + int(microseconds) // 1000

    async def cron(self, schedule: str) -> CronRecord | None:
        """A schedule, if there is one of this id that can be read."""
        fields = [f"{what}{SEPARATOR}{schedule}" for what in ("spec", "state")]
        found = await self._script_client.ask(lambda client: client.hmget(self._key("crons"), fields))
        records = await self._crons({schedule: found} if all(found) else {})
        return records[0] if records else None

    async def crons(self) -> AsyncIterator[CronRecord]:
        """All schedules that can be read, in no order, in pages."""
        cursor, halves = 0, dict[str, list[bytes | None]]()
        while True:
            cursor, page = await self._script_client.ask(partial(self._cron_page, cursor))
            for name, value in page.items():
                what, _, schedule = name.decode(errors="replace").partition(SEPARATOR)
                if schedule:
                    halves.setdefault(schedule, [None, None])[what == "state"] = value
            whole = {schedule: both for schedule, both in halves.items() if all(both)}
            halves = {schedule: both for schedule, both in halves.items() if schedule not in whole}
            for record in await self._crons(whole):
                yield record
            if cursor == 0:
                return

    def _cron_page(self, cursor: int, client: Any) -> Any:
        return client.hscan(self._key("crons"), cursor, count=200)

    async def _crons(self, found: dict[str, Any]) -> list[CronRecord]:
        readable = [cron for schedule, both in found.items() if (cron := due_cron(schedule, *both)).spec is not None]
        alive, *keepers = await self._script_client.ask(
            lambda client: self._keepers(client, [cron.id for cron in readable]).execute()
        )
        records = []
        for (schedule, spec, standing), members in zip(readable, keepers, strict=True):
            names = {member.rpartition(SEPARATOR.encode())[2] for member in members}
            assert spec is not None
            assert standing is not None
            workers = set(alive) - {b""}
            orphaned = standing.source == "code" and bool(workers) and not names & workers
            records.append(CronRecord(schedule, spec, standing, orphaned))
        return records

    def _keepers(self, client: Any, schedules: list[str]) -> Any:
        pipe = client.pipeline(transaction=False)
        pipe.zrange(self._key("workers"), 0, -1)
        for schedule in schedules:
            pipe.zrangebylex(self._key("keepers"), f"[{schedule}{SEPARATOR}", f"({schedule} ", start=0, num=500)
        return pipe

    async def batch(self, batch_id: str) -> BatchStatus | None:
        """How a batch stands, if there is one of this id."""
        name = f"state{SEPARATOR}{batch_id}"
        return _batch(batch_id, await self._script_client.ask(lambda client: client.hget(self._key("batches"), name)))

    async def batch_nonce(self, batch_id: str) -> str | None:
        """The nonce of the call that opened a batch; None if there is no batch of this id."""
        name = f"state{SEPARATOR}{batch_id}"
        raw = await self._script_client.ask(lambda client: client.hget(self._key("batches"), name))
        try:
            return read_state(raw).nonce if raw else None
        except msgspec.MsgspecError:
            return ""

    async def batches(self) -> AsyncIterator[BatchStatus]:
        """All batches that can be read, in no order, in pages."""
        cursor = 0
        while True:
            cursor, page = await self._script_client.ask(partial(self._batch_page, cursor))
            for name, raw in page.items():
                what, _, batch_id = name.decode(errors="replace").partition(SEPARATOR)
                if what == "state":
                    with suppress(PenstockError):
                        if found := _batch(batch_id, raw):
                            yield found
            if cursor == 0:
                return

    def _batch_page(self, cursor: int, client: Any) -> Any:
        return client.hscan(self._key("batches"), cursor, count=200)

    async def runs(self, most: int = 1000) -> dict[str, list[Run]]:
        """Worker → what it runs, the first of all in the order of their names."""
        leases = await self._script_client.ask(lambda client: client.zrange(self._key("leases"), 0, most))
        held = [member.decode().split(SEPARATOR) for member in leases if member]
        found = await self._script_client.ask(
            lambda client: client.hmget(self._key("jobs"), [row[2] for row in held] or [""])
        )
        runs: dict[str, list[Run]] = {}
        for (worker, _, job_id), raw in zip(held, found, strict=False):
            with suppress(msgspec.MsgspecError, TypeError):
                header = read_header(raw)
                runs.setdefault(worker, []).append(Run(job_id, header.task, header.attempt, header.started))
        return runs

    async def position(self, job_id: str) -> int | None:
        """How many are before this job in its queue; None if it does not wait there."""
        record = await self.job(job_id)
        if record is None or record.header.state != "ready":
            return None
        header = record.header
        first = f"[{header.queue}{SEPARATOR}"
        member = f"({header.queue}{SEPARATOR}{rank(header.priority, header.seq)}{SEPARATOR}{job_id}"
        return int(await self._script_client.ask(lambda client: client.zlexcount(self._key("ready"), first, member)))

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
            case "held":
                return await self._why_held(job_id, header)
            case "running":
                return f"running since {_moment(header.started)} on {header.claim.split(SEPARATOR)[0]}"
            case _:
                reason = "" if header.reason in {"", header.state} else f": {header.reason}"
                return f"{header.state} since {_moment(header.since)}{reason}"

    async def _why_held(self, job_id: str, header: Header) -> str:
        stored = header.lanes[header.home - 1].partition(SEPARATOR)[0]
        lane = await LaneViews(self._script_client).one(stored)
        what = f"{'lock' if lane.is_lock else 'lane'} {lane.name!r}"
        before = await self._before_in_lane(job_id, header)
        place = f"{before} jobs of its queue come before it"
        if lane.paused and stored.startswith("task:"):
            return f"held: task {header.task!r} is paused; {place}"
        if lane.paused:
            return f"held: {what} is paused; {place}"
        if lane.limit is not None and lane.in_use >= lane.limit:
            holders = ", ".join(lane.holders[:3]) + (", …" if len(lane.holders) > 3 else "")
            return f"held: {what} has {lane.in_use} of {lane.limit} in use, by {holders}; {place}"
        opens = await self._script_client.ask(lambda client: client.zscore(self._key("openings"), stored))
        if opens is not None:
            return f"held: {what} starts {lane.rate}, the next at {_moment(int(opens))}; {place}"
        return f"held: {what} has room for others that are next; {place}"

    async def _before_in_lane(self, job_id: str, header: Header) -> int:
        place = waiting_place(header)
        first, last = f"[{SEPARATOR.join(place[:2])}{SEPARATOR}", f"({SEPARATOR.join((*place, job_id))}"
        return int(await self._script_client.ask(lambda client: client.zlexcount(self._key("held"), first, last)))

    async def _why_ready(self, job_id: str, header: Header) -> str:
        paused, limit, _ = await self.queue_setting(header.queue)
        if paused:
            return f"queue {header.queue!r} is paused"
        running = (await self.counts([header.queue]))[header.queue].get("running", 0)
        if limit is not None and running >= limit:
            return f"queue {header.queue!r} is at its limit: {running} of {limit} run"
        serving = [node for node in await self.workers() if "*" in node.queues or header.queue in node.queues]
        if not serving:
            return f"no live worker serves queue {header.queue!r}"
        before = await self.position(job_id)
        return f"ready: {before} jobs of queue {header.queue!r} come before it, {len(serving)} workers serve it"

    async def log(self, job_id: str) -> JobLog:
        """The last lines that a job's attempts wrote."""
        raw = await self._script_client.ask(lambda client: client.hget(self._key("logs"), job_id))
        try:
            _, gone, lines = _log(raw) if raw else ([], 0, [])
        except msgspec.MsgspecError:
            return JobLog(0, [])
        return JobLog(gone, [LogLine(*line) for line in lines])

    async def headers(self) -> AsyncIterator[tuple[str, Header]]:
        """All jobs whose headers can be read, in no order, in pages."""
        cursor = 0
        while True:
            cursor, page = await self._script_client.ask(partial(self._page, cursor))
            for job_id, raw in page.items():
                if job_id:
                    with suppress(msgspec.MsgspecError, UnicodeDecodeError):  # the audit reports those
                        yield job_id.decode(), read_header(raw)
            if cursor == 0:
                return

    def _page(self, cursor: int, client: Any) -> Any:
        return client.hscan(self._key("jobs"), cursor, count=500)

    async def events(self, after: str = "-", count: int = 100) -> list[Event]:
        """The next entries of the stream after the one with this id, a line per job."""
        start, key = after if after == "-" else f"({after}", self._key("events")
        found = await self._script_client.ask(lambda client: client.xrange(key, min=start, max="+", count=count))
        return [event for entry_id, fields in found for event in _lines(entry_id.decode(), fields[b"e"])]

    async def last_event(self) -> bytes:
        found = await self._script_client.ask(lambda client: client.xrevrange(self._key("events"), count=1))
        return bytes(found[0][0]) if found else b""


def setting_of(text: str) -> QueueSettings:
    """What is stored in `queues` for one of them."""
    limit, most = text.rpartition(" ")[2], _MOST.search(text)
    return QueueSettings(
        text.startswith("paused"), int(limit) if limit.isdigit() else None, int(most[1]) if most else None
    )


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")


def _record(job_id: str, found: list[bytes | None]) -> JobRecord | None:
    header, payload, result, attempts = found
    if not header or not job_id:  # under no name there is a sentinel
        return None
    try:
        if payload is None:
            payload = read_payload(header)
        return JobRecord(job_id, read_header(header), payload, result, _history(attempts) if attempts else [])
    except msgspec.MsgspecError as error:
        raise PenstockError(
            f"what is stored of job {job_id!r} cannot be read: {error}; see `penstock doctor`"
        ) from None


def _batch(batch_id: str, raw: bytes | None) -> BatchStatus | None:
    try:
        return status_of(batch_id, read_state(raw)) if raw else None
    except msgspec.MsgspecError as error:
        raise PenstockError(
            f"what is stored of batch {batch_id!r} cannot be read: {error}; see `penstock doctor`"
        ) from None


def _lines(entry_id: str, raw: bytes) -> list[Event]:
    now, groups = _event(raw)
    return [
        Event(entry_id, now, verb, queue, task, job, attempt, note)
        for verb, queue, task, attempt, note, ids in groups
        for job in ids.split(SEPARATOR)  # one without a name is of a whole queue: pause, resume
    ]
