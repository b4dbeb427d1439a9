"""The audit's rules for lanes: compares the stored state of each lane with the records of its jobs.

More slots in use than the limit allows are no finding: the limit may have been lowered while the jobs ran.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

from penstock.engine.engine import Engine
from penstock.engine.keys import SEPARATOR
from penstock.engine.record.lane_entry import LaneSpec, specs_of
from penstock.model.header import WAITING, Header

Found = tuple[str, str | bytes, str]  #: rule, subject, text
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, TypeError, ValueError, AttributeError)


class Row(NamedTuple):
    """The state of a lane for one queue."""

    waiting: int
    worst: int
    shown: frozenset[str]


class LaneRecord(NamedTuple):
    """The stored record of a lane."""

    use: int
    tokens: float
    declared: LaneSpec
    differs: str
    rows: dict[str, Row]


def holds(header: Header, place: int) -> bool:
    """Whether a job has a slot of its lane at this place, counted from 1."""
    return header.state == "running" or (header.turn == place and header.state in {*WAITING, "dead"})


class LaneCounts:
    """The numbers of all lanes that follow from the records."""

    def __init__(self) -> None:
        self._holders: set[bytes] = set()
        self._use: Counter[str] = Counter()
        self._waiting: Counter[tuple[str, str]] = Counter()
        self._shown: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(dict)  #: id → priority
        self._queues: defaultdict[str, set[str]] = defaultdict(set)
        self._own_turn: set[tuple[str, str]] = set()  #: lanes whose job with the turn waits in the ordered lane itself
        self._owners: set[tuple[str, str]] = set()  #: lock and the waiting job that owns it

    def add_owner(self, job_id: str, header: Header) -> None:
        self._owners.add((specs_of(header)[0].name, job_id))

    def add(self, job_id: str, header: Header) -> None:
        for place, spec in enumerate(specs_of(header), 1):
            if holds(header, place):
                self._use[spec.name] += 1
                self._holders.add(f"{spec.name}{SEPARATOR}{job_id}".encode())
            if header.home == place and header.state in {"held", "ready"}:
                self._queues[spec.name].add(header.queue)
            if header.home == place and header.state == "held":
                self._waiting[spec.name, header.queue] += 1
                if header.turn == place:
                    self._own_turn.add((spec.name, header.queue))
            if header.home == place and header.state == "ready":
                self._shown[spec.name, header.queue][job_id] = header.priority

    def check(
        self, stored: dict[bytes, bytes], limits: dict[bytes, bytes], holders: set[bytes], openings: set[bytes]
    ) -> Iterator[Found]:
        owned = dict(_owned(stored))
        expected = self._holders - {f"{name}{SEPARATOR}{owner}".encode() for name, owner in owned.items()}
        yield from (("holders", member, "has no job that holds it") for member in holders - expected)
        yield from (("holders", member, "is missing") for member in expected - holders)
        yield from (("owners", name, f"is not that of {job}") for name, job in self._owners if owned.get(name) != job)
        by_hand = limits.keys() & {name.encode() for name in owned}
        yield from (("owners", name, "belongs to a job, though something was set by hand") for name in by_hand)
        named = self._use.keys() | self._queues.keys()
        yield from (("lanes", name, "is in use, but not known") for name in named if name.encode() not in stored)
        for name, raw in stored.items():
            try:
                read = _lane(name.decode(), raw)
                lane = self._resolved(name.decode(), read)
            except _UNREADABLE as error:
                yield "lanes", name, f"cannot be read: {error}"
            else:
                if _owner(read) and (read.declared != LaneSpec(read.declared.name) or read.differs):
                    yield "owners", name, "belongs to a job, though it is no lock"
                yield from self._check_lane(name.decode(), lane)
                yield from _check_idle(name, lane, idle=name.decode() not in named, opening=name in openings)
                yield from self._check_open(name.decode(), lane, limits.get(name), opening=name in openings)
        yield from (("openings", name, "is no lane that is in use") for name in openings - stored.keys())

    def _resolved(self, name: str, lane: LaneRecord) -> LaneRecord:
        """A lock with an owner, written as an ordinary lane: its owner either runs or is ready."""
        if not (owner := _owner(lane)):
            return lane
        ((queue, row),) = lane.rows.items()
        if f"{name}{SEPARATOR}{owner}".encode() in self._holders:
            return lane._replace(use=1, rows={queue: Row(row.waiting, 0, frozenset())})
        return lane._replace(use=0)

    def _check_lane(self, name: str, lane: LaneRecord) -> Iterator[Found]:
        if lane.use != self._use[name]:
            yield "lane_counts", name, f"says {lane.use} in use, counted {self._use[name]}"
        for queue in self._queues.get(name, set()) | lane.rows.keys():
            row, shown = lane.rows.get(queue, Row(0, 0, frozenset())), self._shown.get((name, queue), {})
            if row.waiting != self._waiting[name, queue]:
                counted = self._waiting[name, queue]
                yield "lane_counts", name, f"says {row.waiting} of {queue!r} wait, counted {counted}"
            if row.shown != shown.keys():
                yield "lanes", name, f"says {sorted(row.shown)} of {queue!r} are shown, found {sorted(shown)}"
            if row.worst < max(shown.values(), default=0):
                yield "lane_counts", name, f"says that no priority of {queue!r} above {row.worst} is shown"

    def _check_open(self, name: str, lane: LaneRecord, by_hand: bytes | None, *, opening: bool) -> Iterator[Found]:
        """A lane with room must have a ready job of each queue that waits in it, or an opening time."""
        limit = _limit(lane.declared, by_hand)
        for queue, row in lane.rows.items():
            own = (name, queue) in self._own_turn
            if row.waiting and not row.shown and lane.use - own < limit and not opening:
                yield "lanes", name, f"has room, but none of {row.waiting} jobs of {queue!r} is shown"


async def miscounts(engine: Engine, name: str) -> bool:
    """Whether the numbers of the lane differ from the entries of its jobs, all read at one moment."""
    lanes, holders, held = map(engine.keys, ("lanes", "holders", "held"))

    async def ask(client: Any) -> bool:
        raw = await client.hget(lanes, name)
        queues = list(_lane(name, raw).rows) if raw else []
        async with client.pipeline(transaction=True) as pipe:
            pipe.hget(lanes, name)
            _count(pipe, holders, name)
            for queue in queues:
                _count(pipe, held, f"{name}{SEPARATOR}{queue}")
            raw, use, *waiting = await pipe.execute()
        lane = _lane(name, raw) if raw else LaneRecord(0, 0, LaneSpec(name), "", {})
        said = [lane.rows[queue].waiting if queue in lane.rows else 0 for queue in queues]
        return (0 if _owner(lane) else lane.use, said) != (use, waiting)

    return await engine.script_client.ask(ask)


def _owner(lane: LaneRecord) -> str:
    """The job that owns a lock, from when it is ready until it has run; None for other lanes."""
    shown = [job for row in lane.rows.values() for job in row.shown] if lane.use == -1 else []
    return shown[0] if len(shown) == 1 else ""


def _owned(stored: dict[bytes, bytes]) -> Iterator[tuple[str, str]]:
    for name, raw in stored.items():
        with suppress(*_UNREADABLE):
            if owner := _owner(_lane(name.decode(), raw)):
                yield name.decode(), owner


def _count(pipe: Any, key: bytes, start: str) -> None:
    pipe.zlexcount(key, f"[{start}{SEPARATOR}", f"({start} ")


def _check_idle(name: bytes, lane: LaneRecord, *, idle: bool, opening: bool) -> Iterator[Found]:
    if idle and not (lane.declared.rate and opening):
        yield "lanes", name, "is kept, but nobody uses it or waits for it"


def _lane(name: str, raw: bytes) -> LaneRecord:
    use, tokens, _, declared, differs, *rest = msgspec.msgpack.decode(raw)
    spec = LaneSpec(name, *declared.split(SEPARATOR)) if declared else LaneSpec(name)
    queues: list[tuple[Any, ...]] = list(zip(*(rest[i::4] for i in range(4)), strict=True))
    rows = {
        queue: Row(waiting, worst, frozenset(filter(None, ids.split(SEPARATOR))))
        for queue, waiting, worst, ids in queues
    }
    return LaneRecord(use, tokens, spec, differs, rows)


def _limit(declared: LaneSpec, by_hand: bytes | None) -> float:
    limit, paused = msgspec.msgpack.decode(by_hand) if by_hand else (-1, 0)
    allowed = limit if limit >= 0 else float(declared.limit or "inf")
    return 0 if paused else min(allowed, 1) if declared.kind else allowed
