"""Measures this machine: Penstock beside a bare loop, on the same server, in the same run.

The bare loop is the least that a job queue can do with a script: take a hundred jobs, note who has them, decode them,
run each as an asyncio task, and settle them with the next call. It keeps no states, attempts, retries, events, counts.
Figures of one run on one machine compare with each other; alone they say little.
"""

import asyncio
import secrets
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.app import Penstock
from penstock.engine.audit import audit
from penstock.job import new_id
from penstock.task import Task

PAGE: Final = 100

_BARE_PUT: Final = """#!lua
local fields, members = {}, {}
for i = 1, #ARGV, 2 do
  fields[i], fields[i + 1] = ARGV[i], ARGV[i + 1]
  members[i], members[i + 1] = i, ARGV[i]
end
redis.call('HSET', KEYS[1], unpack(fields))
redis.call('ZADD', KEYS[2], unpack(members))
return #ARGV / 2
"""
_BARE_TAKE: Final = """#!lua
if #ARGV > 1 then
  redis.call('HDEL', KEYS[3], unpack(ARGV, 2))
  redis.call('HDEL', KEYS[1], unpack(ARGV, 2))
end
local popped, ids, leases = redis.call('ZPOPMIN', KEYS[2], ARGV[1]), {}, {}
for i = 1, #popped, 2 do
  ids[#ids + 1] = popped[i]
  leases[#leases + 1], leases[#leases + 2] = popped[i], 'w'
end
if #ids == 0 then return {} end
redis.call('HSET', KEYS[3], unpack(leases))
return { ids, redis.call('HMGET', KEYS[1], unpack(ids)) }
"""


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure, and the bare loop's beside it where there is one."""

    name: str
    value: float
    unit: str
    bare: float | None = None

    @property
    def share(self) -> float | None:
        return None if not self.bare else self.value / self.bare


