"""The stream of a queue: jobs taken by hand."""

import asyncio

import pytest

from penstock import BadOption, Bury, Penstock, PenstockError, Snooze, StaleLease, current_job
from penstock.engine.read.views import Views


async def _counts(app: Penstock, queue: str = "mail") -> dict[str, int]:
    counts = (await Views(app.client.engine).counts()).get(queue, {})
    return {state: number for state, number in counts.items() if number}


async def test_leaving_a_lease_completes_its_job(app: Penstock) -> None:
    @app.task(name="send", queue="mail")
    async def send(user: int, subject: str = "hi") -> str:
        return subject

    jobs = [await send.using(tags=["x"]).enqueue(n) for n in range(3)]
    seen = []
    async with asyncio.timeout(30), app.queue("mail").stream(limit=2) as leases:
        async for lease in leases:
            async with lease as job:
                seen.append((job.id, job.attempt, job.arguments["user"], job.tags))
                assert current_job() is job
                lease.result = f"sent {job.arguments['user']}"
            assert await jobs[len(seen) - 1].result(timeout=0) == f"sent {len(seen) - 1}"
            if len(seen) == 3:
                break
    assert seen == [(job.id, 1, n, ("x",)) for n, job in enumerate(jobs)]
    assert await _counts(app) == {"done": 3}


async def test_an_exception_fails_the_job_by_its_task_s_policy_and_goes_on(app: Penstock) -> None:
    @app.task(name="send", queue="mail", retries=1, backoff=[0])
    async def send() -> None: ...

    job = await send.enqueue()
    async with asyncio.timeout(30), app.queue("mail").stream() as leases:
        for attempt in (1, 2):
            lease = await anext(leases)
            with pytest.raises(ValueError, match="no"):  # noqa: PT012  (the block is what is tested)
                async with lease as taken:
                    assert taken.attempt == attempt
                    raise ValueError("no")
    status = await job.status()
    assert (status.state, [attempt.type for attempt in status.attempts]) == ("dead", ["ValueError"] * 2)


@pytest.mark.parametrize(("steer", "state"), [(Snooze("1h"), "scheduled"), (Bury("bad"), "dead")])
async def test_retry_snooze_and_bury_are_no_errors(app: Penstock, steer: Exception, state: str) -> None:
    @app.task(name="send", queue="mail")
    async def send() -> None: ...

    job = await send.enqueue()
    async with asyncio.timeout(30), app.queue("mail").stream() as leases, await anext(leases):
        raise steer
    assert (await job.status()).state == state


async def test_no_more_than_the_limit_are_unsettled(app: Penstock) -> None:
    @app.task(name="send", queue="mail")
    async def send(number: int) -> None: ...

    await app.enqueue_many(send.call(n) for n in range(20))
    async with asyncio.timeout(30), app.queue("mail").stream(limit=4) as leases:
        held = [await anext(leases) for _ in range(4)]
        waiting = asyncio.ensure_future(anext(leases))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        assert (await _counts(app))["running"] == 4
        await held[0].complete()
        held.append(await waiting)
        assert (await _counts(app))["running"] == 4
    assert await _counts(app) == {"ready": 19, "done": 1}


