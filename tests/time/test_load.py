"""Many at one instant, and a million that wait: nothing is lost, and no script takes long."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import Penstock
from penstock.engine.audit import audit
from penstock.engine.engine import Engine
from penstock.engine.scripts import load
from tests.conftest import namespace, open_engine
from tests.engine.factories import new_job
from tests.servers import Server, running

TOO_LONG_US = 20_000
SMALL, BIG = 1_000, 1_000_000
ROUNDS, PAGE = 30, 20


@pytest.fixture
def server() -> Iterator[Server]:
    with running(Server("--appendonly", "no", "--slowlog-log-slower-than", str(TOO_LONG_US))) as one:
        yield one


@pytest.fixture
async def engine(server: Server) -> AsyncIterator[Engine]:
    made = open_engine(server.url, namespace())
    yield made
    await made.link.endpoint.aclose()


async def _slow(client: Any) -> list[str]:
    """Scripts that took too long, and their microseconds: of the wall, so others on the same processors count, too."""
    verbs = {script.sha: name for name, script in load().items()}
    found = [(entry["command"].decode(errors="replace").split(), entry) for entry in await client.slowlog_get(1000)]
    return [f"{verbs.get(words[1], '?')} {one['duration']} us" for words, one in found if words[0].startswith("EVAL")]


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_hundred_thousand_jobs_due_at_one_instant_all_start_once_and_none_early(server: Server) -> None:
    app, number = Penstock(namespace(), url=server.url), 100_000
    started: Counter[int] = Counter()
    early, all_started = list[int](), asyncio.Event()
    due = datetime.now(UTC) + timedelta(seconds=60)

    @app.task(name="due")
    async def run(which: int) -> None:
        started[which] += 1
        if datetime.now(UTC) < due - timedelta(milliseconds=1):
            early.append(which)
        if len(started) == number:
            all_started.set()

    async with app:
        await app.enqueue_many(run.using(at=due).call(i) for i in range(number))
        assert datetime.now(UTC) < due, "this machine is too slow for 60 s of enqueueing"
        async with app.worker(concurrency=200), app.worker(concurrency=200):
            await all_started.wait()
            took = (datetime.now(UTC) - due).total_seconds()
        client = await app.hub.endpoint.client()
        slow, calls = await _slow(client), (await client.info("commandstats"))["cmdstat_evalsha"]["calls"]
        print(f"\n{number:,} due at one instant: all started within {took:.1f} s")
        print(f"{len(slow)} of {calls:,} scripts took more than 20 ms: {slow}")
        assert (len(started), set(started.values()), early) == (number, {1}, [])
        assert len(slow) <= calls / 100  # a page that is too big would always be slow
        assert await audit(app.hub.engine) == []


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_a_script_takes_less_than_twice_as_long_with_a_million_scheduled_as_with_a_thousand(
    engine: Engine,
) -> None:
    await _fill(engine, SMALL)
    small = await _measure(engine)
    await _fill(engine, BIG - SMALL)
    big = await _measure(engine)
    print()
    for verb, cost in small.items():
        print(f"{verb:10} {cost:8.1f} us at {SMALL:,}  {big[verb]:8.1f} us at {BIG:,}  {big[verb] / cost:5.2f} times")
    client: Any = await engine.link.endpoint.client()
    slow, calls = await _slow(client), (await client.info("commandstats"))["cmdstat_evalsha"]["calls"]
    print(f"{len(slow)} of {calls:,} scripts took more than {TOO_LONG_US // 1000} ms: {slow}")
    assert len(slow) <= calls / 100  # a page that is too big would always be slow
    assert {verb: cost for verb, cost in big.items() if cost >= 2 * small[verb]} == {}


async def _fill(engine: Engine, number: int) -> None:
    for start in range(0, number, 100):
        await engine.enqueue([_later(3_600_000 + (start + i) * 10) for i in range(min(100, number - start))])


def _later(delay: int) -> Any:
    return new_job(due=delay, expires=2 * delay)


async def _measure(engine: Engine) -> dict[str, float]:
    """Microseconds per call of each script, on pages of the same size; the best of three runs."""
    runs = [await _measure_once(engine) for _ in range(3)]
    return {verb: min(run[verb] for run in runs) for verb in runs[0]}


async def _measure_once(engine: Engine) -> dict[str, float]:
    costs: dict[str, float] = {}
    client: Any = await engine.link.endpoint.client()

    async def timed(verb: str, step: Callable[[int], Awaitable[Any]]) -> None:
        before = (await client.info("commandstats"))["cmdstat_evalsha"]["usec"]
        for round_ in range(ROUNDS):
            await step(round_)
        costs[verb] = ((await client.info("commandstats"))["cmdstat_evalsha"]["usec"] - before) / ROUNDS

    pages = [[_later(7_200_000 + i) for i in range(PAGE)] for _ in range(ROUNDS)]
    await timed("enqueue", lambda i: engine.enqueue(pages[i]))
    await timed("reschedule", lambda i: engine.reschedule([job.id for job in pages[i]], 5_000_000))
    await timed("cancel", lambda i: engine.cancel([job.id for job in pages[i]]))
    soon = [[new_job(due=1, expires=3_600_000) for _ in range(PAGE)] for _ in range(ROUNDS)]
    for page in soon:
        await engine.enqueue(page)
    await timed("promote", lambda _: engine.promote(PAGE))
    late = [[new_job(due=3_600_000, expires=1) for _ in range(PAGE)] for _ in range(ROUNDS)]
    for page in late:
        await engine.enqueue(page)
    time.sleep(0.01)  # noqa: ASYNC251  (until all of them are late)
    await timed("expire", lambda _: engine.expire(PAGE))
    await timed("due_crons", lambda _: engine.due_crons())
    return costs
