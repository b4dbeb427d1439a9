"""What the engine's calls answer, and how it is read from what the scripts return."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.engine.record.record import Running, read_header, read_running
from penstock.errors import QueueFull
from penstock.model.batch_state import BatchStatus, read_status
from penstock.model.header import Attempt, Header
from penstock.model.schedule import ScheduleSpec, Standing, unpack, unpack_standing

_history = msgspec.msgpack.Decoder(list[Attempt]).decode


class EnqueueAnswer(msgspec.Struct, frozen=True, gc=False):
    """What became of a job: `created`, `full`, or `exists` or `unique` with the one that holds its place."""

    word: str
    id: str
    state: str


def checked(placed: EnqueueAnswer, queue: str) -> EnqueueAnswer:
    """The same; QueueFull if it was not taken."""
    if placed.word == "full":
        raise queue_full(queue)
    return placed


def queue_full(queue: str) -> QueueFull:
    return QueueFull(
        f"queue {queue!r} is full: as many jobs wait in it as its max_size allows; this one was not stored"
    )


class Due(NamedTuple):
    """How many were moved; when the next one is due by the server's clock (-1: none), and what that says now."""

    moved: int
    next: int
    now: int


class Lease(msgspec.Struct, frozen=True, order=True, gc=False):
    """A worker's hold on a job."""

    id: str
    found: Running
    payload: bytes
    ready: Header  #: what does not change while it runs, and is shared by those alike

    @property
    def header(self) -> Header:
        """As it is while the job runs."""
        return self.found.header()

    @property
    def attempt(self) -> int:
        """1 for the first run."""
        return self.ready.failures + self.ready.crashes + 1


class Leased(NamedTuple):
    """The answer to lease: `ok`, `unknown` or `stale`, whether to ask again at once, and the jobs."""

    word: str
    again: bool
    leases: list[Lease]
    unreadable: Sequence[str] = ()  #: jobs whose header was written by somebody else, it seems


class Renewed(NamedTuple):
    """Per worker `ok` or `unknown`; (worker, id) of running jobs whose cancelling was asked for; the late."""

    words: list[str]
    cancelling: list[tuple[str, str]]
    late: int = 0  #: other workers that are past their life: somebody should reap


class Watched(NamedTuple):
    """A job's state, or `missing`; what else is known of it only once it is finished."""

    state: str
    header: Header | None
    result: bytes
    attempts: list[Attempt]


class Chores(NamedTuple):
    """How much was done; when the next chore is due (-1: none), the server's now; whether this one goes on."""

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
    """How a batch stands, None if there is none; and a page of its finished members, if it was asked for."""

    status: BatchStatus | None
    members: list[Member]
    last: int  #: finish number of the last, 0 without one; batches inside have numbers, too


class DueCron(NamedTuple):
    """A schedule that is due; without a spec or a standing if this version cannot read them."""

    id: str
    spec: ScheduleSpec | None
    standing: Standing | None


class DueCrons(NamedTuple):
    """When the next one is due (-1: never), what the server's clock says now, and those that are."""

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
    """A schedule as far as it can be read."""
    try:
        return DueCron(schedule, unpack(spec), unpack_standing(standing))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return DueCron(schedule, None, None)


def read_placed(ids: Sequence[str], raw: bytes | list[bytes]) -> list[EnqueueAnswer]:
    """What became of these; one word, if all of them were created and have that state."""
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
            found = read_running(header)
            leases.append(Lease(job_id.decode(), found, payload or found.payload or b"", found.ready))
        except (msgspec.MsgspecError, TypeError, IndexError):
            unreadable.append(job_id.decode())
    return Leased(raw[0].decode(), bool(raw[1]), leases, tuple(unreadable))


def read_letter(text: bytes) -> tuple[int, Leased]:
    """A job that came by letter: the number of the call that it answers, and the answer."""
    _, number, job_id, length, rest = text.split(b"\x1f", 4)
    record, payload = rest[: int(length)], rest[int(length) :]
    return int(number), read_leased([b"ok", 0, job_id, record, payload])


def read_watched(raw: list[bytes]) -> list[Watched]:
    rows = zip(raw[::4], raw[1::4], raw[2::4], raw[3::4], strict=True)
    return [_watched(state.decode(), *row) for state, *row in rows]


def _watched(state: str, header: bytes, result: bytes, attempts: bytes) -> Watched:
    """What cannot be read is as if it was gone: it must not keep the others from those who wait for them."""
    try:
        return Watched(state, read_header(header) if header else None, result, _history(attempts) if attempts else [])
    except msgspec.MsgspecError:
        return Watched("missing", None, b"", [])


def read_chores(raw: list[Any]) -> Chores:
    return Chores(int(raw[0]), int(raw[1]), int(raw[2]), bool(raw[3]))


def read_watched_batch(raw: list[bytes]) -> WatchedBatch:
    if not raw[0]:
        return WatchedBatch(None, [], 0)
    rows = list(zip(*(raw[i::5] for i in range(1, 6)), strict=True))
    found = [_member(int(row[0]), row[1].decode(), *row[2:]) for row in rows if not row[1].startswith(b"{")]
    return WatchedBatch(read_status(raw[0]), found, int(rows[-1][0]) if rows else 0)


def _member(number: int, job_id: str, header: bytes, result: bytes, attempts: bytes) -> Member:
    watched = _watched("missing", header, result if header else b"", attempts if header else b"")
    found = watched.header
    return Member(number, job_id, watched._replace(state=found.state) if found else watched)


def read_renewed(raw: list[Any]) -> Renewed:
    flagged = read_words(raw[1])
    return Renewed(read_words(raw[0]), list(zip(flagged[::2], flagged[1::2], strict=True)), int(raw[2]))
