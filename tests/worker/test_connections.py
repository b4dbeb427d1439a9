"""Failures of the server and of connections: nothing is lost, and nothing has to be restarted by hand."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock import Penstock
from penstock.engine.scripts import load
from tests.app_helpers import commands, eventually, on_both
from tests.conftest import namespace
from tests.engine.factories import forget_scripts, raw
from tests.proxy import Proxy, proxied
from tests.servers import Server
from tests.worker.harness import Crew, cpu_seconds, crew_at, pause, tree


async def _work_goes_on(crew: Crew, within: float = 20) -> float:
    """How long a fresh job takes, in seconds."""
    began = asyncio.get_running_loop().time()
    job = await crew.tasks.quick.enqueue(1)
    assert await job.result(timeout=within) == 1
    return asyncio.get_running_loop().time() - began


async def _harassed(crew: Crew, harass: Callable[[], Awaitable[Any]], seconds: float, every: float) -> int:
    """Jobs all the time while something bad happens again and again; how many."""
    stop = asyncio.Event()

    async def bad() -> None:
        while not stop.is_set():
            with contextlib.suppress(Exception):
                await harass()
            await asyncio.sleep(every)

    harassing = asyncio.create_task(bad())
    jobs = []
    until = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < until:
        jobs += await crew.app.enqueue_many(crew.tasks.quick.call(n) for n in range(10))
        await asyncio.sleep(0.05)
    stop.set()
    await harassing
    await crew.all_in("done")
    # An attempt whose worker lost its life, or whose lease answer was lost, may have run twice: never more, and few.
    effects = crew.count()
    assert set(effects) == {job.id for job in jobs}
    twice = sum(many > 1 for many in effects.values())
    print(f"{len(jobs)} jobs, {twice} of them twice")
    assert max(effects.values()) <= 2
    return twice


async def test_a_server_that_is_killed_and_restarted_loses_nothing(tmp_path: Path, own_server: Server) -> None:
    async with crew_at(tmp_path, own_server.url) as crew:
        await crew.started("-c", "10")
        before = await crew.app.enqueue_many(crew.tasks.slow.call(0.05) for _ in range(100))
        long = await crew.tasks.slow.enqueue(6.0)
        await crew.until_started(20)
        own_server.kill()
        await pause(1)
        own_server.restart()
        print(f"work goes on after {await _work_goes_on(crew):.1f} s")
        await crew.all_in("done")
        counts = crew.count()
        assert set(counts) >= {job.id for job in (*before, long)}
        assert counts[long.id] == 1


async def _renewals_hang(proxy: Proxy, app: Penstock) -> None:
    """Three times the connection of a renewal is lost without being closed, and the next renewal arrives in time."""
    script = load()["renew"]
    for _ in range(3):
        (before,) = await app.client.views.workers()
        proxy.hang((script.function or script.sha).encode())
        await eventually(lambda: proxy.has_hung)
        (hung,) = await app.client.views.workers()
        await eventually(partial(_is_renewed, app, hung.alive_until))
        (after,) = await app.client.views.workers()
        assert before.worker == after.worker


async def _is_renewed(app: Penstock, before: int) -> bool:
    (node,) = await app.client.views.workers()
    return node.alive_until > before


async def test_a_renewal_on_a_connection_that_died_goes_on_another_before_the_lease_ends(
    tmp_path: Path, single: Server
) -> None:
    with proxied(single.port) as proxy:
        async with crew_at(tmp_path, single.url, proxy.url) as crew:
            await crew.started(lease="1s")
            job = await crew.tasks.until.enqueue("gate")
            await crew.until_started(1)
            await _renewals_hang(proxy, crew.app)
            crew.let_end("gate")
            await job.result(timeout=10)
            assert crew.count() == {job.id: 1}
            assert "taken for dead" not in crew.log()


async def test_a_program_renews_on_another_connection_as_well(single: Server, caplog: pytest.LogCaptureFixture) -> None:
    name = namespace()
    with proxied(single.port) as proxy:
        behind = Penstock(name, url=proxy.url)
        async with Penstock(name, url=single.url) as app, behind, behind.worker(lease="1s"):
            await _renewals_hang(proxy, app)
    assert "taken for dead" not in caplog.text


@on_both
async def test_all_connections_are_killed_again_and_again(crew: Crew, request: pytest.FixtureRequest) -> None:
    await crew.started("-c", "10")

    async def kill() -> None:
        client = await raw(crew.app.client.engine)
        for kind in ("normal", "pubsub"):
            await client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")

    await _harassed(crew, kill, 5, 0.2)
    assert crew.log().count("cannot be used") <= 4


@pytest.mark.long
async def test_all_connections_are_killed_for_20_seconds(crew: Crew) -> None:
    await crew.started("-c", "10")

    async def kill() -> None:
        client = await raw(crew.app.client.engine)
        for kind in ("normal", "pubsub"):
            await client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")

    await _harassed(crew, kill, 20, 0.2)


async def test_scripts_are_flushed_all_the_time(crew: Crew) -> None:
    await crew.started("-c", "10")

    async def flush() -> None:
        await forget_scripts(crew.app.client.engine)

    assert await _harassed(crew, flush, 4, 0.05) == 0


async def _lose_replies(folder: Path, server: Server, which: Iterable[int]) -> None:
    with proxied(server.port) as proxy:
        async with crew_at(folder, server.url, proxy.url) as crew:
            await crew.started("-c", "10")
            jobs, lost = [], 0
            for nth in which:
                proxy.lose(nth)
                lost += 1
                while proxy.lost < lost:
                    jobs.append(await crew.tasks.quick.enqueue(nth))
            await crew.all_in("done")
            print(f"{lost} replies lost among those for {len(jobs)} jobs")
            assert crew.count() == {job.id: 1 for job in jobs}


async def test_any_reply_may_be_lost(tmp_path: Path, single: Server) -> None:
    await _lose_replies(tmp_path, single, (*range(1, 25), *range(30, 101, 10)))


@pytest.mark.long
async def test_each_of_a_hundred_replies_may_be_lost(tmp_path: Path, single: Server) -> None:
    await _lose_replies(tmp_path, single, range(1, 101))


@pytest.mark.parametrize("ways", [("requests",), ("replies",), ("requests", "replies")], ids="+".join)
async def test_a_proxy_stalls(tmp_path: Path, single: Server, ways: tuple[str, ...]) -> None:
    with proxied(single.port) as proxy:
        async with crew_at(tmp_path, single.url, proxy.url) as crew:
            await crew.started("-c", "10")
            long = await crew.tasks.slow.enqueue(8.0)
            await crew.until_started(1)
            proxy.stall(*ways)
            waiting = await crew.tasks.quick.enqueue(7)
            await pause(7)
            proxy.flow()
            assert await waiting.result(timeout=30) == 7
            print(f"work goes on after {await _work_goes_on(crew):.1f} s")
            await long.result(timeout=30)
            assert crew.count()[long.id] == 1


async def test_a_server_that_refuses_by_kind_is_waited_for(tmp_path: Path, own_server: Server) -> None:
    """BUSY, READONLY, OOM and MISCONF: no job is lost, none runs twice, and work goes on when it is over."""
    async with crew_at(tmp_path, own_server.url) as crew:
        await crew.started("-c", "10")
        with own_server.client() as client:
            for refuse, allow in (
                (_busy, _not_busy),
                (lambda c: c.replicaof("127.0.0.1", 1), lambda c: c.replicaof("NO", "ONE")),
                (lambda c: c.config_set("maxmemory", 1), lambda c: c.config_set("maxmemory", 0)),
                (
                    lambda c: c.config_set("min-replicas-to-write", 1),
                    lambda c: c.config_set("min-replicas-to-write", 0),
                ),
            ):
                job = await crew.tasks.slow.enqueue(0.5)
                await crew.until_started(1)
                refuse(client)
                await pause(2)
                allow(client)
                await job.result(timeout=30)
                print(f"work goes on after {await _work_goes_on(crew):.1f} s")
        await crew.all_in("done")
        assert set(crew.count().values()) == {1}


def _busy(client: Any) -> None:
    client.config_set("busy-reply-threshold", 100)
    port = client.connection_pool.connection_kwargs["port"]
    with redis.Redis(port=port, socket_timeout=0.2) as other, contextlib.suppress(redis.RedisError):
        other.eval("while true do end", 0)


def _not_busy(client: Any) -> None:
    client.script_kill()


async def _idle(crew: Crew, seconds: float) -> tuple[float, float]:
    worker = await crew.started(lease="10s")
    await eventually(lambda: len(tree(worker.pid)) >= 2, within=30)
    await pause(3)
    pids = [worker.pid, *tree(worker.pid)]
    before = await commands(crew.app), cpu_seconds(pids)
    await pause(seconds)
    sent = await commands(crew.app) - before[0] - 1
    used = cpu_seconds(pids) - before[1]
    print(f"idle: {sent / seconds:.2f} commands/s, {used / seconds:.2%} of a core")
    return sent / seconds, used / seconds


async def test_an_idle_worker_sends_little(tmp_path: Path, own_server: Server) -> None:
    async with crew_at(tmp_path, own_server.url) as crew:
        sent, _ = await _idle(crew, 12)
        assert sent < 1.5  # in a short time one that happens to be due counts for more


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_an_idle_worker_sends_little_for_a_minute_and_one_that_is_cut_off_does_not_spin(
    tmp_path: Path, own_server: Server
) -> None:
    async with crew_at(tmp_path, own_server.url) as crew:
        sent, used = await _idle(crew, 60)
        assert sent < 1
        assert used < 0.01
        (worker,) = crew.workers
        pids = [worker.pid, *tree(worker.pid)]
        own_server.kill()
        before = cpu_seconds(pids)
        await pause(60)
        used = (cpu_seconds(pids) - before) / 60
        print(f"cut off: {used:.2%} of a core")
        own_server.restart()
        assert used < 0.01
        assert crew.log().count("cannot be used") <= 4
        print(f"work goes on after {await _work_goes_on(crew):.1f} s")
