"""The contract as type checkers see it: every line here is checked by mypy --strict and by pyright, none is run."""

from collections.abc import AsyncIterator, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from penstock import (
    Backoff,
    Batch,
    BatchStatus,
    Bury,
    Call,
    Job,
    JobStatus,
    Penstock,
    PenstockError,
    Retry,
    ScheduleStatus,
    Snooze,
    Worker,
    current_job,
)
from penstock.testing import Enqueued, Sandbox

app = Penstock("shop")


@app.task(queue="mail", priority=20, retries=5, backoff=Backoff("exponential", base="1s", cap="10m"), timeout="30s")
async def send(user: int, subject: str = "hi") -> str:
    return f"{user} {subject}"


@app.task
def resize(path: str, *, width: int = 100) -> bytes:
    return path.encode() * width


@app.task
async def nothing() -> None:
    pass


async def plain_calls() -> None:
    coroutine = send(7)
    _ = assert_type(coroutine, Coroutine[Any, Any, str])
    assert_type(await coroutine, str)
    assert_type(await send(7), str)
    assert_type(resize("a", width=3), bytes)


async def enqueueing() -> None:
    assert_type(await send.enqueue(7, subject="x"), Job[str])
    assert_type(send.enqueue_sync(7), Job[str])
    assert_type(resize.call("a"), Call[bytes])
    assert_type(await nothing.enqueue(), Job[None])
    assert_type(await send.using(delay="10m", priority=0, at=datetime.now(UTC)).enqueue(7), Job[str])
    assert_type(send.using(delay=timedelta(minutes=10)).call(7, subject="x"), Call[str])
    assert_type(await app.enqueue_many(send.call(i) for i in range(3)), list[Job[str]])
    assert_type(await app.enqueue_many([resize.call("a"), resize.call("b")]), list[Job[bytes]])
    assert_type(app.enqueue_many_sync(_some()), list[Job[str]])
    assert_type(await app.enqueue_many(_more()), list[Job[str]])


def _some() -> Iterator[Call[str]]:
    yield send.call(1)


async def _more() -> AsyncIterator[Call[str]]:
    yield send.call(1)


async def handles(job: Job[str]) -> None:
    assert_type(job.id, str)
    assert_type(job.created, bool)
    assert_type(await job.status(), JobStatus)
    assert_type(job.status_sync(), JobStatus)
    assert_type(await job.result(timeout=5), str)
    assert_type(job.result_sync(), str)
    assert_type(await job.cancel(), str)
    assert_type(await job.explain(), str)
    assert_type(await app.get_job("x"), Job[Any])
    assert_type(await send.get_job("x"), Job[str])
    assert_type(await (await nothing.enqueue()).result(), None)


@app.cron("0 3 * * TUE", tz="Europe/Berlin", catch_up="latest", overlap="skip", jitter="5m")
@app.every("30s", id="often", args=[7], kwargs={"text": "x"})
@app.task
async def scheduled(number: int = 1, *, text: str = "") -> str:
    return text * number


async def schedules(job: Job[str]) -> None:
    assert_type(await scheduled(3), str)
    assert_type(await scheduled.enqueue(3, text="x"), Job[str])
    assert_type(await app.schedule("often").set(scheduled.call(2), every="1m"), str)
    assert_type(await app.schedule("often").run(), Job[Any])
    assert_type(await app.schedule("often").status(), ScheduleStatus)
    assert_type(await app.schedules(), list[ScheduleStatus])
    await job.reschedule(delay="10m")
    await job.reschedule(at=datetime.now(UTC))
    await job.run_now()


@app.task
async def report(status: BatchStatus) -> None:
    assert_type(status.total, int)
    assert_type(status.open, bool)
    assert_type(status.ended, datetime | None)


async def batches() -> None:
    async with app.batch("nightly", limit=8, priority=20, then=report, on_failure=report, on_error="cancel") as batch:
        assert_type(batch, Batch)
        assert_type(await batch.add(send.call(7)), Job[str])
        assert_type(await batch.add_many(send.call(i) for i in range(3)), list[Job[str]])
        assert_type(batch.add_sync(resize.call("a")), Job[bytes])
        assert_type(batch.batch("inside", then=report), Batch)
    assert_type(await batch.wait(timeout=60), BatchStatus)
    assert_type(batch.wait_sync(), BatchStatus)
    async for job in batch.as_completed():
        assert_type(job, Job[Any])
    assert_type(await app.get_batch(batch.id), Batch)
    assert_type(app.get_batch_sync(batch.id), Batch)
    assert_type(await batch.status(), BatchStatus)
    assert_type(await batch.cancel(), BatchStatus)
    assert_type(await batch.retry_failed(), int)
    await batch.set(priority=5, limit=2)
    await batch.seal()
    assert_type(await app.map(send, range(3), limit=8, progress=True), list[str])
    assert_type(await app.map(resize, ["a"], return_exceptions=True), list[bytes | PenstockError])
    assert_type(app.map_sync(send, [1]), list[str])
    await app.map(send, ["seven"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def workers() -> None:
    async with app, app.worker(queues=["mail"], concurrency=5) as worker:
        assert_type(worker, Worker)
    await app.worker(queues="mail,default").run()
    await app.run_until_idle()


async def testing() -> None:
    async with Sandbox(app, inline=True, schedules=False) as sandbox:
        assert_type(sandbox, Sandbox)
        assert_type(sandbox.assert_enqueued(send.using(delay="10m").call(7), times=1), list[Enqueued])
        assert_type(sandbox.enqueued(send, where={"user": 7})[0].arguments, dict[str, Any])
        sandbox.assert_not_enqueued(resize)
        sandbox.clock.advance("1h")
        assert_type(sandbox.clock.now(), datetime)
        await sandbox.run_until_idle(queues="mail")
        await sandbox.run_for("1d")
        with sandbox.inline(raises=False):
            await send.enqueue(7)
    with Sandbox(app) as sandbox:
        sandbox.run_until_idle_sync()
        sandbox.assert_enqueued(send.call("seven"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        sandbox.assert_enqueued("send")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@app.task
async def steering() -> int:
    job = current_job()
    await job.progress(1, 2, "half")
    job.log("a line")
    if job.attempt > 2 and not job.cancelling:
        raise Bury("enough")
    if job.shutting_down:
        raise Snooze("1s")
    raise Retry(0.5)


async def refused() -> None:
    await send.enqueue("seven")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await send.enqueue()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await send.enqueue(7, nobody=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    send.call(7, subject=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await send("seven")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    send.using(prioritty=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    send.using(priority="high")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    resize.enqueue_sync("a", 3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    app.task(queu="mail")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
