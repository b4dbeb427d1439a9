"""The worker inside a program: it runs what it should, as it should, and goes on whatever happens around it."""

import asyncio
import contextlib
import contextvars
import itertools
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import (
    Backoff,
    Bury,
    Job,
    JobCancelled,
    JobContext,
    JobFailed,
    Penstock,
    PenstockError,
    Retry,
    Snooze,
    StaleLease,
    current_job,
)
from penstock.worker import unknown_tasks
from penstock.worker.outcome import Raised, describe_error
from penstock.worker.tracebacks import trace_of
from tests.app_helpers import commands, eventually, in_state, kill_connections, on_both, own_app, twin
from tests.conftest import namespace
from tests.engine.factories import header_of
from tests.servers import Server, running

# Running


@on_both
async def test_async_tasks_run_on_the_loop_and_plain_ones_in_threads(app: Penstock) -> None:
    @app.task
    async def on_loop() -> int:
        return threading.get_ident()

    @app.task
    def in_thread() -> int:
        return threading.get_ident()

    async with app.worker():
        assert await (await on_loop.enqueue()).result(timeout=5) == threading.get_ident()
        assert await (await in_thread.enqueue()).result(timeout=5) != threading.get_ident()


def seen(job: JobContext) -> tuple[Any, ...]:
    return job.id, job.attempt, job.tags, job.state, job.cancelling, job.shutting_down, job.queue, job.task


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_current_job_knows_its_job(url: str, kind: str) -> None:
    @contextlib.asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        yield "the state"

    app = Penstock(namespace(), url=url, lifespan=lifespan)
    found: list[tuple[Any, ...]] = []
    fences: list[int] = []

    def look() -> None:
        found.append(seen(current_job()))
        fences.append(current_job().fence)
        if current_job().attempt == 1:
            raise ValueError

    @app.task(name="async", tags=["red", "blue"], backoff=[0], queue="q")
    async def on_loop() -> None:
        look()

    @app.task(name="thread", tags=["red", "blue"], backoff=[0], queue="q")
    def in_thread() -> None:
        look()

    job: Job[None] = await (on_loop if kind == "async" else in_thread).enqueue()
    other: Job[None] = await (on_loop if kind == "async" else in_thread).using(tags=[]).enqueue()
    await app.run_until_idle(concurrency=1)
    mine = [one for one in found if one[0] == job.id]
    assert mine == [(job.id, attempt, ("red", "blue"), "the state", False, False, "q", kind) for attempt in (1, 2)]
    assert {one[2] for one in found if one[0] == other.id} == {()}
    assert sorted(set(fences)) == fences
    assert all(isinstance(fence, int) for fence in fences)
    client = await app.client.endpoint.client()
    await client.delete(*app.client.engine.all_keys())
    await app.aclose()


def test_current_job_outside_of_a_job_is_an_error() -> None:
    with pytest.raises(PenstockError, match="outside of a running job"):
        current_job()


async def test_every_job_runs_in_a_context_of_its_own(app: Penstock) -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)

    @app.task
    async def on_loop(x: int) -> list[Any]:
        before = variable.get()
        variable.set(x)
        await asyncio.sleep(0)
        return [before, variable.get(), current_job().id]

    @app.task
    def in_thread(x: int) -> list[Any]:
        before = variable.get()
        variable.set(x)
        return [before, variable.get(), current_job().id]

    async with app.worker(concurrency=10):
        for task in (on_loop, in_thread):
            jobs = await app.enqueue_many(task.call(number) for number in range(1, 30))
            for number, job in enumerate(jobs, 1):
                assert await job.result(timeout=5) == [0, number, job.id]


async def test_the_lifespan_is_around_the_worker_and_its_last_job(url: str) -> None:
    told: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan() -> AsyncIterator[list[str]]:
        told.append("begin")
        yield told
        told.append("end")

    app = Penstock(namespace(), url=url, lifespan=lifespan)

    @app.task
    async def slow() -> None:
        await asyncio.sleep(0.05)
        current_job().state.append("ran")

    job = await slow.enqueue()
    async with app.worker():
        await in_state(job, "running")
    assert told == ["begin", "ran", "end"]
    client = await app.client.endpoint.client()
    await client.delete(*app.client.engine.all_keys())
    await app.aclose()


