"""Batches under load: streamed in by one producer while two processes drain; priorities and turns between batches.

Small here, and at full size with `-m long`: a million members, a hundred thousand that a small batch has to pass.
"""

import contextlib
import os
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Batch, Penstock
from penstock.engine.engine import Engine, Retention
from tests.engine.factories import raw
from tests.servers import Server, running
from tests.worker.harness import Crew, crew_at, tree

LIMIT = 80
CHUNK = 1_000


@pytest.fixture
async def loaded(tmp_path: Path) -> AsyncIterator[Crew]:
    with running(Server("--appendonly", "no")) as server:
        async with crew_at(tmp_path, server.url) as crew:
            yield crew


def memory(*pids: int) -> float:
    """MB in use by processes."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def server_memory(engine: Engine) -> float:
    client: Any = await raw(engine)
    with contextlib.suppress(Exception):  # not every server can
        await client.execute_command("MEMORY", "PURGE")
    return float((await client.info("memory"))["used_memory"]) / 2**20


async def forget_everything(engine: Engine, batch: Batch | None = None) -> None:
    """As if all retention had passed."""
    if batch is not None:
        await (await raw(engine)).zadd(engine.keys("chores"), {f"forget\x1f{batch.id}": 0}, xx=True)
    while (await engine.prune(Retention(finished=0, tombs=0, tomb_life=0, dead=0)))[1]:
        pass
    while (await engine.do_chores()).moved:
        pass
    await (await raw(engine)).xtrim(engine.keys("events"), maxlen=1, approximate=False)  # they are bounded by number


@pytest.mark.parametrize(
    "members", [4_000, pytest.param(1_000_000, marks=[pytest.mark.long, pytest.mark.timeout(7200)], id="a-million")]
)
async def test_members_are_streamed_in_while_two_processes_drain(loaded: Crew, members: int) -> None:
    app, task, engine = loaded.app, loaded.tasks.bare, loaded.app.client.engine
    supervisor = await loaded.started("-p", "2", "-c", "100", children=2, lease="10s")
    plain = await _drain_plain(app, task, max(members // 10, 2_000))
    await forget_everything(engine)
    before = await server_memory(engine)
    own, others = memory(os.getpid()), memory(supervisor.pid, *tree(supervisor.pid))
    began, seen = time.monotonic(), 0
    async with app.batch("streamed", limit=LIMIT) as batch:
        for start in range(0, members, CHUNK):
            await batch.add_many(task.call() for _ in range(start, min(start + CHUNK, members)))
            seen = max(seen, await batch.running())
    status = await batch.wait(timeout=7000)
    rate = members / (time.monotonic() - began)
    grown = memory(os.getpid()) - own, memory(supervisor.pid, *tree(supervisor.pid)) - others
    assert (status.total, status.done, status.pending) == (members, members, 0)
    assert seen <= LIMIT
    streamed = 0
    async for job in batch.as_completed():
        assert await job.result() is None
        streamed += 1
    assert streamed == members
    reading = memory(os.getpid()) - own
    await forget_everything(engine, batch)
    after = await server_memory(engine)
    print(
        f"{members:,} members: {rate:,.0f}/s, plain {plain:,.0f}/s ({rate / plain:.0%}); {seen} of {LIMIT} at once; "
        f"producer grew {grown[0]:.0f} MB, {reading:.0f} MB after reading all; workers {grown[1]:.0f} MB; "
        f"server {before:.1f} MB before, {after:.1f} MB after"
    )
    assert max(*grown, reading) < 50
    assert after < before * 1.1 + 5
    assert members < 1_000_000 or rate > plain * 0.5


async def _drain_plain(app: Penstock, task: Any, many: int) -> float:
    """Jobs per second without a batch, streamed in the same way."""
    began, last = time.monotonic(), None
    for start in range(0, many, CHUNK):
        jobs = await app.enqueue_many(task.call() for _ in range(start, min(start + CHUNK, many)))
        last = jobs[-1]
    assert last is not None
    await last.result(timeout=600)
    return many / (time.monotonic() - began)


@pytest.mark.parametrize(
    "others", [1_000, pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(1200)], id="behind-100-000")]
)
async def test_a_small_urgent_batch_passes_a_big_one(loaded: Crew, others: int) -> None:
    app, task = loaded.app, loaded.tasks.nap
    worker = await loaded.started("-p", "1", "-c", "10", lease="10s")
    rounds = 5 if others > 1_000 else 1
    alone = statistics.median([await _small(app, task) for _ in range(rounds)])
    big = await app.batch("big", priority=50).open()
    for _ in range(0, others, CHUNK):
        await big.add_many(task.call() for _ in range(CHUNK))
    behind = statistics.median([await _small(app, task) for _ in range(rounds)])
    print(f"10 jobs of 20 ms: {alone * 1000:.0f} ms alone, {behind * 1000:.0f} ms behind {others:,}")
    assert (await big.status()).state != "ended"
    assert rounds == 1 or behind < 5 * alone
    await big.cancel()
    await big.wait(timeout=120)
    await loaded.stop(worker)  # it prunes what was cancelled, and an audit reads what stands still


async def _small(app: Penstock, task: Any) -> float:
    began = time.monotonic()
    async with app.batch("small", priority=0) as batch:
        await batch.add_many(task.call() for _ in range(10))
    await batch.wait(timeout=600)
    return time.monotonic() - began


@pytest.mark.parametrize(
    "members", [300, pytest.param(1_000_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)], id="a-million")]
)
async def test_cancelling_is_flagged_at_once_and_worked_off_in_pages(loaded: Crew, members: int) -> None:
    app, task = loaded.app, loaded.tasks.bare
    batch = await app.batch("unwanted").open()
    for start in range(0, members, CHUNK):
        await batch.add_many(task.call() for _ in range(start, min(start + CHUNK, members)))
    began = time.monotonic()
    assert await app.client.engine.cancel_batch(batch.id) == "cancelled"
    flagged = time.monotonic() - began
    worker = await loaded.started("-p", "1", "-c", "10", lease="10s")  # its timer goes on with what we leave
    status = await batch.wait(timeout=3000)
    print(
        f"flagged after {flagged * 1000:.1f} ms, {members:,} members cancelled after {time.monotonic() - began:.1f} s"
    )
    assert (status.cancelled, status.done) == (members, 0)
    assert loaded.lines() == []
    await loaded.stop(worker)


def _turns(taken: list[str]) -> Iterator[int]:
    """How many of the big one come before each of the small one."""
    since = 0
    for lease in taken:
        if lease == "big":
            since += 1
        else:
            yield since
            since = 0


async def test_a_small_batch_gets_its_turn_for_every_eight_of_one_a_hundred_times_bigger(loaded: Crew) -> None:
    app, names = loaded.app, list[str]()
    async with contextlib.AsyncExitStack() as stack:
        big: Batch = await stack.enter_async_context(app.batch("big"))
        await big.add_many(loaded.tasks.bare.call() for _ in range(2_000))
        small: Batch = await stack.enter_async_context(app.batch("small"))
        await small.add_many(loaded.tasks.bare.call() for _ in range(20))
    engine = app.client.engine
    assert await engine.register("by-hand", 60_000) == "ok"
    number = 0
    while names.count("small") < 20:
        number += 1
        leased = await engine.lease("by-hand", number, want=1, answered=number - 1)
        for lease in leased.leases:
            names.append("big" if lease.ready.batch == big.id else "small")
            await engine.complete("by-hand", [(lease.id, number, b"")])
    assert max(_turns(names)) <= 8
    await big.cancel()
    await engine.retire("by-hand")
