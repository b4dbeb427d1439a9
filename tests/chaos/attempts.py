"""The ledger read back: who ran what from when to when, and which attempts may have lost their lease by a fault."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.census import Census
from tests.chaos.crew import KINDS, STREAM_LIFE

SOON = 1_000_000  #: µs within which an end is settled, if nothing is in the way
#: A lease is renewed every third of it, so that the last renewal may be so much older than what stopped the next one.
LEAST = 0.6
STARVED = 0.3  #: of a life: when this machine was so busy for so long, a renewal may have been late for that
REAPED = "reap-live"  #: the fault that takes the jobs of one live worker
LOST = {"stop-worker", "stop-group", "stall"}  #: faults that keep a whole group from renewing
KILLED = {"kill-child", "kill-job-process", "kill-worker", "stall-and-kill"}
AWAY = {"kill-server", "stop-server", "server-away", "failover"}
SERVER = {"kill-server", "stop-server", "server-away", "failover", "full"}

SUPERVISED = {kind.letter for kind in KINDS if kind.supervised}

Line = dict[str, Any]


@dataclass(frozen=True)
class Span:
    """A time in which something was broken, in µs."""

    since: int
    until: int
    kind: str = ""

    def touches(self, since: int, until: int) -> bool:
        return self.since <= until and self.until >= since


@dataclass
class Attempt:
    """A start, and how it ended; one without an end was alive until its process was last seen."""

    id: str
    fence: int
    number: int
    crashes: int
    group: str
    pid: int
    holder: int  #: the process of its worker
    worker: str
    start: int
    end: int
    how: str = ""  #: "returned", the name of an exception, or nothing if its process died under it

    @property
    def is_apart(self) -> bool:
        """Whether it ran in a process of its own: such a job does not know its worker."""
        return not self.worker

    def __str__(self) -> str:
        how = self.how or "cut off"
        return f"{self.id} fence {self.fence} attempt {self.number} in {self.group} pid {self.pid}: {how}"


@dataclass
class History:
    """All that the ledger says, sorted."""

    sent: dict[str, Line] = field(default_factory=dict)
    acked: dict[str, Line] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    doubles: list[tuple[Attempt, Attempt]] = field(default_factory=list)  #: starts with one id and fence
    faults: list[Line] = field(default_factory=list)
    starved: list[Span] = field(default_factory=list)
    thens: list[Line] = field(default_factory=list)
    cancelled: dict[str, Line] = field(default_factory=dict)
    batches: dict[str, Line] = field(default_factory=dict)
    sealed: set[str] = field(default_factory=set)
    rescheduled: set[str] = field(default_factory=set)
    discarded: set[str] = field(default_factory=set)  #: as far as they had ended by then
    losses: dict[str, list[Span]] = field(default_factory=dict)
    reaped: dict[str, Span] = field(default_factory=dict)  #: live workers that were taken for dead by hand
    deaths: dict[int, int] = field(default_factory=dict)  #: pid → µs, of processes that live no more

    def of(self) -> Iterator[tuple[str, list[Attempt]]]:
        """Jobs with their attempts, in the order of their fences."""
        jobs: dict[str, list[Attempt]] = {}
        for attempt in self.attempts:
            jobs.setdefault(attempt.id, []).append(attempt)
        for name, attempts in jobs.items():
            yield name, sorted(attempts, key=lambda one: one.fence)

    def may_be_lost(self, attempt: Attempt, at: int) -> bool:
        """Whether the job may be another's by then: its worker was taken for dead, or a fault kept it from renewing."""
        if any(span.since <= at for span in self._reaps(attempt)):
            return True
        life = life_of(attempt)
        spans = self.losses.get(attempt.group, ())
        if any(_is_enough(span, LEAST * life, at) and span.until >= attempt.start for span in spans):
            return True
        since = min(attempt.start, at - life)
        late = [min(span.until, at) - max(span.since, since - life) for span in self.starved]
        return sum(one for one in late if one > 0) >= STARVED * life

    def _reaps(self, attempt: Attempt) -> list[Span]:
        """When its worker was taken for dead; a job that does not know its worker may have started just before."""
        if not attempt.is_apart:
            return [self.reaped[attempt.worker]] if attempt.worker in self.reaped else []
        spans = [span for worker, span in self.reaped.items() if pid_of(worker) == attempt.holder]
        return [span for span in spans if attempt.start <= span.until + SOON]

    def died(self, attempt: Attempt) -> int | None:
        """When its worker or its own process died, if it did."""
        return min((self.deaths[pid] for pid in (attempt.pid, attempt.holder) if pid in self.deaths), default=None)

    def around(self, since: int, until: int, margin: int = 3_000_000) -> list[Line]:
        """The faults of that time."""
        return [one for one in self.faults if one["since"] <= until + margin and one["until"] >= since - margin]

    def outage(self, attempt: Attempt, since: int, until: int) -> bool:
        """Whether its worker may have had no server then."""
        for fault in self.faults:
            near = fault["since"] <= until and fault["until"] + SOON >= since
            if near and (fault["kind"] in SERVER or attempt.group == fault.get("group") or _reaches(fault, attempt)):
                return True
        return any(span.touches(since, until) for span in self.starved)


