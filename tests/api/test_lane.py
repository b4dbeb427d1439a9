"""Locks, lanes and queue limits as users write them."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock import BadOption, Lane, Penstock
from tests.engine.factories import raw


class Register:
    """What runs right now, by name, and the most that ever did."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.done: list[Any] = []

    @asynccontextmanager
    async def busy(self, name: str, what: Any, seconds: float = 0.002) -> AsyncIterator[None]:
        self.running[name] += 1
        self.most[name] = max(self.most[name], self.running[name])
        try:
            await asyncio.sleep(seconds)
            yield
        finally:
            self.running[name] -= 1
            self.done.append(what)


async def test_two_jobs_of_one_lock_never_run_at_once_whatever_their_task_or_queue(app: Penstock) -> None:
    seen = Register()

    @app.task(lock="account:{account}")
    async def debit(account: int, amount: int) -> None:
        async with seen.busy(f"{account}", amount):
            pass

    @app.task(lock="account:{account}", queue="slow")
    async def audit(account: int) -> None:
        async with seen.busy(f"{account}", -1):
            pass

    await app.enqueue_many([*(debit.call(i % 5, i) for i in range(60)), *(audit.call(i % 5) for i in range(20))])
    await app.run_until_idle(concurrency=50)
    assert len(seen.done) == 80
    assert set(seen.most.values()) == {1}


async def test_a_job_that_waits_for_its_lock_delays_no_other_job(app: Penstock) -> None:
    order: list[str] = []
    release = asyncio.Event()

    @app.task(lock="t")
    async def locked(name: str) -> None:
        order.append(name)
        if name == "1":
            await release.wait()

    @app.task
    async def free(name: str) -> None:
        order.append(name)

    jobs = [await locked.enqueue("1"), await free.enqueue("2"), await locked.enqueue("3")]
    async with app.worker(concurrency=2):
        await jobs[1].result(timeout=10)
        assert sorted(order) == ["1", "2"]
        assert (await jobs[2].status()).state == "held"
        assert jobs[0].id in await jobs[2].explain()
        release.set()
        await jobs[2].result(timeout=10)
    assert order[-1] == "3"


async def test_a_lane_lets_so_many_run_at_once(app: Penstock) -> None:
    seen = Register()

    @app.task(lane=Lane("api", limit=3))
    async def call(i: int) -> None:
        async with seen.busy("api", i, 0.005):
            pass

    await app.enqueue_many(call.call(i) for i in range(40))
    await app.run_until_idle(concurrency=20)
    assert seen.most["api"] == 3
    assert sorted(seen.done) == list(range(40))


async def test_a_lane_is_set_paused_and_reset_while_it_is_in_use(app: Penstock) -> None:
    seen = Register()

    @app.task(lane=Lane("tenant:{tenant}", limit=1))
    async def work(tenant: int, i: int) -> None:
        async with seen.busy("tenant", i, 0.01):
            pass

    lane = app.lane("tenant:7")
    await lane.pause()
    await app.enqueue_many(work.call(7, i) for i in range(30))
    async with app.worker(concurrency=20) as worker:
        status = await lane.status()
        assert (status.paused, status.in_use, status.limit) == (True, 0, 1)
        await lane.set(limit=5)
        await lane.resume()
        await worker.until_idle()
    assert seen.most["tenant"] == 5
    assert (await lane.status()).set_by_hand
    lane.reset_sync()
    assert not lane.status_sync().set_by_hand
    client = await raw(app.client.engine)
    for key in ("lanes", "limits"):
        assert await client.hkeys(app.client.engine.keys(key)) == [b""]


async def test_an_ordered_lane_keeps_its_order_through_retries(app: Penstock) -> None:
    done: list[int] = []
    failed: set[int] = set()

    @app.task(lane=Lane("stream", ordered=True), retries=3, backoff=["5ms"])
    async def step(i: int) -> None:
        if i % 3 == 0 and i not in failed:
            failed.add(i)
            raise ValueError
        done.append(i)

    jobs = await app.enqueue_many(step.using(priority=99 - i).call(i) for i in range(20))
    async with app.worker(concurrency=10):
        await asyncio.gather(*(job.result(timeout=20) for job in jobs))
    assert done == list(range(20))


