"""A new job is pushed to an idle worker if no job is ready before it."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from penstock.engine.answers import EnqueueAnswer, Lease, read_pushed_lease
from penstock.engine.engine import Engine
from penstock.engine.repair.audit import audit
from tests.conftest import Clock, namespace, open_engine
from tests.engine.factories import (
    LIFE,
    Subscription,
    TestWorker,
    contents,
    enqueue,
    happened,
    header_of,
    listening,
    new_job,
    raw,
    states,
)


@pytest.fixture
async def worker(engine: Engine) -> TestWorker:
    """It is called w, and will take the next job."""
    worker = await TestWorker(engine, "w").register()
    assert await worker.lease(push=True) == []
    return worker


@pytest.fixture
async def subscription(engine: Engine, worker: TestWorker) -> AsyncIterator[Subscription]:
    async with listening(engine, engine.keys.channel("w")) as subscription:
        yield subscription


async def taken(subscription: Subscription) -> tuple[int, Lease]:
    """The number and the job of the one message."""
    (message,) = await subscription.raw_messages()
    number, leased = read_pushed_lease(message)
    (lease,) = leased.leases
    return number, lease


@pytest.mark.parametrize("size", [0, 7, 255, 256, 16_384])
async def test_the_message_has_all_that_a_lease_answer_has(
    engine: Engine, clock: Clock, subscription: Subscription, size: int
) -> None:
    (placed,) = await engine.enqueue([new_job("a", payload=b"." * size)])
    assert placed == EnqueueAnswer("created", "a", "running")
    number, lease = await taken(subscription)
    assert (number, lease.id, lease.payload, lease.attempt) == (2, "a", b"." * size, 1)
    assert lease.header == await header_of(engine, "a")
    assert (lease.header.claim, lease.header.started) == ("w\x1f2", clock())
    assert await happened(engine) == [("enqueue", "a", ""), ("lease", "a", "")]
    assert await audit(engine) == []
    assert await engine.complete("w", [("a", number, b"")]) == ["ok"]
    assert await audit(engine) == []


async def test_a_pushed_job_is_stored_as_if_it_had_been_leased(
    url: str, engine: Engine, clock: Clock, worker: TestWorker, subscription: Subscription
) -> None:
    twin = open_engine(url, namespace(), clock)
    try:
        other = await TestWorker(twin, "w").register()
        await other.lease()
        jobs = [new_job("a", retries=0), new_job("b", queue="mail", priority=7, keep=5, payload=b"." * 300)]
        for job in jobs:
            clock.advance(20_000)
            (placed,) = await engine.enqueue([job])
            assert placed.state == "running"
            worker.number, lease = await taken(subscription)
            await twin.enqueue([job])
            (same,) = await other.lease()
            assert lease == same
            await worker.complete(lease, b"result")
            await other.complete(same, b"result")
            await worker.lease(push=True)
            await other.lease()
        both = [await contents(side) for side in (engine, twin)]
        for stored in both:
            del stored["idle"]
            stored["counts"] = {name: n for name, n in stored["counts"].items() if n != b"0"}
        assert both[0] == both[1]
        assert await happened(engine) == await happened(twin)
    finally:
        await (await raw(twin)).delete(*twin.all_keys())
        await twin.script_client.endpoint.aclose()


async def test_a_pushed_job_that_is_sent_again_exists_once(
    engine: Engine, worker: TestWorker, subscription: Subscription
) -> None:
    job = new_job("a")
    first = await engine.enqueue([job])
    await taken(subscription)
    assert await engine.enqueue([job]) == first
    assert await subscription.raw_messages() == []
    assert await states(engine) == {"a": "running"}


async def test_a_lost_message_loses_no_job(engine: Engine, worker: TestWorker, subscription: Subscription) -> None:
    await engine.enqueue([new_job("a")])
    _, lost = await taken(subscription)
    assert await worker.lease() == [lost]  # under the number that the message had
    assert await worker.lease() == []
    assert await worker.complete(lost) == "ok"
    assert await audit(engine) == []


async def test_a_lease_call_that_crosses_the_message_gets_the_same_job(
    engine: Engine, worker: TestWorker, subscription: Subscription
) -> None:
    await enqueue(engine, new_job("a"))
    number, lease = await taken(subscription)
    again = await engine.lease("w", number, want=5, answered=1, push=True)
    assert (again.word, again.leases) == ("ok", [lease])
    assert await worker.complete(lease) == "ok"
    assert (await engine.lease("w", number, want=5, answered=1)).leases == []
    assert (await engine.lease("w", number + 1, answered=number)).word == "ok"
    assert (await engine.lease("w", number, want=5, answered=number)).word == "stale"


async def test_an_idle_worker_is_pushed_one_job(engine: Engine, worker: TestWorker, subscription: Subscription) -> None:
    assert [(await engine.enqueue([new_job(name)]))[0].state for name in "abc"] == ["running", "ready", "ready"]
    assert len(await subscription.raw_messages()) == 1
    worker.number = 2
    assert [lease.id for lease in await worker.lease(want=5)] == ["b", "c"]


async def _others_in_line(engine: Engine) -> None:
    await engine.pause("default")
    await enqueue(engine, new_job("first"))
    await engine.resume("default")


async def _woken(engine: Engine) -> None:
    """For a job of another queue, which comes first."""
    await engine.enqueue([new_job("x", queue="other"), new_job("y", queue="other")])


async def _dead(engine: Engine) -> None:
    await engine.reap_worker("w", [], LIFE)


async def _paused(engine: Engine) -> None:
    await engine.pause("default")


async def _halted(engine: Engine) -> None:
    await engine.tune("task:tasks:run", paused=True)


async def _capped(engine: Engine) -> None:
    await engine.cap("default", limit=5)


async def _registered_anew(engine: Engine) -> None:
    await engine.register("w", LIFE, "{}", ["*"])


@pytest.mark.parametrize(
    "why", [_others_in_line, _woken, _dead, _paused, _halted, _capped, _registered_anew], ids=lambda why: why.__name__
)
async def test_a_job_that_must_not_be_pushed_becomes_ready(
    engine: Engine, subscription: Subscription, why: Callable[[Engine], Awaitable[None]]
) -> None:
    await why(engine)
    (placed,) = await engine.enqueue([new_job("a")])
    assert placed.state == "ready"
    assert not [message for message in await subscription.raw_messages() if message.startswith(b"job")]
    assert await audit(engine) == []


@pytest.mark.parametrize(
    "job",
    [
        new_job("a", payload=b"." * 16_385),
        new_job("a", lanes=["lock"]),
        new_job("a", unique="u"),
        new_job("a", nonce="n"),
    ],
    ids=["large", "a lock", "a unique key", "an id of one's own"],
)
async def test_large_locked_and_unique_jobs_are_not_pushed(
    engine: Engine, subscription: Subscription, job: object
) -> None:
    (placed,) = await engine.enqueue([job])  # type: ignore[list-item]
    assert placed.state == "ready"
    assert await subscription.messages() == ["work"]


async def test_no_job_is_pushed_to_a_worker_that_runs_a_job(engine: Engine) -> None:
    worker = await TestWorker(engine, "w").register()
    async with listening(engine, engine.keys.channel("w")) as subscription:
        await enqueue(engine, new_job("a"))
        (lease,) = await worker.lease(want=5, push=True)
        assert await worker.lease(push=True) == []  # it could take more, and is woken for it
        await enqueue(engine, new_job("b"))
        assert await subscription.messages() == ["work"]
        await worker.complete(lease)


async def test_no_job_is_pushed_to_a_worker_without_a_subscription(engine: Engine, worker: TestWorker) -> None:
    await enqueue(engine, new_job("a"))
    assert await states(engine) == {"a": "ready"}


async def test_no_job_is_pushed_to_a_worker_of_other_queues_or_that_did_not_ask_for_it(engine: Engine) -> None:
    other = await TestWorker(engine, "other", queues=("mail",)).register()
    plain = await TestWorker(engine, "plain").register()
    async with (
        listening(engine, engine.keys.channel("other")) as unheard,
        listening(engine, engine.keys.channel("plain")) as subscription,
    ):
        await other.lease(push=True)
        await plain.lease()
        await enqueue(engine, new_job("a"))
        assert await unheard.raw_messages() == []
        assert await subscription.messages() == ["work"]


async def test_the_pushed_job_of_a_worker_that_dies_goes_back(
    engine: Engine, clock: Clock, subscription: Subscription
) -> None:
    await enqueue(engine, new_job("a"))
    assert await engine.reap_worker("w", [], LIFE) == (1, 0)  # it had not started anything
    header = await header_of(engine, "a")
    assert (header.state, header.crashes) == ("ready", 0)
    assert await audit(engine) == []


async def test_a_worker_that_retires_gives_its_pushed_job_back(engine: Engine, subscription: Subscription) -> None:
    await enqueue(engine, new_job("a"))
    await engine.retire("w")
    assert await states(engine) == {"a": "ready"}
    assert await audit(engine) == []


@pytest.mark.parametrize("others", [3, 20])
async def test_a_job_is_pushed_to_a_worker_of_its_queue_however_many_others_are_idle(
    engine: Engine, others: int
) -> None:
    for n in range(others):
        await (await TestWorker(engine, f"other{n}", ("mail",)).register()).lease(push=True)
        await (await TestWorker(engine, f"busy{n}").register()).lease()
    async with (
        listening(engine, engine.keys.channel("w")) as subscription,
        listening(engine, engine.keys.channel("other0")) as no,
    ):
        worker = await TestWorker(engine, "w", ("default",)).register()
        await worker.lease(push=True)
        (placed,) = await engine.enqueue([new_job("a")])
        assert placed == EnqueueAnswer("created", "a", "running")
        assert (await taken(subscription))[1].id == "a"
        assert await no.raw_messages() == []
    assert await audit(engine) == []
