"""A server that lost its last writes: jobs that a worker has finished do not stay leased to it."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Penstock
from penstock.engine.read.worker_leases import leases_of
from penstock.engine.repair.audit import audit
from penstock.worker.lease_check import HeldJobs, release_lost
from tests.app_helpers import eventually, in_state
from tests.conftest import namespace
from tests.engine.factories import raw
from tests.proxy import Proxy, proxied
from tests.servers import Server, running, wait_for
from tests.worker.harness import crew_at


class Pair:
    """A primary with a replica, and one address for whichever of them is the primary."""

    def __init__(self, primary: Server, replica: Server, proxy: Proxy) -> None:
        self._primary, self._replica, self._proxy = primary, replica, proxy
        self.url = proxy.url

    def hold_back(self) -> None:
        """The replica has everything so far, and hears of nothing from now on."""
        with self._primary.client() as client:
            wait_for(lambda: client.set("mark", "here") and client.wait(1, 1000) == 1)
        with self._replica.client() as client:
            client.replicaof("127.0.0.1", 1)

    def fail_over(self) -> None:
        """The primary is gone, and the replica takes its place."""
        self._primary.kill()
        with self._replica.client() as client:
            client.replicaof("NO", "ONE")
        self._proxy.target = self._replica.port
        self._proxy.cut()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with running(Server("--appendonly", "no", "--repl-diskless-sync-delay", "0")) as primary:
        options = ("--appendonly", "no", "--replicaof", f"127.0.0.1 {primary.port}")
        with running(Server(*options)) as replica, proxied(primary.port) as proxy:
            with replica.client() as client:
                wait_for(lambda: client.info("replication")["master_link_status"] == "up")
            yield Pair(primary, replica, proxy)


async def test_a_job_whose_completion_a_failover_lost_runs_again_and_frees_its_lock(pair: Pair) -> None:
    gates = {"short": asyncio.Event(), "long": asyncio.Event()}
    runs: Counter[str] = Counter()
    app = Penstock(namespace(), url=pair.url)

    @app.task(retries=0, lock="{name}")
    async def wait(name: str) -> str:
        runs[name] += 1
        await gates[name].wait()
        return name

    async with app.worker():
        short, long = await wait.enqueue("short"), await wait.enqueue("long")
        await in_state(short, "running")
        await in_state(long, "running")
        pair.hold_back()
        gates["short"].set()
        await in_state(short, "done")
        pair.fail_over()
        behind = await wait.enqueue("short")
        assert await behind.result(timeout=15) == "short"
        assert (await short.status()).state == "done"
        assert (await short.status()).attempts == (), "nobody is charged"
        assert runs == {"short": 3, "long": 1}, "what runs is not disturbed"
        gates["long"].set()
        assert await long.result(timeout=5) == "long"
    assert runs["long"] == 1
    assert await audit(app.client.engine) == []
    await app.aclose()


async def test_a_job_pushed_under_a_call_number_that_the_server_forgot_is_run(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    engine = app.client.engine
    async with app.worker() as worker:
        calls = engine.keys("calls")
        client = await raw(engine)
        await eventually(lambda: client.hget(calls, worker.name))
        before = await client.hget(calls, worker.name)
        for n in range(20):
            assert await (await echo.enqueue(n)).result(timeout=5) == n
        await eventually(lambda: _is_idle(app, worker.name))
        await client.hset(calls, worker.name, before)
        for n in range(3):
            assert await (await echo.enqueue(n)).result(timeout=5) == n
        assert await leases_of(engine, worker.name) == []


async def _is_idle(app: Penstock, worker: str) -> bool:
    engine = app.client.engine
    score = await (await raw(engine)).zscore(engine.keys("idle"), f"!\x1f{worker}")
    return score is not None and not await leases_of(engine, worker)


async def test_a_child_of_a_supervisor_gives_back_what_a_failover_says_it_runs(tmp_path: Path, pair: Pair) -> None:
    async with crew_at(tmp_path, pair.url) as crew:
        await crew.started("-c", "4", lease="10s")
        short, long = await crew.tasks.until.enqueue("short"), await crew.tasks.until.enqueue("long")
        await crew.until_started(2)
        pair.hold_back()
        crew.let_end("short")
        await in_state(short, "done", within=15)
        pair.fail_over()
        await eventually(lambda: crew.count()[short.id] == 2, within=15)
        await in_state(short, "done", within=15)
        crew.let_end("long")
        await in_state(long, "done", within=15)
        assert crew.count() == {short.id: 2, long.id: 1}


async def test_a_stream_gives_back_what_a_failover_says_it_holds(pair: Pair) -> None:
    app = Penstock(namespace(), url=pair.url)

    @app.task(queue="mail")
    async def send(n: int) -> None: ...

    async with asyncio.timeout(30), app.queue("mail").stream(limit=2) as leases:
        job, other = await send.enqueue(1), await send.enqueue(2)
        held = {lease.id: lease for lease in (await anext(leases), await anext(leases))}
        pair.hold_back()
        await held[job.id].complete()
        pair.fail_over()
        again = await anext(leases)
        assert (again.id, again.job.attempt) == (job.id, 1)
        await again.complete()
        await held[other.id].complete()
        assert {(await one.status()).state for one in (job, other)} == {"done"}
    assert await audit(app.client.engine) == []
    await app.aclose()


async def test_only_answered_leases_that_the_worker_does_not_have_are_released(app: Penstock) -> None:
    @app.task
    async def work(n: int) -> None: ...

    engine = app.client.engine
    jobs = [await work.enqueue(n) for n in range(5)]
    await engine.register("w", 60_000)
    for number in range(1, 6):
        leased = await engine.lease("w", number, answered=number - 1)
        assert [lease.id for lease in leased.leases] == [jobs[number - 1].id]
    held = HeldJobs.of("w", 4, {2}, [(jobs[2].id, 3)])  # the fifth call was made after this look at what is in hand
    await release_lost(engine, held)
    leased_ids: Any = {job_id for job_id, _ in await leases_of(engine, "w")}
    assert leased_ids == {jobs[n].id for n in (1, 2, 4)}
    await engine.retire("w")
