"""The answers of the engine's calls, and how they are read from the replies of the scripts."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.engine.record.record import Running, read_header, read_running
from penstock.errors import PenstockError, QueueFull
from penstock.model.batch_state import BatchStatus, read_status
from penstock.model.header import Attempt, Header
from penstock.model.payload_codec import Codecs, may_be_sealed
from penstock.model.schedule import ScheduleSpec, Standing, unpack, unpack_standing

_history = msgspec.msgpack.Decoder(list[Attempt]).decode


class EnqueueAnswer(msgspec.Struct, frozen=True, gc=False):
    """The result for one job: `created`, `full`, or `exists` or `unique` with the id of the earlier job."""

    word: str
    id: str
    state: str


def checked(placed: EnqueueAnswer, queue: str) -> EnqueueAnswer:
    """The same answer; raises QueueFull if the queue took no more."""
    if placed.word == "full":
        raise queue_full(queue)
    return placed


def queue_full(queue: str) -> QueueFull:
    return QueueFull(
        f"queue {queue!r} is full: as many jobs wait in it as its max_size allows; this one was not stored"
    )


class Due(NamedTuple):
    """How many jobs were moved, when the next one is due (-1: never), and the server's time now."""

    moved: int
    next: int
    now: int


class Lease(msgspec.Struct, frozen=True, order=True, gc=False):
    """A worker's hold on a job."""

    id: str
    running: Running
    payload: bytes
    ready: Header  #: the fields that do not change while it runs; jobs with one label share it

    @property
    def header(self) -> Header:
        """The header of the running job."""
        return self.running.header()

    @property
    def attempt(self) -> int:
        """1 for the first run."""
        return self.ready.failures + self.ready.crashes + 1


class Leased(NamedTuple):
    """The answer to lease: `ok`, `unknown` or `stale`, whether to ask again at once, and the jobs."""

    word: str
    again: bool
    leases: list[Lease]
    unreadable: Sequence[str] = ()  #: ids of jobs whose record cannot be read


class Renewed(NamedTuple):
    """Per worker `ok` or `unknown`; (worker, id) of running jobs to cancel; how many other workers are late."""

    words: list[str]
    cancelling: list[tuple[str, str]]
    late: int = 0  #: other workers whose lease is over; their jobs should be reaped


class Watched(NamedTuple):
    """A job's state, or `missing`; result and error only once it is finished."""

    state: str
    header: Header | None
    result: bytes
    attempts: list[Attempt]
    closed: PenstockError | None = None  #: why the result cannot be opened here; then a text is in its place


class Chores(NamedTuple):
    """Members processed, when the next chore is due (-1: never), the server's time, and whether there is more."""

    moved: int
    next: int
    now: int
    more: bool


class Member(NamedTuple):
    """A member of a batch that has finished: its finish number, and how it ended."""

    number: int
    id: str
    watched: Watched


class WatchedBatch(NamedTuple):
    """The status of a batch, None if it is unknown; and a page of its finished members if it was asked for."""

    status: BatchStatus | None
    members: list[Member]
    last: int  #: finish number of the last member of the page, 0 if it is empty; inner batches have numbers, too


class DueCron(NamedTuple):
    """A schedule that is due; without a spec or a standing if this version cannot read them."""

    id: str
    spec: ScheduleSpec | None
    standing: Standing | None


class DueCrons(NamedTuple):
    """When the next schedule is due (-1: never), the server's time now, and the schedules that are due."""

    next: int
    now: int
    crons: list[DueCron]


def read_words(raw: list[bytes]) -> list[str]:
    return [word.decode() for word in raw]


def read_pair(raw: list[Any]) -> tuple[int, int]:
    return int(raw[0]), int(raw[1])


def read_due(raw: list[Any]) -> Due:
    return Due(int(raw[0]), int(raw[1]), int(raw[2]))


def read_ticked(raw: list[Any]) -> tuple[str, int]:
    return raw[0].decode(), int(raw[1])


def read_due_crons(raw: list[Any]) -> DueCrons:
    rows = zip(raw[2::3], raw[3::3], raw[4::3], strict=True)
    return DueCrons(int(raw[0]), int(raw[1]), [_due_cron(*row) for row in rows])


