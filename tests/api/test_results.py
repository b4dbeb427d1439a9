"""Results: pushed, typed, and the right error when there will never be one."""

import asyncio
import enum
import threading
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import pytest

from penstock import BadOption, JobCancelled, JobFailed, JobNotFound, Penstock, PenstockError, ResultExpired
from penstock.api.job import Job
from penstock.engine.engine import PAGE
from tests.app_helpers import commands, connections, eventually, in_state, kill_connections, on_both, own_app, twin
from tests.conftest import namespace
from tests.servers import Server, running

# Before and after the end


@on_both
async def test_a_result_is_the_same_before_and_after_the_end(app: Penstock) -> None:
    @app.task
    async def double(x: int) -> int:
        return 2 * x

    job = await double.enqueue(21)
    waiting = [asyncio.create_task(job.result(timeout=10)) for _ in range(5)]
    await asyncio.sleep(0)
    await app.run_until_idle()
    assert await asyncio.gather(*waiting) == [42] * 5
    assert await job.result() == 42
    assert await asyncio.to_thread(job.result_sync) == 42


async def test_a_result_can_be_awaited_by_another_process_that_knows_only_the_id(app: Penstock) -> None:
    @app.task
    async def pair() -> tuple[int, str]:
        return 1, "one"

    job = await pair.enqueue()
    async with twin(app) as elsewhere:
        handle = await elsewhere.get_job(job.id)
        waiting = asyncio.create_task(handle.result(timeout=10))
        await asyncio.sleep(0)
        async with app.worker():
            assert await waiting == [1, "one"]  # plain data: that process has no task that says more
            assert await job.result(timeout=5) == (1, "one")


async def test_a_failed_job_raises_with_its_error_and_where_it_was_raised(app: Penstock) -> None:
    @app.task(retries=1, backoff=[0])
    async def fail() -> None:
        raise LookupError("nothing in the drawer")

    job = await fail.enqueue()
    waiting = asyncio.create_task(job.result(timeout=10))
    await app.run_until_idle()
    with pytest.raises(JobFailed, match="nothing in the drawer") as caught:
        await waiting
    assert "LookupError" in str(caught.value)
    assert "in fail" in str(caught.value)
    assert job.id in str(caught.value)
    with pytest.raises(JobFailed, match="retries_exhausted"):
        await job.result()
    with pytest.raises(JobFailed, match="after 2 attempts"):
        await asyncio.to_thread(job.result_sync)


async def test_a_cancelled_job_raises_that_it_was_cancelled(app: Penstock) -> None:
    @app.task(delay="1h")
    async def later() -> None: ...

    job = await later.enqueue()
    waiting = asyncio.create_task(job.result(timeout=10))
    await eventually(lambda: _is_awaited(app, job))
    await job.cancel()
    with pytest.raises(JobCancelled, match=job.id):
        await waiting
    with pytest.raises(JobCancelled):
        await asyncio.to_thread(job.result_sync)


async def _is_awaited(app: Penstock, job: Job[Any]) -> bool:
    client = await app.client.endpoint.client()
    return bool(await client.hexists(app.client.engine.keys("waiting"), job.id))


async def test_an_expired_job_raises_that_it_was_cancelled_because_it_expired(app: Penstock) -> None:
    @app.task(delay="1h", expires="10ms")
    async def later() -> None: ...

    job = await later.enqueue()
    async with app.worker():
        with pytest.raises(JobCancelled, match="expired"):
            await job.result(timeout=5)


async def test_an_unknown_job_is_not_found_at_once(app: Penstock) -> None:
    @app.task
    async def nothing() -> None: ...

    job = nothing.job("never-enqueued")
    for question in (
        job.result(timeout=5),
        job.status(),
        job.cancel(),
        job.retry(),
        asyncio.to_thread(job.result_sync),
    ):
        with pytest.raises(JobNotFound, match="never-enqueued"):
            await question


