"""What must hold of a ledger, whatever broke: each check gives what breaks it, with the job that it is about."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from penstock.engine.engine import MAX_CRASHES
from penstock.worker.run import SUSPECT_CRASHES
from tests.chaos.attempts import SOON, Attempt, History, Line
from tests.chaos.crew import KILLER
from tests.chaos.load import BURST, RATE

EARLY = 2_000  #: µs that a due time may be off by: the server counts in ms


@dataclass(frozen=True)
class Violation:
    """Something that must never be."""

    check: str
    job: str
    text: str
    since: int = 0  #: µs: where to look in the ledger
    until: int = 0


def check_ledger(history: History, *, kind: str) -> list[Violation]:
    """All checks that need nothing but the ledger; a promoted replica, or a wrong clock, excuses some."""
    checks: list[Callable[[History], Iterator[Violation]]] = [started_twice]
    if kind != "failover":
        checks += [overlaps, reruns, killers, orders, cancels]
    if kind == "chaos":
        checks += [times, rates]
    return [violation for check in checks for violation in check(history)]


def started_twice(history: History) -> Iterator[Violation]:
    """No start of a job happens twice: a fence names one."""
    for first, second in history.doubles:
        yield Violation("started twice", first.id, f"{first}; and again: {second}", first.start, second.start)


def overlaps(history: History) -> Iterator[Violation]:
    """Locks, limits, queues, batches, ordered lanes and unique keys; and no job runs beside itself."""
    held: dict[str, tuple[int, list[Attempt]]] = {}
    for attempt in history.attempts:
        facts = history.sent.get(attempt.id, {})
        for name, limit in (*facts.get("holds", {}).items(), (f"job:{attempt.id}", 1)):
            held.setdefault(name, (limit, []))[1].append(attempt)
    for name, (limit, attempts) in held.items():
        yield from _beyond(history, name, limit, sorted(attempts, key=lambda one: one.start))


def _beyond(history: History, name: str, limit: int, attempts: list[Attempt]) -> Iterator[Violation]:
    active: list[Attempt] = []
    for attempt in attempts:
        active = [one for one in active if one.end > attempt.start]
        rightful = [one for one in active if not history.may_be_lost(one, attempt.start)]
        if len(rightful) >= limit and not history.may_be_lost(attempt, attempt.start):
            beside = "; ".join(map(str, rightful))
            text = f"{name} allows {limit} at once; {attempt} started beside {beside}"
            yield Violation("overlap", attempt.id, text, min(one.start for one in rightful), attempt.start)
        active.append(attempt)


def reruns(history: History) -> Iterator[Violation]:
    """A job starts again only for a cause, and is charged for each process that died under it."""
    for name, attempts in history.of():
        for before, after in pairwise(attempts):
            if (text := _without_cause(history, before, after)) is not None:
                yield Violation("ran again", name, f"{text}: {before}; then {after}", before.start, after.start)


def _without_cause(history: History, before: Attempt, after: Attempt) -> str | None:
    died = history.died(before)
    killed = died is not None and died <= after.start
    lost = history.may_be_lost(before, after.start)
    if after.number < before.number:
        return None  # revived by an operator
    if before.how == "":
        if killed or lost:
            is_charged = after.number > before.number or lost or _is_innocent(history, before, after)
            return None if is_charged else "its process died under it, and it was not charged"
        return "it started again while its process lived"
    if before.how != "returned" or lost or _over_time(history, before):
        return None
    if killed and died is not None:
        unheard = died - before.end < SOON or history.outage(before, before.end, died)
        if unheard:
            return None if after.number > before.number else "its process died before its end was told, uncharged"
    return "it had returned, and nothing had happened to its worker"


def _is_innocent(history: History, before: Attempt, after: Attempt) -> bool:
    """Whether it was a suspect in a process of its own, and its worker's process died: that is not its doing."""
    worker_died = history.deaths.get(before.holder, after.start + 1) <= after.start
    return before.is_apart and before.crashes >= SUSPECT_CRASHES and worker_died


def killers(history: History) -> Iterator[Violation]:
    """A job that kills its process whenever it returned is charged each time, and never starts a fourth time."""
    for name, attempts in history.of():
        if history.sent.get(name, {}).get("task") != KILLER:
            continue
        for attempt in attempts:
            if attempt.number > MAX_CRASHES:
                text = f"it has killed its process {MAX_CRASHES} times, and ran again: {attempt}"
                yield Violation("killer", name, text, attempts[0].start, attempt.start)


def _over_time(history: History, attempt: Attempt) -> bool:
    timeout = history.sent.get(attempt.id, {}).get("timeout")
    return timeout is not None and attempt.end - attempt.start > timeout * 900_000


def orders(history: History) -> Iterator[Violation]:
    """Jobs of an ordered lane start in the order in which they were sent, each after the end of the one before."""
    lanes: dict[str, list[tuple[int, list[Attempt]]]] = {}
    for name, attempts in history.of():
        facts = history.sent.get(name, {})
        if "order" in facts and name not in history.rescheduled:  # an operator sent that one to another place
            lanes.setdefault(facts["order"], []).append((facts["number"], attempts))
    for lane, jobs in lanes.items():
        jobs.sort(key=lambda job: job[0])
        for (_, earlier), (_, later) in pairwise(jobs):
            last, first = max(earlier, key=lambda one: one.start), later[0]
            if last.start > first.start and not history.may_be_lost(first, last.start):
                text = f"{lane}: {first} started before {last}"
                yield Violation("order", first.id, text, first.start, last.start)


def cancels(history: History) -> Iterator[Violation]:
    """What was cancelled before it ran does not start any more."""
    for name, attempts in history.of():
        answered = history.cancelled.get(name)
        for attempt in attempts:
            if answered and attempt.start > answered["at"] and not history.may_be_lost(attempt, attempt.start):
                text = f"it was cancelled, and then {attempt}"
                yield Violation("cancel", name, text, answered["at"], attempt.start)


def times(history: History) -> Iterator[Violation]:
    """Nothing starts before it is due, or first of all after it expired. A fence is the time of its lease."""
    for name, attempts in history.of():
        sent, acked = history.sent.get(name), history.acked.get(name)
        if sent is None or name in history.rescheduled:
            continue
        first = attempts[0]
        if "delay" in sent and first.fence < sent["real"] + sent["delay"] * 1e6 - EARLY:
            yield _at("early", name, sent, first)
        answered = acked and acked["real"] + sent.get("expires", 0) * 1e6 + EARLY
        if answered and "expires" in sent and first.fence > answered and first.number == 1:
            yield _at("late", name, sent, first)


def _at(check: str, name: str, sent: Line, first: Attempt) -> Violation:
    seconds = (first.fence - sent["real"]) / 1e6
    text = f"{first} was leased {seconds:.3f} s after it was sent with delay={sent.get('delay')}"
    return Violation(check, name, f"{text}, expires={sent.get('expires')}", sent["at"], first.start)


def rates(history: History) -> Iterator[Violation]:
    """A lane with a rate never starts more than its burst and what the time between allows."""
    starts = sorted(one.fence for one in history.attempts if history.sent.get(one.id, {}).get("rated"))
    for i, first in enumerate(starts):
        for many, last in enumerate(starts[i : i + 100], start=1):
            if many > BURST + RATE * ((last - first) / 1e6 + 0.002) + 1:
                text = f"{many} started within {(last - first) / 1e6:.3f} s"
                yield Violation("rate", "", text)
                return