async def test_a_limit_above_a_page_is_filled_without_a_wait(app: Penstock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.worker.queue_stream.IDLE_POLL_INTERVAL", 3600)

    @app.task(name="send", queue="mail")
    async def send(number: int) -> None: ...

    await app.enqueue_many(send.call(n) for n in range(250))
    async with asyncio.timeout(60), app.queue("mail").stream(limit=250) as leases:
        held = [await anext(leases) for _ in range(250)]
        assert len({lease.id for lease in held}) == 250


async def test_leaving_gives_the_rest_back_at_once_and_uses_no_attempt(app: Penstock) -> None:
    @app.task(name="send", queue="mail")
    async def send(number: int) -> None: ...

    jobs = await app.enqueue_many(send.call(n) for n in range(10))
    with pytest.raises(RuntimeError, match="stop"):  # noqa: PT012  (the block is what is tested)
        async with asyncio.timeout(30), app.queue("mail").stream(limit=10) as leases:
            async for lease in leases:
                async with lease:
                    pass
                raise RuntimeError("stop")
    assert await _counts(app) == {"ready": 9, "done": 1}
    assert {(await job.status()).attempt for job in jobs[1:]} == {0}
    assert await app.client.views.workers() == []
    await app.run_until_idle()
    assert await _counts(app) == {"done": 10}


async def test_a_consumer_that_is_cancelled_leaves_no_job_behind(app: Penstock) -> None:
    @app.task(name="send", queue="mail")
    async def send(number: int) -> None: ...

    await app.enqueue_many(send.call(n) for n in range(10))
    began = asyncio.Event()

    async def consume() -> None:
        async with app.queue("mail").stream(limit=3) as leases:
            async for lease in leases:
                async with lease:
                    began.set()
                    await asyncio.sleep(60)

    consumer = asyncio.create_task(consume())
    async with asyncio.timeout(30):
        await began.wait()
    consumer.cancel()
    await asyncio.gather(consumer, return_exceptions=True)
    assert await _counts(app) == {"ready": 10}


async def test_jobs_enqueued_later_arrive_without_polling(app: Penstock) -> None:
    @app.task(name="send", queue="mail")
    async def send(number: int) -> None: ...

    async with asyncio.timeout(30), app.queue("mail").stream(limit=3) as leases:
        waiting = asyncio.ensure_future(anext(leases))
        await asyncio.sleep(0.2)
        loop = asyncio.get_running_loop()
        began = loop.time()
        job = await send.enqueue(1)
        lease = await waiting
        assert loop.time() - began < 3  # the next look by itself would be after four seconds
        assert lease.id == job.id
        await lease.complete()


async def test_leases_are_renewed_while_jobs_are_held(url: str, app: Penstock) -> None:
    quick = Penstock(app.name, url=url, lease="1s")

    @quick.task(name="send", queue="mail")
    async def send() -> None: ...

    job = await send.enqueue()
    async with asyncio.timeout(30), quick.queue("mail").stream() as leases:
        lease = await anext(leases)
        async with app.worker(queues="other", lease="1s"):  # somebody who would reap
            await asyncio.sleep(2.5)
        await lease.complete()
    assert (await job.status()).attempt == 1
    await quick.aclose()


async def test_a_lease_that_was_settled_or_given_back_is_stale(app: Penstock) -> None:
    @app.task(name="send", queue="mail")
    async def send() -> None: ...

    await send.enqueue()
    await send.enqueue()
    async with asyncio.timeout(30), app.queue("mail").stream(limit=2) as leases:
        first, second = await anext(leases), await anext(leases)
        await first.release()
        with pytest.raises(StaleLease):
            await first.complete()
    with pytest.raises(StaleLease):
        await second.complete()
    with pytest.raises(StopAsyncIteration):
        await anext(leases)


async def test_a_stream_that_was_not_entered_and_a_bad_limit_are_errors(app: Penstock) -> None:
    with pytest.raises(PenstockError, match="enter the stream"):
        await anext(app.queue("mail").stream())
    with pytest.raises(BadOption, match="limit"):
        app.queue("mail").stream(limit=0)


async def test_a_job_that_is_cancelled_while_it_is_held_is_told_so(app: Penstock) -> None:
    @app.task(name="send", queue="mail")
    async def send() -> None: ...

    job = await send.enqueue()
    async with asyncio.timeout(30), app.queue("mail").stream() as leases:
        lease = await anext(leases)
        assert await job.cancel() == "cancelling"
        while not lease.job.cancelling:  # noqa: ASYNC110  (a flag, as tasks see it)
            await asyncio.sleep(0.02)
        await lease.release()
    assert (await job.status()).state == "cancelled"