async def test_a_result_that_is_not_kept_has_expired_and_none_has_not(app: Penstock) -> None:
    @app.task(keep_result=0)
    async def dropped() -> int:
        return 1

    @app.task(keep_result=0)
    async def nothing() -> None:
        return None

    job, silent = await dropped.enqueue(), await nothing.enqueue()
    await app.run_until_idle()
    with pytest.raises(ResultExpired, match="keep_result"):
        await job.result(timeout=5)
    with pytest.raises(ResultExpired):
        await asyncio.to_thread(job.result_sync, 5)
    assert await silent.result(timeout=5) is None  # type: ignore[func-returns-value]
    await app.client.engine.prune()
    with pytest.raises(ResultExpired):
        await job.result(timeout=5)
    assert await silent.result(timeout=5) is None  # type: ignore[func-returns-value]


async def test_a_result_that_was_kept_long_enough_has_expired(app: Penstock) -> None:
    @app.task(keep_result="10ms")
    async def brief() -> int:
        return 1

    job = await brief.enqueue()
    await app.run_until_idle()
    await eventually(lambda: _pruned(app))
    with pytest.raises(ResultExpired):
        await job.result(timeout=5)


async def _pruned(app: Penstock) -> bool:
    pruned, _ = await app.client.engine.prune()
    return pruned > 0


async def test_a_dead_job_that_is_run_again_has_a_result_after_all(app: Penstock) -> None:
    broken = [True]

    @app.task(retries=0)
    async def repaired() -> str:
        if broken:
            raise ValueError
        return "well"

    job = await repaired.enqueue()
    await app.run_until_idle()
    with pytest.raises(JobFailed):
        await job.result()
    broken.clear()
    await job.retry()
    await app.run_until_idle()
    assert await job.result() == "well"
    with pytest.raises(PenstockError, match="only a dead or cancelled job"):
        await job.retry()


# Types