@pytest.mark.parametrize("on_dead", ["continue", "hold"])
async def test_a_dead_job_lets_the_next_one_follow_or_holds_its_lane(app: Penstock, on_dead: Any) -> None:
    done: list[int] = []

    @app.task(lane=Lane("stream", ordered=True, on_dead=on_dead), retries=0)
    async def step(i: int) -> None:
        if i == 0 and not done:
            done.append(-1)
            raise ValueError
        done.append(i)

    jobs = [await step.enqueue(i) for i in range(3)]
    await app.run_until_idle()
    assert done == ([-1] if on_dead == "hold" else [-1, 1, 2])
    if on_dead == "hold":
        await jobs[0].retry()
        await app.run_until_idle()
        assert done == [-1, 0, 1, 2]


async def test_a_rate_is_kept_and_used(app: Penstock) -> None:
    starts: list[float] = []

    @app.task(lane=Lane("api", rate="100/s", burst=5))
    async def call(i: int) -> None:
        starts.append(time.monotonic())

    jobs = await app.enqueue_many(call.call(i) for i in range(60))
    async with app.worker():
        await asyncio.gather(*(job.result(timeout=20) for job in jobs))
    assert starts[-1] - starts[0] >= (60 - 5) / 100 - 0.05


async def test_a_queue_has_a_limit(app: Penstock) -> None:
    seen = Register()

    @app.task(queue="mail")
    async def send(i: int) -> None:
        async with seen.busy("mail", i, 0.005):
            pass

    await app.queue("mail").set(limit=2)
    await app.enqueue_many(send.call(i) for i in range(20))
    job = await send.enqueue(20)
    assert (await app.queue("mail").status()).limit == 2
    async with app.worker(concurrency=10):
        await job.result(timeout=20)
    assert seen.most["mail"] == 2
    await app.queue("mail").reset()
    assert (await app.queue("mail").status()).limit is None


async def test_the_lock_of_one_call_is_no_template(app: Penstock) -> None:
    @app.task
    async def work(n: int) -> None: ...

    await work.using(lock="{n}").enqueue(1)
    assert (await app.lock("{n}").status()).waiting == 0
    await work.using(lock="{n}").enqueue(1)
    assert (await app.lock("{n}").status()).waiting == 1
    await app.run_until_idle()


@pytest.mark.parametrize(
    "options",
    [
        {"lock": ""},
        {"lock": "  "},
        {"lock": "a\nb"},
        {"lock": "account:{nobody}"},
        {"lock": "broken {"},
        {"lock": [f"k{i}" for i in range(100)]},
        {"lock": 7},
        {"lane": "api"},
        {"cost": 0},
        {"cost": 9, "lane": Lane("api", rate="1/s", burst=5)},
    ],
    ids=repr,
)
def test_bad_options_are_refused_where_they_are_written(app: Penstock, options: Any) -> None:
    with pytest.raises(BadOption):

        @app.task(**options)
        async def work(n: int) -> None: ...


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("", {}),
        ("x" * 300, {}),
        ("a", {"limit": -1}),
        ("a", {"limit": True}),
        ("a", {"rate": "fast"}),
        ("a", {"rate": "0/s"}),
        ("a", {"rate": "5/fortnight"}),
        ("a", {"burst": 5}),
        ("a", {"rate": "5/s", "burst": 0}),
        ("a", {"ordered": True, "limit": 2}),
        ("a", {"on_dead": "hold"}),
        ("a", {"ordered": True, "on_dead": "panic"}),
    ],
)
def test_a_bad_lane_is_refused_by_name(name: str, options: Any) -> None:
    with pytest.raises(BadOption, match=r"lane|rate"):
        Lane(name, **options)


def test_a_lane_that_two_tasks_declare_differently_is_refused(app: Penstock) -> None:
    @app.task(lane=Lane("api", limit=3))
    async def one() -> None: ...

    with pytest.raises(BadOption, match="disagree about lane 'api'"):

        @app.task(lane=Lane("api", limit=4))
        async def two() -> None: ...


async def test_code_elsewhere_that_disagrees_is_shown(app: Penstock) -> None:
    @app.task
    async def work() -> None: ...

    await work.using(lane=Lane("api", limit=3)).enqueue()
    await work.using(lane=Lane("api", limit=1)).enqueue()
    status = await app.lane("api").status()
    assert (status.limit, status.conflict) == (1, "limit 3")
    await app.run_until_idle()