async def run(url: str | None = None, jobs: int = 20_000, say: Callable[[str], None] = print) -> list[Measure]:
    """All figures; takes about a minute with 20,000 jobs."""
    found: list[Measure] = []
    async with _app(url) as (app, async_task, thread_task):
        bare = _Bare(await app.hub.endpoint.client())
        say(f"{jobs:,} jobs, server {app.hub.endpoint}")
        bare_put, bare_take = await bare.put(jobs), await bare.drain(jobs)
        put = await _rate(jobs, app.enqueue_many(async_task.call(i) for i in range(jobs)))
        found.append(Measure("enqueue_many", put, "jobs/s", bare_put))
        found.append(Measure("drain, async tasks", await _drain(app, jobs), "jobs/s", bare_take))
        await app.enqueue_many(thread_task.call(i) for i in range(jobs // 4))
        found.append(Measure("drain, def tasks in threads", await _drain(app, jobs // 4), "jobs/s", bare_take))
        found.append(Measure("enqueue, 100 at once", await _concurrent(async_task, jobs // 2), "jobs/s", bare_put))
        trip = await bare.trips(1_000)
        found.append(Measure("enqueue, one by one", await _one_by_one(async_task, 1_000), "jobs/s", trip))
        found.append(Measure("enqueue_sync, one by one", _one_by_one_sync(async_task, 1_000), "jobs/s", trip))
        await app.run_until_idle()
        found += await _latency(app, 300)
        findings = await audit(app.hub.engine)
        say(f"audit: {findings or 'clean'}")
        await (await app.hub.endpoint.client()).delete(*app.hub.engine.all_keys(), *bare.keys)
    return found


@asynccontextmanager
async def _app(url: str | None) -> AsyncIterator[tuple[Penstock, Task[[int], None, Any], Task[[int], None, Any]]]:
    app = Penstock("bench-" + secrets.token_hex(4), url=url)

    @app.task(name="bench:noop")
    async def noop(number: int) -> None:
        pass

    @app.task(name="bench:noop_thread")
    def noop_thread(number: int) -> None:
        pass

    async with app:
        yield app, noop, noop_thread


async def _rate(number: int, work: Awaitable[Any]) -> float:
    start = time.perf_counter()
    await work
    return number / (time.perf_counter() - start)


async def _drain(app: Penstock, number: int) -> float:
    # Two trips of a hundred are on their way at once, as many in each as the bare loop takes.
    return await _rate(number, app.run_until_idle(concurrency=2 * PAGE))


async def _concurrent(task: Task[[int], None, Any], number: int) -> float:
    async def caller() -> None:
        for i in range(number // 100):
            await task.enqueue(i)

    return await _rate(number, asyncio.gather(*(caller() for _ in range(100))))


async def _one_by_one(task: Task[[int], None, Any], number: int) -> float:
    start = time.perf_counter()
    for i in range(number):
        await task.enqueue(i)
    return number / (time.perf_counter() - start)


def _one_by_one_sync(task: Task[[int], None, Any], number: int) -> float:
    start = time.perf_counter()
    for i in range(number):
        task.enqueue_sync(i)
    return number / (time.perf_counter() - start)


async def _latency(app: Penstock, number: int) -> list[Measure]:
    """From enqueue to start, one job at a time on an idle worker."""
    started: list[float] = []

    @app.task(name="bench:stamp")
    async def stamp() -> None:
        started.append(time.perf_counter())

    waits = []
    async with app.worker():
        for _ in range(number):
            begin = time.perf_counter()
            await (await stamp.enqueue()).result(timeout=10)
            waits.append((started[-1] - begin) * 1_000)
    quantiles = statistics.quantiles(waits, n=100)
    return [Measure("idle latency p50", quantiles[49], "ms"), Measure("idle latency p99", quantiles[98], "ms")]


class _Bare:
    """The least that a job queue can do with a script."""

    def __init__(self, client: Any) -> None:
        self._client = client
        tag = secrets.token_hex(4)
        self.keys = [f"penstock-bare:{{{tag}}}:{name}" for name in ("payloads", "ready", "leases")]
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder().decode
        self._task = "bench:noop"

    async def put(self, number: int) -> float:
        script = await self._client.script_load(_BARE_PUT)

        async def work() -> None:
            for start in range(0, number, PAGE):
                args: list[Any] = []
                for i in range(start, start + PAGE):
                    args += (new_id(), self._encode([self._task, {"number": i}]))
                await self._client.evalsha(script, 2, *self.keys[:2], *args)

        return await _rate(number, work())

    async def drain(self, number: int) -> float:
        script = await self._client.script_load(_BARE_TAKE)

        async def job(payload: bytes) -> None:
            self._decode(payload)

        async def work() -> None:
            settled: list[bytes] = []
            while True:
                taken = await self._client.evalsha(script, 3, *self.keys, PAGE, *settled)
                if not taken:
                    return
                settled, payloads = taken
                await asyncio.gather(*(asyncio.create_task(job(payload)) for payload in payloads))

        return await _rate(number, work())

    async def trips(self, number: int) -> float:
        """Round trips that store one job each, one after another."""
        script = await self._client.script_load(_BARE_PUT)
        start = time.perf_counter()
        for i in range(number):
            await self._client.evalsha(script, 2, *self.keys[:2], new_id(), self._encode([self._task, {"number": i}]))
        return number / (time.perf_counter() - start)


def table(measures: list[Measure]) -> str:
    """For a terminal."""
    lines = [f"{'':30}{'Penstock':>12}{'':8}{'bare loop':>12}{'share':>8}"]
    for one in measures:
        bare = f"{one.bare:>12,.0f}{one.share:>8.0%}" if one.bare and one.share is not None else ""
        value = f"{one.value:>12,.0f}" if one.unit == "jobs/s" else f"{one.value:>12.2f}"
        lines.append(f"{one.name:30}{value} {one.unit:7}{bare}")
    return "\n".join(lines)