async def test_middleware_wraps_every_run_and_the_first_is_the_outermost(app: Penstock) -> None:
    told: list[str] = []

    @app.middleware
    async def outer(job: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
        assert current_job() is job
        told.append(f"outer {job.attempt}")
        try:
            return await call_next()
        finally:
            told.append("outer ends")

    @app.middleware
    async def inner(job: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
        told.append("inner")
        return f"<{await call_next()}>"

    @app.task(retries=1, backoff=[0])
    async def text() -> str:
        told.append("task")
        if current_job().attempt == 1:
            raise ValueError
        return "x"

    @app.task
    def plain() -> str:
        return "y"

    job = await text.enqueue()
    await app.run_until_idle()
    assert await job.result() == "<x>"
    once = ["inner", "task", "outer ends"]
    assert told == ["outer 1", *once, "outer 2", *once]
    other = await plain.enqueue()
    await app.run_until_idle()
    assert await other.result() == "<y>"


async def test_a_middleware_that_raises_fails_the_attempt_and_one_that_steers_is_heard(app: Penstock) -> None:
    @app.middleware
    async def moody(job: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
        if "bury" in job.tags:
            raise Bury("says the middleware")
        if job.attempt == 1:
            raise ValueError("not yet")
        return await call_next()

    @app.task(backoff=[0])
    async def task() -> int:
        return current_job().attempt

    job, buried = await task.enqueue(), await task.using(tags=["bury"]).enqueue()
    await app.run_until_idle()
    assert await job.result() == 2
    with pytest.raises(JobFailed, match="says the middleware"):
        await buried.result()


# Failing and steering


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_retries_wait_as_the_backoff_says_and_then_the_job_is_dead(app: Penstock, kind: str) -> None:
    starts: list[float] = []

    def fail() -> None:
        starts.append(time.monotonic())
        raise ValueError(f"attempt {current_job().attempt}")

    options: dict[str, Any] = {"retries": 3, "backoff": Backoff("linear", base="60ms", jitter=False)}

    @app.task(**options)
    async def on_loop() -> None:
        fail()

    @app.task(**options)
    def in_thread() -> None:
        fail()

    job: Job[None] = await (on_loop if kind == "async" else in_thread).enqueue()
    async with app.worker():
        with pytest.raises(JobFailed, match="attempt 4"):
            await job.result(timeout=10)
    waits = [after - before for before, after in itertools.pairwise(starts)]
    assert len(waits) == 3
    assert all(planned <= wait < planned + 0.25 for planned, wait in zip((0.06, 0.12, 0.18), waits, strict=True))
    status = await job.status()
    assert (status.state, status.reason, status.attempt) == ("dead", "retries_exhausted", 4)
    assert [(one.number, one.type, one.message) for one in status.attempts] == [
        (number, "ValueError", f"attempt {number}") for number in range(1, 5)
    ]
    assert all(one.started <= one.ended for one in status.attempts)


async def test_a_list_of_delays_is_followed_and_its_last_repeats(app: Penstock) -> None:
    starts: list[float] = []

    @app.task(retries=3, backoff=["10ms", "300ms"])
    async def fail() -> None:
        starts.append(time.monotonic())
        raise ValueError

    job = await fail.enqueue()
    async with app.worker():
        with pytest.raises(JobFailed):
            await job.result(timeout=10)
    waits = [after - before for before, after in itertools.pairwise(starts)]
    assert 0.01 <= waits[0] < min(waits[1:])
    assert min(waits[1:]) >= 0.3


async def test_a_retry_is_scheduled_with_an_attempt_behind_it(app: Penstock) -> None:
    @app.task(backoff=["1h"])
    async def fail() -> None:
        raise ValueError("no")

    job = await fail.enqueue()
    await app.run_until_idle()
    status = await job.status()
    assert (status.state, status.attempt, status.reason) == ("scheduled", 1, "ValueError")
    assert "ValueError" in await job.explain()


class Temporary(Exception):
    pass


class VeryTemporary(Temporary):
    pass


async def test_retry_on_and_give_up_on_decide_by_class_and_its_parents(app: Penstock) -> None:
    raised: list[type[Exception]] = [VeryTemporary, Temporary, KeyError, LookupError]

    @app.task(name="retry_on", retries=1, backoff=[0], retry_on=Temporary)
    async def retried(which: int) -> None:
        raise raised[which]

    @app.task(name="give_up_on", retries=1, backoff=[0], give_up_on=[LookupError, VeryTemporary])
    def given_up(which: int) -> None:
        raise raised[which]

    jobs = [await task.enqueue(which) for task in (retried, given_up) for which in range(4)]
    await app.run_until_idle()
    found = [((await job.status()).attempt, (await job.status()).reason) for job in jobs]
    twice, once = (2, "retries_exhausted"), (1, "given_up")
    assert found == [twice, twice, once, once, once, twice, once, once]


async def test_retry_on_and_give_up_on_of_one_call_replace_the_tasks(app: Penstock) -> None:
    @app.task(retries=1, backoff=["1h"], retry_on=[Temporary], give_up_on=[LookupError])
    async def fail(key: bool) -> None:
        raise KeyError if key else Temporary

    tasks = [
        fail.using(give_up_on=[], retry_on=[Exception], backoff=[0]),
        fail.using(give_up_on=Temporary, backoff=[0]),
        fail.using(retry_on=[], backoff=[0]),
        fail.using(retries=0),
    ]
    jobs = [await task.enqueue(key) for task in tasks for key in (True, False)]
    await app.run_until_idle()
    assert [(await job.status()).attempt for job in jobs] == [2, 2, 1, 1, 1, 1, 1, 1]


async def test_a_task_may_ask_for_a_retry_a_snooze_or_the_dead_letter(app: Penstock) -> None:
    told: list[tuple[str, int]] = []

    @app.task(retries=2, backoff=["1h"])
    async def retry() -> str:
        told.append(("retry", current_job().attempt))
        if current_job().attempt <= 2:
            raise Retry("20ms")
        return "third time"

    @app.task(retries=0)
    def snooze() -> str:
        told.append(("snooze", current_job().attempt))
        if len([one for one in told if one[0] == "snooze"]) <= 3:
            raise Snooze("20ms")
        return "awake"

    @app.task(retries=5)
    async def bury() -> None:
        told.append(("bury", current_job().attempt))
        raise Bury("hopeless")

    async with app.worker():
        first, second, third = await retry.enqueue(), await snooze.enqueue(), await bury.enqueue()
        assert await first.result(timeout=5) == "third time"
        assert await second.result(timeout=5) == "awake"
        with pytest.raises(JobFailed, match="hopeless"):
            await third.result(timeout=5)
    assert Counter(told) == Counter([("retry", 1), ("retry", 2), ("retry", 3), ("bury", 1), *[("snooze", 1)] * 4])
    assert (await second.status()).attempt == 1
    assert (await third.status()).reason == "hopeless"


async def test_a_retry_without_a_delay_follows_the_backoff_and_ends_with_the_budget(app: Penstock) -> None:
    @app.task(retries=2, backoff=[0])
    async def again() -> None:
        raise Retry

    job = await again.enqueue()
    await app.run_until_idle()
    status = await job.status()
    assert (status.state, status.attempt, status.reason) == ("dead", 3, "retries_exhausted")


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_timeout_fails_the_attempt(app: Penstock, kind: str) -> None:
    gone = threading.Event()

    @app.task(timeout="50ms", retries=1, backoff=[0])
    async def on_loop() -> None:
        await asyncio.sleep(60)

    @app.task(timeout="50ms", retries=1, backoff=[0])
    def in_thread() -> None:
        while not current_job().cancelling:
            gone.wait(0.005)

    job: Job[None] = await (on_loop if kind == "async" else in_thread).enqueue()
    quick: Job[None] = await on_loop.using(timeout="5ms", retries=0).enqueue()
    async with app.worker():
        with pytest.raises(JobFailed, match="TimeoutError"):
            await job.result(timeout=5)
        with pytest.raises(JobFailed, match="TimeoutError"):
            await quick.result(timeout=5)
    assert (await job.status()).attempt == 2


@pytest.mark.parametrize("how", ["fails", "overruns", "fails in a thread"])
async def test_a_traceback_begins_with_the_users_code(app: Penstock, how: str) -> None:
    @app.middleware
    async def around(job: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
        return await call_next()

    @app.task(timeout="50ms", retries=0)
    async def on_loop() -> None:
        if how == "fails":
            raise ValueError(how) from KeyError("cause")
        await asyncio.sleep(60)

    @app.task(retries=0)
    def in_thread() -> None:
        raise ValueError(how)

    job = await (in_thread if how == "fails in a thread" else on_loop).enqueue()
    await app.run_until_idle()
    (failure,) = (await job.status()).attempts
    frames = [line for line in failure.traceback.splitlines() if line.startswith("  File")]
    assert "in around" in frames[0]
    assert ("in in_thread" if how == "fails in a thread" else "in on_loop") in frames[1]
    assert "penstock/worker" not in failure.traceback
    assert failure.traceback.rstrip().endswith(f"{failure.type}: {failure.message}")


def test_a_fault_of_the_worker_itself_is_shown_whole() -> None:
    try:
        describe_error(Raised.__new__(Raised))
    except AttributeError as error:
        within = error.with_traceback(error.__traceback__.tb_next if error.__traceback__ else None)
        assert "penstock/worker/outcome.py" in trace_of(within)
    else:
        pytest.fail("that was no fault")


async def test_a_timeout_of_none_lifts_the_tasks(app: Penstock) -> None:
    @app.task(timeout="20ms", retries=0)
    async def slow() -> int:
        await asyncio.sleep(0.1)
        return 1

    job = await slow.using(timeout=None).enqueue()
    await app.run_until_idle()
    assert await job.result() == 1


# Cancelling


async def test_a_waiting_job_that_is_cancelled_never_runs(app: Penstock) -> None:
    ran: list[int] = []

    @app.task
    async def note(x: int) -> None:
        ran.append(x)

    jobs = [await note.enqueue(0), await note.using(delay="10ms").enqueue(1)]
    assert [await job.cancel() for job in jobs] == ["cancelled", "cancelled"]
    kept = await note.using(delay="30ms").enqueue(2)
    async with app.worker():
        await kept.result(timeout=5)
    assert ran == [2]


@on_both
async def test_a_running_async_job_is_cancelled_within_a_second(app: Penstock) -> None:
    told: list[str] = []

    @app.task
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            told.append("cancelled" if current_job().cancelling else "stopped")
            raise

    async with app.worker(), twin(app) as elsewhere:
        jobs = [await slow.enqueue() for _ in range(10)]
        for job in jobs:
            await in_state(job, "running")
        began = time.monotonic()
        assert [await (await elsewhere.get_job(job.id)).cancel() for job in jobs] == ["cancelling"] * 10
        for job in jobs:
            with pytest.raises(JobCancelled):
                await job.result(timeout=5)
        assert time.monotonic() - began < 1
        assert told == ["cancelled"] * 10
        assert await jobs[0].cancel() == "cancelled"
        status = await jobs[0].status()
        assert (status.state, status.reason, status.cancelling) == ("cancelled", "cancelled", False)


async def test_a_thread_sees_that_it_is_cancelled_and_others_go_on(app: Penstock) -> None:
    started = threading.Event()

    @app.task
    def slow() -> None:
        started.set()
        while not current_job().cancelling:
            time.sleep(0.005)

    @app.task
    async def quick() -> int:
        return 1

    async with app.worker(concurrency=2):
        job = await slow.enqueue()
        await asyncio.to_thread(started.wait, 5)
        assert await job.cancel() == "cancelling"
        assert await (await quick.enqueue()).result(timeout=5) == 1
        with pytest.raises(JobCancelled):
            await job.result(timeout=2)


async def test_a_job_that_will_not_be_cancelled_and_returns_is_done(app: Penstock) -> None:
    @app.task
    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "finished nevertheless"
        return ""

    async with app.worker():
        job = await stubborn.enqueue()
        await in_state(job, "running")
        assert await job.cancel() == "cancelling"
        assert await job.result(timeout=5) == "finished nevertheless"


async def test_a_job_that_fails_while_it_is_cancelled_is_cancelled(app: Penstock) -> None:
    @app.task
    async def clumsy() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise ValueError("while cleaning up")

    async with app.worker():
        job = await clumsy.enqueue()
        await in_state(job, "running")
        await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result(timeout=5)


# Progress and expiry


async def test_progress_is_shown_in_the_status(app: Penstock) -> None:
    gate = asyncio.Event()
    passed = threading.Event()

    @app.task
    async def slow() -> None:
        await current_job().progress(1, 3, "one of three")
        await gate.wait()

    @app.task
    def blocking() -> None:
        current_job().progress_sync(0.5, message="half")
        passed.wait(5)

    async with app.worker():
        job, other = await slow.enqueue(), await blocking.enqueue()
        await eventually(lambda: _progress(job))
        await eventually(lambda: _progress(other))
        assert (await job.status()).progress == (1, 3, "one of three")
        assert (await other.status()).progress == (0.5, None, "half")
        gate.set()
        passed.set()
        await job.result(timeout=5)
        await other.result(timeout=5)


async def _progress(job: Job[Any]) -> bool:
    return (await job.status()).progress is not None


async def test_an_expired_job_never_runs(app: Penstock) -> None:
    ran: list[int] = []

    @app.task
    async def note(x: int) -> None:
        ran.append(x)

    late = [await note.using(expires="1ms").enqueue(number) for number in range(5)]
    kept = await note.using(expires="1h").enqueue(9)
    last = (await late[-1].status()).expires
    assert last is not None
    await eventually(lambda: _now(app) > last)
    await app.run_until_idle()
    await kept.result(timeout=5)
    assert ran == [9]
    assert {(await job.status()).reason for job in late} == {"expired"}


def _now(app: Penstock) -> datetime:
    seconds, microseconds = app.client.endpoint.client_sync().time()
    return datetime.fromtimestamp(seconds + microseconds / 1e6, UTC)


# Queues and limits


async def test_named_queues_are_worked_off_in_strict_order_and_others_left_alone(app: Penstock) -> None:
    ran: list[str] = []

    @app.task
    async def note(x: str) -> None:
        ran.append(x)

    for queue in ("third", "second", "first", "elsewhere"):
        await app.enqueue_many(note.using(queue=queue).call(queue) for _ in range(5))
    await app.run_until_idle(queues="first,second,third", concurrency=1)
    assert ran == ["first"] * 5 + ["second"] * 5 + ["third"] * 5
    assert (await app.client.views.counts())["elsewhere"]["ready"] == 5


async def test_weighted_queues_get_about_their_share(app: Penstock) -> None:
    ran: list[str] = []

    @app.task
    async def note(x: str) -> None:
        ran.append(x)

    for queue in ("much", "little"):
        await app.enqueue_many(note.using(queue=queue).call(queue) for _ in range(400))
    async with app.worker(queues=["much:4", "little:1"], concurrency=1):
        await eventually(lambda: len(ran) >= 300, within=15)
    counted = Counter(ran[:300])
    assert 200 < counted["much"] < 280
    assert counted["little"] > 20


async def test_without_names_all_queues_are_one_line(app: Penstock) -> None:
    ran: list[int] = []

    @app.task
    async def note(x: int) -> None:
        ran.append(x)

    for number in range(20):
        await note.using(queue=f"q{number % 3}", priority=50 if number < 10 else 49).enqueue(number)
    await app.run_until_idle(concurrency=1)
    assert ran == [*range(10, 20), *range(10)]


@pytest.mark.parametrize("concurrency", [1, 2, 5, 250])
async def test_no_more_jobs_run_at_once_than_allowed_and_no_fewer_when_there_is_work(
    app: Penstock, concurrency: int
) -> None:
    at_once, most, gate = 0, 0, asyncio.Event()

    @app.task
    async def count() -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if at_once == concurrency:
            gate.set()
        await gate.wait()
        await asyncio.sleep(0)
        at_once -= 1

    jobs = await app.enqueue_many(count.call() for _ in range(2 * concurrency + 3))
    async with app.worker(concurrency=concurrency):
        async with asyncio.timeout(60):
            await gate.wait()
        await asyncio.gather(*(job.result(timeout=60) for job in jobs))
    assert most == concurrency


async def test_a_worker_with_more_slots_than_a_page_asks_on_until_they_are_filled(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when it looks by itself, should a letter have been lost: a full page says that there may be more."""
    monkeypatch.setattr("penstock.worker.fetch.IDLE_POLL_INTERVAL", 3600)
    at_once, gate = 0, asyncio.Event()

    @app.task
    async def count() -> None:
        nonlocal at_once
        at_once += 1
        if at_once == 450:
            gate.set()
        await gate.wait()

    await app.enqueue_many(count.call() for _ in range(450))
    async with app.worker(concurrency=450), asyncio.timeout(60):
        await gate.wait()


async def test_pause_holds_a_queue_and_resume_lets_it_go_at_once(app: Penstock) -> None:
    @app.task
    async def now() -> float:
        return time.monotonic()

    engine = app.client.engine
    async with app.worker():
        await (await now.enqueue()).result(timeout=5)
        assert await engine.pause("default") == "ok"
        held = [await now.enqueue() for _ in range(3)]
        other = await now.using(queue="other").enqueue()
        await other.result(timeout=5)
        assert {(await job.status()).state for job in held} == {"ready"}
        resumed = time.monotonic()
        assert await engine.resume("default") == "ok"
        ran = [await job.result(timeout=5) for job in held]
        assert all(0 < at - resumed < 1 for at in ran)


# Several workers, and jobs that make jobs


@on_both
async def test_two_workers_share_the_work_and_run_everything_once(app: Penstock) -> None:
    ran: Counter[int] = Counter()
    names: set[str] = set()

    @app.task
    async def note(x: int) -> None:
        ran[x] += 1
        names.add(current_job()._worker)
        await asyncio.sleep(0.001)

    jobs = await app.enqueue_many(note.call(number) for number in range(500))
    async with app.worker(concurrency=10), app.worker(concurrency=10):
        await asyncio.gather(*(job.result(timeout=20) for job in jobs))
    assert ran == Counter(range(500))
    assert len(names) == 2


async def test_a_job_may_enqueue_others_and_wait_for_them(app: Penstock) -> None:
    @app.task
    async def leaf(x: int) -> int:
        return x

    @app.task
    async def branch(depth: int) -> int:
        if depth == 0:
            return await (await leaf.enqueue(1)).result()
        jobs = await app.enqueue_many(branch.call(depth - 1) for _ in range(3))
        return sum(await asyncio.gather(*(job.result() for job in jobs)))

    @app.task
    def from_a_thread() -> int:
        return branch.enqueue_sync(2).result_sync(timeout=10)

    async with app.worker():
        assert await (await branch.enqueue(3)).result(timeout=10) == 27
        assert await (await from_a_thread.enqueue()).result(timeout=10) == 9


async def test_run_until_idle_runs_what_is_ready_and_what_that_makes_ready_and_leaves_the_rest(app: Penstock) -> None:
    ran: list[int] = []

    @app.task(retries=1, backoff=[0])
    async def chain(x: int) -> None:
        ran.append(x)
        if x < 3:
            await chain.enqueue(x + 1)
        elif current_job().attempt == 1:
            raise ValueError

    later = await chain.using(delay="1h").enqueue(9)
    await chain.enqueue(0)
    await app.run_until_idle()
    assert ran == [0, 1, 2, 3, 3]
    assert (await later.status()).state == "scheduled"
    await app.run_until_idle()
    assert await app.client.views.workers() == []


async def test_a_task_that_this_worker_does_not_know_is_put_off_and_not_charged(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unknown_tasks, "MIN_DELAY", 500)

    @app.task
    async def known() -> int:
        return 1

    async with twin(app) as newer:

        @newer.task(name="brand:new", retries=0)
        async def new() -> int:
            return 2

        job = await new.enqueue()
        async with app.worker():
            await in_state(job, "scheduled")
            assert await (await known.enqueue()).result(timeout=5) == 1
        status = await job.status()
        assert (status.state, status.reason, status.attempt) == ("scheduled", "unknown_task", 0)
        assert "unknown_task" in await job.explain()
        async with newer.worker():
            assert await job.result(timeout=10) == 2


# Stopping


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_worker_that_stops_lets_running_jobs_finish_and_takes_no_more(app: Penstock, kind: str) -> None:
    gate = threading.Event()
    told: list[bool] = []

    @app.task
    async def on_loop() -> int:
        await asyncio.to_thread(gate.wait, 5)
        told.append(current_job().shutting_down)
        return 1

    @app.task
    def in_thread() -> int:
        gate.wait(5)
        told.append(current_job().shutting_down)
        return 1

    task = on_loop if kind == "async" else in_thread
    first: Job[int] = await task.enqueue()
    worker = app.worker(concurrency=1)
    working = asyncio.create_task(worker.run())
    await in_state(first, "running")
    second: Job[int] = await task.enqueue()
    worker.stop()
    await eventually(lambda: worker._slots.is_draining)
    gate.set()
    await working
    assert told == [True]
    assert await first.result() == 1
    assert (await second.status()).state == "ready"
    assert await app.client.views.workers() == []
    await app.run_until_idle()
    assert await second.result() == 1


async def test_jobs_that_outlast_the_grace_go_back_without_using_an_attempt(app: Penstock) -> None:
    told: list[str] = []
    begun = asyncio.Event()

    @app.task(retries=0)
    async def slow() -> int:
        if told:
            return current_job().attempt
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            told.append(f"stopped: {current_job().cancelling}")
            raise
        return 0

    first, second = await slow.enqueue(), await slow.enqueue()
    began = time.monotonic()
    async with app.worker(grace="50ms", concurrency=1):
        await begun.wait()
    assert time.monotonic() - began < 2
    header = await header_of(app.client.engine, first.id)
    assert (header.state, header.attempt, header.releases) == ("ready", 0, 1)
    assert header.seq < (await header_of(app.client.engine, second.id)).seq
    await app.run_until_idle()
    assert await first.result() == 1
    assert told == ["stopped: False"]


async def test_a_cancelled_worker_stops_as_orderly(app: Penstock) -> None:
    gate = asyncio.Event()

    @app.task
    async def slow() -> int:
        await gate.wait()
        return 1

    job = await slow.enqueue()
    working = asyncio.create_task(app.worker().run())
    await in_state(job, "running")
    working.cancel()
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert await job.result() == 1
    assert await app.client.views.workers() == []


async def test_an_error_in_the_program_around_it_stops_the_worker_and_is_raised(app: Penstock) -> None:
    @app.task
    async def quick() -> int:
        return 1

    job = await quick.enqueue()
    with pytest.raises(LookupError):
        await _stumble(app, job)
    assert await app.client.views.workers() == []
    assert not [thread for thread in threading.enumerate() if thread.name == "penstock-renew"]


async def _stumble(app: Penstock, job: Job[int]) -> None:
    async with app.worker():
        await job.result(timeout=5)
        raise LookupError


# Trouble


async def test_a_worker_goes_on_after_every_connection_was_killed(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    async with app.worker(), twin(app) as killer:
        for number in range(5):
            jobs = [asyncio.create_task(_round(echo, 10 * number + i)) for i in range(10)]
            await kill_connections(killer)
            assert await asyncio.gather(*jobs) == [10 * number + i for i in range(10)]


async def _round(task: Any, x: int) -> int:
    job = await task.enqueue(x)
    return int(await job.result(timeout=5))


async def test_a_worker_goes_on_within_seconds_after_a_restart_of_the_server() -> None:
    with running(Server("--appendonly", "yes", "--appendfsync", "always")) as server:
        async with own_app(server, namespace()) as app:
            ran: Counter[int] = Counter()

            @app.task
            async def note(x: int) -> int:
                ran[x] += 1
                await asyncio.sleep(0.01)
                return x

            async with app.worker(concurrency=5):
                jobs = await app.enqueue_many(note.call(number) for number in range(100))
                await eventually(lambda: len(ran) > 20)
                server.kill()
                await asyncio.to_thread(server.restart)
                began = time.monotonic()
                assert await asyncio.gather(*(job.result(timeout=10) for job in jobs)) == list(range(100))
                assert await (await note.enqueue(100)).result(timeout=5) == 100
                assert time.monotonic() - began < 5
            assert ran == Counter(range(101))


async def test_a_worker_goes_on_when_the_server_came_back_empty() -> None:
    with running(Server("--appendonly", "no")) as server:
        async with own_app(server, namespace()) as app:

            @app.task
            async def echo(x: int) -> int:
                return x

            async with app.worker():
                assert await (await echo.enqueue(1)).result(timeout=5) == 1
                server.kill()
                await asyncio.to_thread(server.restart)
                assert await (await echo.enqueue(2)).result(timeout=5) == 2


async def test_a_worker_that_was_taken_for_dead_goes_on_under_a_new_name(app: Penstock) -> None:
    gate = asyncio.Event()
    told: list[Any] = []

    @app.task
    async def slow(x: int) -> int:
        attempt = current_job().attempt
        await gate.wait()
        if attempt == 1:
            try:
                await current_job().progress(1)
            except StaleLease as error:
                told.append(error)
                raise
        return 10 * x + attempt

    engine = app.client.engine
    async with app.worker(concurrency=2, lease="300ms") as worker:
        job = await slow.enqueue(1)
        await in_state(job, "running")
        name = worker.name
        assert await engine.reap_worker(name, [job.id], 300) == (1, 0)
        await eventually(lambda: worker.name != name)
        await eventually(lambda: _attempt(job, 2))
        gate.set()
        assert await job.result(timeout=5) == 12
        assert await (await slow.enqueue(2)).result(timeout=5) == 21
        assert len(told) == 1
        assert [node.worker for node in await app.client.views.workers()] == [worker.name]
    assert [one.outcome for one in (await job.status()).attempts] == ["crash"]


async def _attempt(job: Job[Any], number: int) -> bool:
    status = await job.status()
    return status.state == "running" and status.attempt == number


async def test_a_task_that_blocks_the_loop_costs_no_lease(app: Penstock) -> None:
    @app.task(retries=0)
    async def rude() -> int:
        time.sleep(1.0)  # noqa: ASYNC251  (that is the point)
        return current_job().attempt

    job = await rude.enqueue()
    async with twin(app) as elsewhere:
        timer = asyncio.to_thread(asyncio.run, _reaping(elsewhere.name, str(app.settings.url), 1.5))
        reaping = asyncio.create_task(timer)
        async with app.worker(lease="300ms"):
            assert await job.result(timeout=5) == 1
        await reaping
    assert (await job.status()).attempts == ()


async def _reaping(name: str, url: str, seconds: float) -> None:
    """Another worker's timer, which looks for dead workers all the time."""
    app = Penstock(name, url=url)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        await app.client.engine.reap(300)
        await asyncio.sleep(0.05)
    await app.aclose()


async def test_an_idle_worker_sends_less_than_a_command_per_second(app: Penstock) -> None:
    @app.task
    async def quick() -> int:
        return 1

    async with app.worker():
        await (await quick.enqueue()).result(timeout=5)
        await asyncio.sleep(0.2)  # the last rounds of what just ran
        before = await commands(app)
        await asyncio.sleep(5)  # the time over which it is measured
        assert await commands(app) - 1 - before < 5  # one was the question


async def test_a_job_for_an_idle_worker_takes_three_calls(app: Penstock) -> None:
    started: asyncio.Queue[None] = asyncio.Queue()

    @app.task
    async def quick() -> None:
        started.put_nowait(None)

    async with app.worker():
        await asyncio.sleep(0.2)  # its first rounds
        before = await commands(app)
        for _ in range(20):
            await quick.enqueue()
            await started.get()
            await asyncio.sleep(0.05)  # until it is settled
        assert await commands(app) - 1 - before <= 3 * 20 + 5  # enqueue, lease, complete; and what keeps a worker alive
