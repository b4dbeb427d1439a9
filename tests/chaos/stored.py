"""What must hold of what the queue itself says at the end, beside the ledger: by its public interface and its audit."""

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

from penstock import Penstock
from penstock.engine.engine import MAX_CRASHES
from penstock.engine.read.views import JobRecord, Views
from penstock.engine.repair.audit import audit
from penstock.engine.repair.doctor import examine
from penstock.errors import PenstockError
from penstock.model.codec import decode_any
from penstock.model.header import FINISHED
from tests.chaos.attempts import Attempt, History, pid_of
from tests.chaos.checks import Violation
from tests.chaos.crew import KILLER
from tests.engine.factories import raw

AT_ONCE = 50
SHOWN = 10
PROGRESS = 20.0  #: seconds in which one more job ends while nothing breaks
#: Entries that may be left when all workers have gone. A key has one that keeps it alive; statistics live two hours.
LEFT = {"workers": 3, "nodes": 3, "calls": 3, "idle": 3, "waiting": 3, "leases": 1, "holders": 1, "stats": 5000}


async def until_finished(app: Penstock, seconds: float) -> list[Violation]:
    """Wait until every job has ended; those that have not, and why.

    A lock takes one job after the other: it is waited for longer than that while jobs go on to end.
    """
    loop = asyncio.get_running_loop()
    until, fewest = loop.time() + seconds, math.inf
    while loop.time() < until:
        with contextlib.suppress(PenstockError):
            counts = await app.client.views.counts()
            left = sum(n for row in counts.values() for state, n in row.items() if state not in FINISHED)
            if not left:
                return []
            if left < fewest:
                until, fewest = max(until, loop.time() + PROGRESS), left
        await asyncio.sleep(0.2)
    return [Violation("stuck", name, text) async for name, text in _unfinished(app)]


async def _unfinished(app: Penstock) -> AsyncIterator[tuple[str, str]]:
    """Those that run first: the others may wait for them."""
    found = [(header.state, name, header) async for name, header in app.client.views.headers()]
    stuck = [one for one in found if one[0] not in FINISHED]
    for state, name, header in sorted(stuck, key=lambda one: one[0] != "running")[:SHOWN]:
        reason = header.reason or "no reason"
        yield name, f"one of {len(stuck)}: {state}, {reason}, {header.claim!r}: {await app.client.views.explain(name)}"


async def check_jobs(apps: list[Penstock], history: History, *, kind: str) -> list[Violation]:
    """Every acknowledged job has ended, by the attempt that had it last; nobody was charged for nothing."""
    found: list[Violation] = []
    attempts = dict(history.of())
    for app in apps:
        hand = app is not apps[0]
        names = [name for name, line in history.sent.items() if bool(line.get("hand")) is hand]
        async for name, record in _records(app.client.views, names):
            found += _check_job(history, name, record, attempts.get(name, []), kind)
    return found


async def _records(views: Views, names: list[str]) -> AsyncIterator[tuple[str, JobRecord | None]]:
    for at in range(0, len(names), AT_ONCE):
        page = names[at : at + AT_ONCE]
        for name, record in zip(page, await asyncio.gather(*map(views.job, page)), strict=True):
            yield name, record


def _check_job(
    history: History, name: str, record: JobRecord | None, attempts: list[Attempt], kind: str
) -> Iterator[Violation]:
    acked = history.acked.get(name)
    since = history.sent[name]["at"]
    if record is None:
        if acked and acked["created"] and kind != "failover" and name not in history.discarded:
            yield Violation("lost", name, "it was acknowledged, and nothing is known of it", since, acked["at"])
        return
    header = record.header
    if header.state not in FINISHED or kind == "failover":
        return  # told as stuck
    if header.state == "done":
        yield from _check_winner(name, record, attempts)
    for charge in record.attempts:
        if charge.outcome == "crash" and not _has_cause(history, charge.worker.split("\x1f")[0], attempts):
            yield Violation(
                "charged", name, f"attempt {charge.number} of {charge.worker} as a crash: {charge.error}", since
            )
    if header.task == KILLER:
        yield from _check_killer(name, record, since, returns=history.sent[name]["after"] is not None)
    if header.reason == "crash_loop":
        hit = [one for one in attempts if history.died(one) or history.may_be_lost(one, one.end + 10**9)]
        hits = len(hit) + _charged_unstarted(history, record, attempts)
        if hits < MAX_CRASHES:
            text = f"buried as crash_loop, but only {hits} of its leases were hit: {attempts}"
            yield Violation("crash loop", name, text, since, attempts[-1].end if attempts else since)