def pid_of(worker: str) -> int:
    """The process of a worker; 0 if the name does not say it."""
    parts = worker.rsplit("-", 2)
    return int(parts[1]) if len(parts) == 3 and parts[1].isdigit() else 0


def _is_enough(span: Span, least: float, at: int) -> bool:
    return span.until - span.since >= least and span.since + least <= at


def _reaches(fault: Line, attempt: Attempt) -> bool:
    return attempt.group.partition("-")[0] in fault.get("letters", ())


def life_of(attempt: Attempt) -> int:
    """µs."""
    lives = {kind.letter: kind.life for kind in KINDS}
    seconds = STREAM_LIFE if attempt.worker.startswith("stream-") else lives[attempt.group.partition("-")[0]]
    return int(seconds * 1_000_000)


def history(lines: Iterable[Line], census: Census) -> History:
    """Read a ledger; the census says until when processes lived, and who started them."""
    last_alive, alive, roots = census.last_alive, census.alive, dict[str, int]()
    made = History(deaths={pid: at for pid, at in last_alive.items() if pid not in alive})
    begun: dict[tuple[str, int], list[Attempt]] = {}
    for line in lines:
        match line["what"]:
            case "group":
                roots[line["name"]] = line["pid"]
            case "start":
                if not line["worker"]:
                    supervised = line["group"].partition("-")[0] in SUPERVISED
                    root = roots.get(line["group"], 0)
                    line["holder"] = _holder(line["holder"], root, census.parents, is_supervised=supervised)
                begun.setdefault((line["id"], line["fence"]), []).append(_begun(line, last_alive))
            case "end":
                _ended(begun.get((line["id"], line["fence"]), []), line)
            case _:
                _noted(made, line)
    away = [Span(fault["since"], fault["until"]) for fault in made.faults if fault["kind"] in AWAY]
    made.starved = [span for span in made.starved if not any(one.touches(span.since, span.until) for one in away)]
    made.attempts = [attempt for attempts in begun.values() for attempt in attempts]
    made.doubles = [(attempts[0], attempts[1]) for attempts in begun.values() if len(attempts) > 1]
    return made


def _noted(made: History, line: Line) -> None:
    match line["what"]:
        case "sent":
            made.sent.setdefault(line["id"], line)
        case "acked":
            _acked(made, line)
        case "fault":
            made.faults.append(line)
            if line["kind"] in LOST:
                made.losses.setdefault(line["group"], []).append(Span(line["since"], line["until"], line["kind"]))
            if line["kind"] == REAPED:
                made.reaped[line["worker"]] = Span(line["since"], line["until"], REAPED)
        case "starved" | "slow":
            made.starved.append(Span(line["since"], line["until"], line["what"]))
        case "then":
            made.thens.append(line)
        case "cancelled" if line["answer"] == "cancelled":
            made.cancelled.setdefault(line["id"], line)
        case "batch":
            made.batches[line["id"]] = line
        case "batch-sealed":
            made.sealed.add(line["id"])
        case "rescheduled":
            made.rescheduled.add(line["id"])
        case "discarded":
            made.discarded.add(line["id"])


def _ended(begun: list[Attempt], line: Line) -> None:
    for attempt in begun:
        if attempt.pid == line["pid"] and not attempt.how:
            attempt.end, attempt.how = line["at"], line["how"]
            return


def _acked(made: History, line: Line) -> None:
    before = made.acked.get(line["id"])
    if before is None or (line["created"] and not before["created"]):
        made.acked[line["id"]] = line


def _holder(pid: int, root: int, parents: dict[int, int], *, is_supervised: bool) -> int:
    """The worker above a process that it has started, maybe by others: a child of the supervisor, or the program."""
    worker = pid
    while worker in parents and worker != root and (parents[worker] != root or not is_supervised):
        worker = parents[worker]
    return worker if worker == root or worker in parents else pid


def _begun(line: Line, last_alive: dict[int, int]) -> Attempt:
    seen: list[int] = [last_alive.get(int(pid), int(line["at"])) for pid in (line["pid"], line["holder"])]
    return Attempt(
        line["id"],
        line["fence"],
        line["attempt"],
        line["crashes"],
        line["group"],
        line["pid"],
        line["holder"],
        line["worker"],
        line["at"],
        max(line["at"], min(seen)),
    )