class Colour(enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    BIG = 3


@dataclass
class Point:
    x: int
    y: float = 0.5


class Shape(msgspec.Struct):
    name: str
    points: list[Point]


class Row(NamedTuple):
    id: int
    text: str


MOMENT = datetime(2026, 7, 5, 12, 30, 0, 123456, tzinfo=UTC)
VALUES: list[tuple[Any, Any]] = [
    (None, None),
    (int, 2**63),
    (int, -(2**63)),
    (float, 1.5),
    (float, float("inf")),
    (bool, False),
    (str, ""),
    (str, "ünï\x00cødé 😀"),
    (bytes, b""),
    (bytes, bytes(range(256))),
    (list[int], []),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (tuple[int, ...], (1, 2, 3)),
    (tuple[int, str], (1, "one")),
    (dict[str, list[int]], {"a": [1]}),
    (dict[int, str], {1: "one"}),
    (dict[uuid.UUID, Decimal], {uuid.UUID(int=7): Decimal("1.10")}),
    (datetime, MOMENT),
    (datetime, datetime(2026, 7, 5, 12)),  # noqa: DTZ001  (a naive one must survive, too)
    (date, date(2026, 7, 5)),
    (timedelta, timedelta(days=1, milliseconds=5)),
    (uuid.UUID, uuid.UUID(int=7)),
    (Decimal, Decimal("1.10")),
    (Colour, Colour.RED),
    (Size, Size.BIG),
    (Point, Point(1, 2.5)),
    (Shape, Shape("line", [Point(0), Point(1)])),
    (Row, Row(1, "one")),
    (list[Point | None], [Point(1), None]),
    (int | str | None, "text"),
    (Any, {"a": [1, 2.5, None, "x"]}),
]


@pytest.mark.parametrize(("hint", "value"), VALUES, ids=[f"{value!r}"[:40] for _, value in VALUES])
async def test_arguments_and_results_arrive_as_what_they_were(app: Penstock, hint: Any, value: Any) -> None:
    seen: list[Any] = []

    async def function(x: Any) -> Any:
        seen.append(x)
        return x

    function.__annotations__ = {"x": hint, "return": hint}
    echo = app.task(name="echo")(function)
    job = await echo.enqueue(value)
    await app.run_until_idle()
    result = await job.result(timeout=5)
    assert (result, type(result)) == (value, type(value))
    assert (seen, type(seen[0])) == ([value], type(value))
    assert await asyncio.to_thread(job.result_sync) == value


# Many, and over time


@on_both
async def test_a_thousand_waiters_each_get_their_own_result(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    jobs = await app.enqueue_many(echo.call(number) for number in range(1_000))
    open_before = await connections(app)
    waiting = [asyncio.create_task(job.result(timeout=20)) for job in jobs]
    await eventually(lambda: _awaited(app, 1_000))
    assert await connections(app) <= open_before + 1_000 / PAGE + 1
    async with app.worker():
        assert await asyncio.gather(*waiting) == list(range(1_000))
    assert await _awaited(app, 0)


async def _awaited(app: Penstock, how_many: int) -> bool:
    client = await app.client.endpoint.client()
    return await client.hlen(app.client.engine.keys("waiting")) - 1 == how_many


async def test_a_caller_that_gives_up_waiting_disturbs_no_other(app: Penstock) -> None:
    gate = asyncio.Event()

    @app.task
    async def slow() -> str:
        await gate.wait()
        return "done"

    job = await slow.enqueue()
    async with app.worker():
        impatient = [asyncio.create_task(job.result(timeout=0.02)) for _ in range(10)]
        patient = asyncio.create_task(job.result(timeout=10))
        found = await asyncio.gather(*impatient, return_exceptions=True)
        assert {type(one) for one in found} == {TimeoutError}
        gone = asyncio.create_task(job.result())
        await asyncio.sleep(0)
        gone.cancel()
        gate.set()
        assert await patient == "done"


async def test_a_timeout_is_kept_and_the_job_goes_on(app: Penstock) -> None:
    @app.task(delay="1h")
    async def later() -> None: ...

    job = await later.enqueue()
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await job.result(timeout=0.2)
    with pytest.raises(TimeoutError, match=job.id):
        await asyncio.to_thread(job.result_sync, 0.2)
    assert 0.4 <= time.monotonic() - began < 1.5
    assert (await job.status()).state == "scheduled"


async def test_waiting_sends_nothing_to_the_server(app: Penstock) -> None:
    gate = asyncio.Event()

    @app.task
    async def slow(x: int) -> int:
        await gate.wait()
        return x

    jobs = [await slow.enqueue(number) for number in range(50)]
    async with app.worker():
        waiting = [asyncio.create_task(job.result()) for job in jobs]
        blocking = asyncio.create_task(asyncio.to_thread(jobs[0].result_sync, 10))
        await eventually(lambda: _awaited(app, 50))
        for job in jobs:
            await in_state(job, "running")
        before = await commands(app)
        await asyncio.sleep(1.5)  # the time over which nothing may happen
        assert await commands(app) - before <= 5
        gate.set()
        assert await asyncio.gather(*waiting) == list(range(50))
        assert await blocking == 0


async def test_a_result_comes_soon_after_the_end(app: Penstock) -> None:
    @app.task
    async def now() -> float:
        return time.monotonic()

    async with app.worker():
        await (await now.enqueue()).result(timeout=5)
        late = [time.monotonic() - await (await now.enqueue()).result(timeout=5) for _ in range(20)]
    assert sorted(late)[10] < 0.1


async def test_waiters_survive_the_loss_of_every_connection(app: Penstock) -> None:
    gate = asyncio.Event()

    @app.task
    async def slow() -> int:
        await gate.wait()
        return 1

    job = await slow.enqueue()
    async with app.worker():
        waiting = asyncio.create_task(job.result(timeout=10))
        blocking = asyncio.create_task(asyncio.to_thread(job.result_sync, 10))
        await in_state(job, "running")
        await kill_connections(app)
        gate.set()
        assert await waiting == 1
        assert await blocking == 1


async def test_a_result_is_delivered_across_a_restart_of_the_server() -> None:
    with running(Server("--appendonly", "yes", "--appendfsync", "always")) as server:
        async with own_app(server, namespace()) as app:
            gate = asyncio.Event()

            @app.task
            async def slow(x: int) -> int:
                await gate.wait()
                return x

            jobs = await app.enqueue_many(slow.call(number) for number in range(20))
            async with app.worker():
                waiting = [asyncio.create_task(job.result(timeout=20)) for job in jobs]
                blocking = asyncio.create_task(asyncio.to_thread(jobs[0].result_sync, 20))
                for job in jobs:
                    await in_state(job, "running")
                server.kill()
                gate.set()
                await asyncio.to_thread(server.restart)
                assert await asyncio.gather(*waiting) == list(range(20))
                assert await blocking == 0


# From blocking code


async def test_threads_wait_side_by_side(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    jobs = await app.enqueue_many(echo.call(number) for number in range(20))
    found: dict[int, int] = {}

    def wait(number: int) -> None:
        found[number] = jobs[number].result_sync(timeout=10)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    await eventually(lambda: _awaited(app, 20))
    async with app.worker():
        for thread in threads:
            await asyncio.to_thread(thread.join, 10)
    assert found == {number: number for number in range(20)}


async def test_result_sync_on_a_loop_is_refused_because_it_would_block_it(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    job = await echo.enqueue(1)
    with pytest.raises(PenstockError, match=r"await result\(\)"):
        job.result_sync(timeout=1)


async def test_every_question_has_a_twin_for_blocking_code(app: Penstock) -> None:
    @app.task(delay="1h")
    async def later() -> None: ...

    job = await later.enqueue()
    assert await asyncio.to_thread(job.status_sync) == await job.status()
    assert await asyncio.to_thread(job.explain_sync) == await job.explain()
    assert "scheduled until" in await job.explain()
    assert await asyncio.to_thread(app.get_job_sync, job.id) == job
    assert await asyncio.to_thread(later.get_job_sync, job.id) == job
    assert await asyncio.to_thread(job.cancel_sync) == "cancelled"
    again = await later.using(delay=0).enqueue()
    assert await again.cancel() == "cancelled"
    await asyncio.to_thread(again.retry_sync)
    assert (await again.status()).state == "ready"


async def test_closing_the_app_ends_the_waiting_with_an_error(app: Penstock) -> None:
    @app.task(delay="1h")
    async def later() -> None: ...

    job = await later.enqueue()
    waiting = asyncio.create_task(job.result())
    await eventually(lambda: _awaited(app, 1))
    await app.aclose()
    with pytest.raises(PenstockError, match="closed"):
        await waiting


async def test_the_status_shows_arguments_and_tags_with_secrets_hidden(app: Penstock) -> None:
    @app.task(tags=["red"], redact=["pin"])
    async def pay(user: int, pin: int, login: dict[str, Any], note: str = "") -> None: ...

    job = await pay.enqueue(7, pin=1234, login={"name": "ann", "Password": "x", "more": [{"api_key": "y"}]})
    for handle in (job, await app.get_job(job.id), await pay.get_job(job.id)):
        status = await handle.status()
        assert status.tags == ("red",)
        assert status.arguments == {
            "user": 7,
            "pin": "[redacted]",
            "login": {"name": "ann", "Password": "[redacted]", "more": [{"api_key": "[redacted]"}]},
        }
    await app.run_until_idle()
    assert (await job.status()).arguments is None


async def test_explain_says_what_a_job_waits_for(app: Penstock) -> None:
    gate = asyncio.Event()

    @app.task
    async def slow() -> None:
        await gate.wait()

    job = await slow.enqueue()
    assert "no live worker" in await job.explain()
    await app.client.engine.pause("default")
    assert "paused" in await job.explain()
    async with app.worker():
        await app.client.engine.resume("default")
        await in_state(job, "running")
        assert "running since" in await job.explain()
        gate.set()
        await job.result(timeout=5)
    assert "done since" in await job.explain()


async def test_without_waiting_the_result_of_a_finished_job_is_there_and_of_another_it_is_not(app: Penstock) -> None:
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    job = await double.enqueue(21)
    with pytest.raises(TimeoutError, match="it is ready"):
        await job.result(timeout=0)
    await app.run_until_idle()
    assert await job.result(timeout=0) == 42
    assert await asyncio.to_thread(job.result_sync, 0) == 42
    with pytest.raises(JobNotFound):
        await double.job("nobody").result(timeout=0)


@pytest.mark.parametrize("timeout", ["20ms", timedelta(milliseconds=20), 0.02])
async def test_a_time_out_is_written_like_other_times(app: Penstock, timeout: Any) -> None:
    @app.task(name="later")
    async def later() -> None: ...

    job = await later.using(delay="1h").enqueue()
    with pytest.raises(TimeoutError, match=r"within 0\.02 s"):
        await job.result(timeout)
    batch = await app.batch().open()
    with pytest.raises(TimeoutError, match=r"within 0\.02 s"):
        await batch.wait(timeout)
    with pytest.raises(TimeoutError, match=r"within 0\.02 s"):
        await asyncio.to_thread(job.result_sync, timeout)
    with pytest.raises(BadOption, match="timeout='soon'"):
        await job.result("soon")
