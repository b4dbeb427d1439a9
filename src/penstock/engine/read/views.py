"""Reads what is stored, in pages, with plain commands that change nothing."""

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
from penstock.model.payload_codec import Codecs, Opened
from penstock.model.schedule import ScheduleSpec, Standing

MAX_COUNTED_AT_ONCE = 500  #: queues whose jobs are counted in one call
_COUNTED = tuple(state for state in STATES if state != "ready")
_MAX_SIZE = re.compile(r"max=(\d+)\.")
_history = msgspec.msgpack.Decoder(list[Attempt]).decode
_event = msgspec.msgpack.Decoder(tuple[int, list[tuple[str, str, str, int, str, str]]]).decode
_log = msgspec.msgpack.Decoder(tuple[list[str | int], int, list[tuple[int, int, str, str]]]).decode
_node = msgspec.msgpack.Decoder(tuple[str, list[str], int, int]).decode


class JobRecord(NamedTuple):
    """Everything that is stored of one job, opened as far as this program has the keys."""

    id: str
    header: Header
    payload: bytes | None
    result: bytes | None
    attempts: list[Attempt]
    closed: PenstockError | None = None  #: why the result cannot be opened here; then a text is in its place


class Event(NamedTuple):
    """The part of a stream entry about one job; `id` is the entry's."""

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
    """The stored lines of a job, and how many are no longer stored."""

    gone: int
    lines: list[LogLine]