def _due_cron(schedule: bytes, spec: bytes, standing: bytes) -> DueCron:
    try:
        return due_cron(schedule.decode(), spec, standing)
    except UnicodeDecodeError:
        return DueCron(repr(schedule), None, None)


def due_cron(schedule: str, spec: bytes, standing: bytes) -> DueCron:
    """A schedule; its spec or standing is None if this version cannot read it."""
    try:
        return DueCron(schedule, unpack(spec), unpack_standing(standing))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return DueCron(schedule, None, None)


def read_placed(ids: Sequence[str], raw: bytes | list[bytes]) -> list[EnqueueAnswer]:
    """The answer for each job. The reply is a single word if all were created in that state."""
    if isinstance(raw, bytes):
        state = raw.decode()
        return [EnqueueAnswer("created", job_id, state) for job_id in ids]
    words = read_words(raw)
    return [EnqueueAnswer(*row) for row in zip(words[::3], words[1::3], words[2::3], strict=True)]


def read_leased(raw: list[Any]) -> Leased:
    rows = zip(raw[2::3], raw[3::3], raw[4::3], strict=True)
    leases, unreadable = [], []
    for job_id, header, payload in rows:
        try:
            running = read_running(header)
            leases.append(Lease(job_id.decode(), running, payload or running.payload or b"", running.ready))
        except (msgspec.MsgspecError, TypeError, IndexError):
            unreadable.append(job_id.decode())
    return Leased(raw[0].decode(), bool(raw[1]), leases, tuple(unreadable))


def read_pushed_lease(text: bytes) -> tuple[int, Leased]:
    """A pushed job: the number of the lease call that it answers, and the answer."""
    _, number, job_id, length, rest = text.split(b"\x1f", 4)
    record, payload = rest[: int(length)], rest[int(length) :]
    return int(number), read_leased([b"ok", 0, job_id, record, payload])


def read_watched(ids: Sequence[str], codecs: Codecs, raw: list[bytes]) -> list[Watched]:
    rows = zip(ids, raw[::4], raw[1::4], raw[2::4], raw[3::4], strict=True)
    return [_watched(codecs, job_id, state.decode(), *row) for job_id, state, *row in rows]


def _watched(codecs: Codecs, job_id: str, state: str, header: bytes, result: bytes, attempts: bytes) -> Watched:
    """An unreadable outcome counts as missing, so that it does not hide the outcomes of other jobs."""
    try:
        found = read_header(header) if header else None
        history = _history(attempts) if attempts else []
    except msgspec.MsgspecError:
        return Watched("missing", None, b"", [])
    if found is None:
        return Watched(state, None, result, history)
    closed = None
    if may_be_sealed(result):
        result, closed = codecs.shown("result", result, found.task, job_id)
    return Watched(state, found, result, codecs.shown_attempts(history, found.task, job_id), closed)


def read_chores(raw: list[Any]) -> Chores:
    return Chores(int(raw[0]), int(raw[1]), int(raw[2]), bool(raw[3]))


def read_watched_batch(codecs: Codecs, raw: list[bytes]) -> WatchedBatch:
    if not raw[0]:
        return WatchedBatch(None, [], 0)
    rows = list(zip(*(raw[i::5] for i in range(1, 6)), strict=True))
    members = [_member(codecs, int(row[0]), row[1].decode(), *row[2:]) for row in rows if not row[1].startswith(b"{")]
    return WatchedBatch(read_status(raw[0]), members, int(rows[-1][0]) if rows else 0)


def _member(codecs: Codecs, number: int, job_id: str, header: bytes, result: bytes, attempts: bytes) -> Member:
    watched = _watched(codecs, job_id, "missing", header, result if header else b"", attempts if header else b"")
    stored = watched.header
    return Member(number, job_id, watched._replace(state=stored.state) if stored else watched)


def read_renewed(raw: list[Any]) -> Renewed:
    flagged = read_words(raw[1])
    return Renewed(read_words(raw[0]), list(zip(flagged[::2], flagged[1::2], strict=True)), int(raw[2]))
