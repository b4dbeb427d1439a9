"""Waking: which workers a new job wakes, and how many; timers learn of earlier due times."""

from penstock.engine.engine import Engine
from tests.conftest import Clock
from tests.engine.factories import TestWorker, enqueue, listening, new_job, raw


async def test_enqueue_wakes_as_many_idle_workers_as_jobs_came(engine: Engine) -> None:
    for name in ("w1", "w2", "w3"):
        await (await TestWorker(engine, name).register()).lease()
    channel = engine.keys.channel
    async with (
        listening(engine, channel("w1")) as first,
        listening(engine, channel("w2")) as second,
        listening(engine, channel("w3")) as third,
    ):
        await enqueue(engine, new_job(), new_job())
        messages = [await subscription.messages() for subscription in (first, second, third)]
        assert sorted(messages) == [[], ["work"], ["work"]]
        await enqueue(engine, new_job())
        await enqueue(engine, new_job())
        more = [await subscription.messages() for subscription in (first, second, third)]
        assert sorted(a + b for a, b in zip(messages, more, strict=True)) == [["work"]] * 3


async def test_workers_of_the_queue_are_woken_before_workers_of_all_queues(engine: Engine) -> None:
    for name, queues in (("all", ("*",)), ("mail", ("mail",)), ("sms", ("sms",))):
        await (await TestWorker(engine, name, queues).register()).lease()
    channel = engine.keys.channel
    async with (
        listening(engine, channel("all")) as everything,
        listening(engine, channel("mail")) as mail,
        listening(engine, channel("sms")) as sms,
    ):
        await enqueue(engine, new_job(queue="mail"))
        assert [await everything.messages(), await mail.messages(), await sms.messages()] == [[], ["work"], []]
        await enqueue(engine, new_job(queue="mail"))
        assert [await everything.messages(), await mail.messages(), await sms.messages()] == [["work"], [], []]


async def test_an_idle_worker_without_a_subscription_is_passed_over(engine: Engine) -> None:
    for name in ("a-deaf", "b-deaf", "c-awake"):
        await (await TestWorker(engine, name).register()).lease()
    async with listening(engine, engine.keys.channel("c-awake")) as subscription:
        await enqueue(engine, new_job())
        assert await subscription.messages() == ["work"]


async def test_a_scheduled_job_wakes_no_worker(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await worker.lease()
    async with listening(engine, engine.keys.channel(worker.name)) as subscription:
        await enqueue(engine, new_job(due=1))
        assert await subscription.messages() == []


async def test_the_timer_is_woken_when_a_job_is_due_or_expires_earlier_than_was_known(
    engine: Engine, clock: Clock
) -> None:
    async with listening(engine, engine.keys.timer) as timer:
        await enqueue(engine, new_job(due=5_000), new_job(due=4_000), new_job(due=6_000))
        assert await timer.messages() == [str(clock() + 4_000)]
        await enqueue(engine, new_job(due=4_500))
        assert await timer.messages() == []
        await enqueue(engine, new_job(expires=3_000))
        assert await timer.messages() == [str(clock() + 3_000)]
        await enqueue(engine, new_job(expires=3_500))
        assert await timer.messages() == []


async def test_a_worker_that_becomes_idle_after_none_was_is_woken(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    assert await worker.lease() == []
    async with listening(engine, engine.keys.channel(worker.name)) as subscription:
        for _ in range(3):
            await enqueue(engine, new_job(), new_job())
            assert await subscription.messages() == ["work"]
            await enqueue(engine, new_job())  # nobody sleeps any more, and that is noted
            assert await (await raw(engine)).hget(engine.keys("meta"), "asleep") == b""
            assert await subscription.messages() == []
            assert len(await worker.lease(9)) == 3