class QueueSettings(NamedTuple):
    """The settings of a queue that were made by hand."""

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
    """A schedule and its state. Orphaned: it is from the code, and no live worker has it."""

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
    """Reads one namespace, for people. The numbers of one answer may be a moment apart; no decision depends on them."""

    def __init__(self, engine: Engine) -> None:
        self._script_client = engine.script_client
        self._key = engine.keys
        self._codecs = engine.codecs

    async def job(self, job_id: str) -> JobRecord | None:
        parts = await self._script_client.ask(lambda client: self._parts(client, job_id).execute())
        return _record(job_id, parts, self._codecs)

    def _parts(self, client: Any, job_id: str) -> Any:
        pipe = client.pipeline(transaction=False)
        for name in ("jobs", "payloads", "results", "attempts"):
            pipe.hget(self._key(name), job_id)
        return pipe

    async def counts(self, queues: Iterable[str] | None = None) -> dict[str, dict[str, int]]:
        """Queue → state → how many, of all queues or of these.

        The counts of up to 500 queues are of one moment, so a job that changes its state is never missing. More queues
        are counted in pages, so that the server can serve others in between.
        """
        names = list(await self.queue_settings()) if queues is None else list(dict.fromkeys(queues))
        counted: dict[str, dict[str, int]] = {}
        for at in range(0, len(names), MAX_COUNTED_AT_ONCE):
            page = names[at : at + MAX_COUNTED_AT_ONCE]
            fields = [f"{queue}{SEPARATOR}{state}" for queue in page for state in _COUNTED]
            *in_line, others = await self._script_client.ask(partial(self._count, page, fields))
            for n, queue in enumerate(page):
                numbers = zip(_COUNTED, others[n * len(_COUNTED) :], strict=False)
                counted[queue] = {"ready": in_line[n]} | {
                    state: int(number) for state, number in numbers if number is not None
                }
        return counted

    def _count(self, queues: Iterable[str], fields: list[str], client: Any) -> Any:
        """Ready jobs have no counter: `ready` itself is counted."""
        pipe = client.pipeline(transaction=True)
        for queue in queues:
            pipe.zlexcount(self._key("ready"), f"[{queue}{SEPARATOR}", f"({queue} ")
        pipe.hmget(self._key("counts"), fields)
        return pipe.execute()

    async def queues(self) -> dict[str, bool]:
        """Queue → whether it is paused."""
        return {name: setting.paused for name, setting in (await self.queue_settings()).items()}

    async def queue_settings(self) -> dict[str, QueueSettings]:
        """Queue → its settings, for all known queues; read in pages."""
        cursor, settings = 0, dict[str, QueueSettings]()
        while True:
            cursor, page = await self._script_client.ask(partial(self._queue_page, cursor))
            settings |= {name.decode(): setting_of(value.decode()) for name, value in page.items() if name}
            if cursor == 0:
                return settings

    def _queue_page(self, cursor: int, client: Any) -> Any:
        return client.hscan(self._key("queues"), cursor, count=1000)

    async def queue_setting(self, queue: str) -> QueueSettings:
        """The settings of one queue."""
        setting = await self._script_client.ask(lambda client: client.hget(self._key("queues"), queue))
        return setting_of((setting or b"").decode())

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
        """The schedule of this id, None if there is none or it cannot be read."""
        fields = [f"{what}{SEPARATOR}{schedule}" for what in ("spec", "state")]
        both = await self._script_client.ask(lambda client: client.hmget(self._key("crons"), fields))
        records = await self._crons({schedule: both} if all(both) else {})
        return records[0] if records else None

    async def crons(self) -> AsyncIterator[CronRecord]:
        """All readable schedules, in no order, in pages."""
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

    async def _crons(self, stored: dict[str, Any]) -> list[CronRecord]:
        readable = [cron for schedule, both in stored.items() if (cron := due_cron(schedule, *both)).spec is not None]
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
        """The status of the batch of this id, None if there is none."""
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
        """All readable batches, in no order, in pages."""
        cursor = 0
        while True:
            cursor, page = await self._script_client.ask(partial(self._batch_page, cursor))
            for name, raw in page.items():
                what, _, batch_id = name.decode(errors="replace").partition(SEPARATOR)
                if what == "state":
                    with suppress(PenstockError):
                        if batch := _batch(batch_id, raw):
                            yield batch
            if cursor == 0:
                return

    def _batch_page(self, cursor: int, client: Any) -> Any:
        return client.hscan(self._key("batches"), cursor, count=200)

    async def runs(self, most: int = 1000) -> dict[str, list[Run]]:
        """Worker → its running jobs, up to `most` jobs in the order of the workers' names."""
        leases = await self._script_client.ask(lambda client: client.zrange(self._key("leases"), 0, most))
        held = [member.decode().split(SEPARATOR) for member in leases if member]
        records = await self._script_client.ask(
            lambda client: client.hmget(self._key("jobs"), [row[2] for row in held] or [""])
        )
        runs: dict[str, list[Run]] = {}
        for (worker, _, job_id), raw in zip(held, records, strict=False):
            with suppress(msgspec.MsgspecError, TypeError):
                header = read_header(raw)
                runs.setdefault(worker, []).append(Run(job_id, header.task, header.attempt, header.started))
        return runs

    async def position(self, job_id: str) -> int | None:
        """How many jobs are before this one in its queue; None if it is not ready."""
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
        lane = await LaneViews(self._script_client).lane(stored)
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
        record, raw = await self._script_client.ask(lambda client: self._log_parts(client, job_id).execute())
        try:
            _, gone, lines = _log(raw) if raw else ([], 0, [])
            task = read_header(record).task if record else ""
        except msgspec.MsgspecError:
            return JobLog(0, [])
        show = self._codecs.shown_text
        return JobLog(gone, [LogLine(*line[:3], show("log", line[3], task, job_id)) for line in lines])

    def _log_parts(self, client: Any, job_id: str) -> Any:
        pipe = client.pipeline(transaction=False)
        pipe.hget(self._key("jobs"), job_id)
        pipe.hget(self._key("logs"), job_id)
        return pipe

    async def headers(self) -> AsyncIterator[tuple[str, Header]]:
        """All jobs with readable records, in no order, in pages."""
        cursor = 0
        while True:
            cursor, page = await self._script_client.ask(partial(self._page, cursor))
            for job_id, raw in page.items():
                if job_id:
                    with suppress(msgspec.MsgspecError, UnicodeDecodeError):  # the audit reports it
                        yield job_id.decode(), read_header(raw)
            if cursor == 0:
                return

    def _page(self, cursor: int, client: Any) -> Any:
        return client.hscan(self._key("jobs"), cursor, count=500)

    async def events(self, after: str = "-", count: int = 100) -> list[Event]:
        """The entries of the stream after the one with this id, an event per job."""
        start, key = after if after == "-" else f"({after}", self._key("events")
        entries = await self._script_client.ask(lambda client: client.xrange(key, min=start, max="+", count=count))
        return [event for entry_id, fields in entries for event in _lines(entry_id.decode(), fields[b"e"])]

    async def last_event(self) -> bytes:
        entries = await self._script_client.ask(lambda client: client.xrevrange(self._key("events"), count=1))
        return bytes(entries[0][0]) if entries else b""


def setting_of(text: str) -> QueueSettings:
    """The settings of a queue from their stored text."""
    limit, most = text.rpartition(" ")[2], _MAX_SIZE.search(text)
    return QueueSettings(
        text.startswith("paused"), int(limit) if limit.isdigit() else None, int(most[1]) if most else None
    )


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")


def _record(job_id: str, parts: list[bytes | None], codecs: Codecs) -> JobRecord | None:
    raw, payload, result, attempts = parts
    if not raw or not job_id:  # the entry without a name is a sentinel
        return None
    try:
        if payload is None:
            payload = read_payload(raw)
        header, history = read_header(raw), _history(attempts) if attempts else []
        opened = Opened(b"") if result is None else codecs.shown("result", result, header.task, job_id)
        return JobRecord(
            job_id,
            codecs.shown_header(header, job_id),
            codecs.shown_payload(payload, header.task, job_id) if payload else payload,
            None if result is None else opened.data,
            codecs.shown_attempts(history, header.task, job_id),
            opened.error,
        )
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
        for job in ids.split(SEPARATOR)  # without an id the event is about a whole queue: pause, resume
    ]