def _check_killer(name: str, record: JobRecord, since: int, *, returns: bool) -> Iterator[Violation]:
    """It was buried after so many crashes, unless it was cancelled, or settled before its process died."""
    header = record.header
    is_buried = header.state == "dead" and (header.reason, header.crashes) == ("crash_loop", MAX_CRASHES)
    if not (is_buried or header.state == "cancelled" or (returns and header.state == "done")):
        text = f"it kills its process, and is {header.state} ({header.reason}) after {header.crashes} crashes"
        yield Violation("killer", name, text, since)


def _check_winner(name: str, record: JobRecord, attempts: list[Attempt]) -> Iterator[Violation]:
    if not attempts:
        yield Violation("not run", name, "it is done, and never started")
    elif record.result and (won := decode_any(record.result)) != attempts[-1].fence:
        text = f"its result is that of fence {won}, but the last to start were {attempts[-2:]}"
        yield Violation("winner", name, text, attempts[0].start, attempts[-1].end)


def _has_cause(history: History, worker: str, attempts: list[Attempt]) -> bool:
    """Whether its worker, or its own process, died or may have lost its lease."""
    pid = pid_of(worker)
    groups = {one.group for one in history.attempts if one.holder == pid}
    hit = any(history.losses.get(group) for group in groups) or bool(history.starved)
    return (
        hit
        or worker in history.reaped
        or pid in history.deaths
        or any(one.holder == pid and history.died(one) for one in attempts)
    )


def _charged_unstarted(history: History, record: JobRecord, attempts: list[Attempt]) -> int:
    """How often a worker that did not start it lost it with its lease: whoever reaps it cannot know that."""
    groups = {one.holder: one.group for one in history.attempts}
    pids = [pid_of(charge.worker.split("\x1f")[0]) for charge in record.attempts if charge.outcome == "crash"]
    unstarted = [pid for pid in pids if pid not in {one.holder for one in attempts}]
    return sum(bool(history.losses.get(groups.get(pid, "")) or history.starved) for pid in unstarted)


async def check_batches(app: Penstock, history: History, *, kind: str) -> list[Violation]:
    """Each has ended, and told so once in each generation, with the numbers that its members have."""
    found: list[Violation] = []
    told: dict[tuple[str, int], set[str]] = {}
    for line in history.thens:
        told.setdefault((line["batch"], line["generation"]), set()).add(line["id"])
    for (batch, generation), jobs in told.items():
        if len(jobs) > 1 and kind != "failover":
            found.append(Violation("then", batch, f"generation {generation} has ended more than once: {jobs}"))
    if kind == "failover":
        return found
    for batch in history.sealed:
        found += await _check_batch(app, history, batch, told)
    return found


async def _check_batch(
    app: Penstock, history: History, batch: str, told: dict[tuple[str, int], set[str]]
) -> list[Violation]:
    status = await (await app.get_batch(batch)).status()
    since = history.batches[batch]["at"]
    found = [
        Violation("then", batch, f"generation {generation} of {status.generation} has told nobody: {status}", since)
        for generation in range(1, status.generation + 1)
        if (batch, generation) not in told
    ]
    if status.state != "ended":
        return [Violation("batch", batch, f"it was sealed and has not ended: {status}", since)]
    members: Counter[str] = Counter([job.state async for job in app.jobs(batch=batch)])
    numbers = {"done": status.done, "dead": status.dead, "cancelled": status.cancelled}
    if any(members[state] != number for state, number in numbers.items()) or status.total != members.total():
        found.append(Violation("batch", batch, f"its members are {dict(members)}, but it says {status}", since))
    lasts = [line for line in history.thens if line["batch"] == batch and line["generation"] == status.generation]
    if any({name: line[name] for name in numbers} != numbers or line["total"] != status.total for line in lasts):
        found.append(Violation("then", batch, f"it was told {lasts[-1]}, but it says {status}", since))
    return found


async def check_system(app: Penstock) -> list[Violation]:
    """The doctor finds nothing wrong, workers still there."""
    examined = await examine(app.client.engine, app.tasks)
    return [
        Violation("doctor", one.subject, f"{one.rule}: {one.text}") for one in examined.findings if one.level == "wrong"
    ]


async def check_rest(app: Penstock) -> list[Violation]:
    """When all workers have gone the audit is clean, and little is left of them."""
    found = [Violation("audit", str(one.subject), f"{one.rule}: {one.text}") for one in await audit(app.client.engine)]
    client: Any = await raw(app.client.engine)
    for name, most in LEFT.items():
        key = app.client.engine.keys(name)
        size = await (client.zcard(key) if (await client.type(key)) == b"zset" else client.hlen(key))
        if size > most:
            found.append(Violation("left", name, f"{size} entries, where at most {most} should be left"))
    return found
