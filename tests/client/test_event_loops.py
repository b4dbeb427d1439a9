"""One app in threads, on several event loops, and on both sides of a fork."""

import asyncio
import contextlib
import gc
import subprocess
import sys
import textwrap
import threading
import weakref
from pathlib import Path
from typing import Any

from penstock import (
    Job,
    JobNotFound,
    Penstock,
)
from tests.app_helpers import remove_all
from tests.conftest import namespace
from tests.servers import Server


async def test_enqueue_sync_works_in_threads_while_a_loop_runs_elsewhere(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    async with app.worker():
        jobs = await asyncio.gather(*(asyncio.to_thread(echo.enqueue_sync, number) for number in range(50)))
        assert await asyncio.gather(*(job.result(timeout=5) for job in jobs)) == list(range(50))
        many = await asyncio.to_thread(app.enqueue_many_sync, [echo.call(number) for number in range(450)])
        assert await asyncio.gather(*(job.result(timeout=5) for job in many)) == list(range(450))


async def test_enqueue_sync_works_on_a_loop_too(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    job = echo.enqueue_sync(4)
    assert job.status_sync().state == "ready"
    await app.run_until_idle()
    assert await job.result() == 4


def test_a_loop_that_ends_in_the_middle_of_enqueues_leaves_nothing_behind(single: Server) -> None:
    app = Penstock(namespace(), url=single.url)

    @app.task
    async def echo(x: int) -> int:
        return x

    async def leave(ticks: int) -> list[asyncio.Task[Job[int]]]:
        tasks = [asyncio.create_task(echo.enqueue(number)) for number in range(3)]
        for _ in range(ticks):
            await asyncio.sleep(0)
        return tasks

    for ticks in range(8):
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            runner.run(leave(ticks))
        assert not asyncio.all_tasks(loop)
    asyncio.run(remove_all(app))


def test_an_app_serves_loops_one_after_another_and_side_by_side(url: str) -> None:
    app = Penstock(namespace(), url=url)

    @app.task
    async def echo(x: int) -> int:
        return x

    async def once(x: int) -> int:
        job = await echo.enqueue(x)
        async with app.worker(concurrency=5):
            return await job.result(timeout=10)

    assert [asyncio.run(once(number)) for number in range(3)] == [0, 1, 2]
    results: list[int] = []
    threads = [threading.Thread(target=lambda n=n: results.append(asyncio.run(once(n)))) for n in range(3, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(results) == [3, 4, 5]
    assert echo.enqueue_sync(9).created
    asyncio.run(remove_all(app))


FORKING = """
import asyncio, os, sys
from penstock import Penstock

app = Penstock(sys.argv[2], url=sys.argv[1])

@app.task
async def echo(x: int) -> int:
    return x

async def here(x: int) -> int:
    return await (await echo.enqueue(x)).result(timeout=10)

async def working(x: int) -> int:
    async with app.worker(concurrency=2):
        return await here(x)

echo.enqueue_sync(0)
assert asyncio.run(working(1)) == 1
child = os.fork()
mine = 100 if child else 200
for number in range(50):
    job = echo.enqueue_sync(mine + number)
    assert job.status_sync().id == job.id
assert asyncio.run(working(mine + 50)) == mine + 50
if child:
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    print("ok")
"""


async def test_parent_and_child_of_a_fork_both_enqueue(app: Penstock) -> None:
    assert app.settings.url is not None
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(FORKING), app.settings.url, app.name]
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=Path(__file__).parents[2], capture_output=True, check=False, timeout=30
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode() == "ok\n"
    counts = await app.client.views.counts()
    assert sum(counts["default"].values()) == 1 + 1 + 2 * 51


def test_a_loop_that_has_ended_is_not_kept(url: str) -> None:
    app = Penstock(namespace(), url=url)
    loops: list[Any] = []

    @app.task
    async def echo(x: int) -> int:
        return x

    async def once() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await echo.enqueue(1)
        with contextlib.suppress(JobNotFound):
            await echo.job("nobody").result()

    for _ in range(3):
        asyncio.run(once())
    gc.collect()
    app.close()
    assert sum(loop() is not None for loop in loops) <= 1
