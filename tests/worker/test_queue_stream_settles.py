"""The settles of a stream whose handler is cancelled, or whose server is away, meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from penstock import Job, Penstock, PenstockError, StaleLease
from tests.app_helpers import in_state
from tests.engine.factories import raw
from tests.proxy import Proxy, proxied
from tests.servers import Server


@pytest.fixture
def proxy(single: Server) -> Iterator[Proxy]:
    with proxied(single.port) as made:
        yield made


@pytest.fixture
async def far(app: Penstock, proxy: Proxy) -> AsyncIterator[Penstock]:
    """The same app behind a proxy; its calls give up early, so that tests see what follows."""
    made = Penstock(app.name, url=proxy.url)
    made.client.engine.script_client.deadline = 0.3
    yield made
    proxy.flow()
    await made.aclose()


@pytest.fixture
async def jobs(app: Penstock) -> list[Job[str]]:
    @app.task(name="send", queue="mail")
    async def send(number: int) -> str:
        return f"sent {number}"

    return await app.enqueue_many(send.call(number) for number in range(3))


@pytest.mark.parametrize("stalled", ["requests", "replies"])
async def test_a_slot_is_free_again_though_its_handler_was_cancelled_while_settling(
    far: Penstock, proxy: Proxy, jobs: list[Job[str]], stalled: str
) -> None:
    async with asyncio.timeout(30), far.queue("mail").stream(limit=1) as leases:
        lease = await anext(leases)
        with pytest.raises(TimeoutError):  # noqa: PT012  (the block is what is tested)
            async with asyncio.timeout(0.1), lease:
                lease.result = "sent"
                proxy.stall(stalled)
        proxy.flow()
        following = await anext(leases)
        assert following.id == jobs[1].id
        assert await jobs[0].result(timeout=0) == "sent"


async def test_a_settle_outlasts_calls_that_gave_up(far: Penstock, proxy: Proxy, jobs: list[Job[str]]) -> None:
    async with asyncio.timeout(30), far.queue("mail").stream(limit=1) as leases:
        lease = await anext(leases)
        proxy.stall("requests")
        settling = asyncio.create_task(lease.complete("sent"))
        await asyncio.wait([settling], timeout=3 * far.client.engine.script_client.deadline)
        assert not settling.done()
        proxy.flow()
        await settling
        assert await jobs[0].result(timeout=0) == "sent"


async def test_a_job_goes_back_while_its_stream_is_open_though_its_handler_was_cancelled_without_a_server(
    far: Penstock, proxy: Proxy, jobs: list[Job[str]]
) -> None:
    async with asyncio.timeout(30), far.queue("mail").stream(limit=3) as leases:
        first, second = await anext(leases), await anext(leases)
        with pytest.raises(TimeoutError):  # noqa: PT012  (the block is what is tested)
            async with asyncio.timeout(0.1), first:
                proxy.stall("requests", "replies")
                await asyncio.Event().wait()
        proxy.flow()
        again = await anext(leases)
        while again.id != first.id:
            again = await anext(leases)
        assert (again.job.attempt, again.job.fence > first.job.fence) == (1, True)
        await second.complete()


async def test_a_handler_is_cancelled_at_once_while_the_stream_settles_for_it(
    far: Penstock, proxy: Proxy, jobs: list[Job[str]]
) -> None:
    async with asyncio.timeout(30), far.queue("mail").stream(limit=1) as leases:
        lease = await anext(leases)
        proxy.stall("requests")
        handler = asyncio.create_task(lease.complete("sent"))
        await asyncio.sleep(0)
        handler.cancel()
        done, _ = await asyncio.wait([handler], timeout=0.2)
        assert done
        assert handler.cancelled()
        with pytest.raises(StaleLease, match="was settled"):
            await lease.fail(ValueError("the first outcome counts"))
        proxy.flow()
        await in_state(jobs[0], "done")


async def test_closing_a_stream_waits_for_the_settles_that_are_under_way(
    far: Penstock, proxy: Proxy, jobs: list[Job[str]]
) -> None:
    stream = far.queue("mail").stream(limit=2)
    await stream.__aenter__()
    lease = await anext(stream)
    proxy.stall("requests")
    settling = asyncio.create_task(lease.complete("sent"))
    await asyncio.sleep(0)
    settling.cancel()
    closing = asyncio.create_task(stream.__aexit__(None, None, None))
    await asyncio.wait([closing], timeout=0.5)
    assert not closing.done()
    proxy.flow()
    async with asyncio.timeout(30):
        await closing
    status = await jobs[0].status()
    assert (status.state, status.attempt, await jobs[0].result(timeout=0)) == ("done", 1, "sent")
    assert (await jobs[1].status()).state == "ready"


async def test_closing_a_stream_without_a_server_ends_and_tells_those_who_wait(
    far: Penstock, proxy: Proxy, jobs: list[Job[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.worker.settle.CLOSE_TIMEOUT", 0.2)
    stream = far.queue("mail").stream(limit=1)
    await stream.__aenter__()
    lease = await anext(stream)
    proxy.stall("requests", "replies")
    settling = asyncio.create_task(lease.complete("sent"))
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await stream.__aexit__(None, None, None)
        with pytest.raises(PenstockError, match="before the server answered"):
            await settling
    proxy.flow()
    await far.client.engine.retire(lease.job.worker)  # as a reaper will, once the lease has run out


async def test_a_lease_that_was_lost_leaves_the_slot_to_the_next_one_of_its_job(
    url: str, app: Penstock, jobs: list[Job[str]]
) -> None:
    quick = Penstock(app.name, url=url, lease="3s")  # it learns of its loss when it renews, after a second
    async with asyncio.timeout(30), quick.queue("mail").stream(limit=1) as leases:
        lost = await anext(leases)
        await app.client.engine.reap_worker(lost.job.worker, [], 30_000)
        again = await anext(leases)
        assert (again.id, again.job.fence > lost.job.fence) == (lost.id, True)
        with pytest.raises(StaleLease):
            await lost.complete("too late")
        await again.complete("sent")
    assert await jobs[0].result(timeout=0) == "sent"
    await quick.aclose()


async def test_a_lease_that_was_settled_inside_its_block_is_left_without_an_error(
    app: Penstock, jobs: list[Job[str]]
) -> None:
    async with asyncio.timeout(30), app.queue("mail").stream(limit=1) as leases:
        lease = await anext(leases)
        async with lease:
            await lease.complete("sent")
        following = await anext(leases)
        with pytest.raises(LookupError):  # noqa: PT012  (the block is what is tested)
            async with following:
                await following.release()
                raise LookupError("later")
    assert await jobs[0].result(timeout=0) == "sent"
    assert (await jobs[1].status()).state == "ready"


async def test_a_settle_that_the_server_refuses_delays_no_other_job_and_is_done_once_that_is_repaired(
    app: Penstock, jobs: list[Job[str]]
) -> None:
    client, attempts = await raw(app.client.engine), app.client.engine.keys("attempts")
    async with asyncio.timeout(30), app.queue("mail").stream(limit=2) as leases:
        refused, other = await anext(leases), await anext(leases)
        await client.rename(attempts, attempts + b".away")
        await client.set(attempts, "no hash")
        failing = asyncio.create_task(refused.fail(ValueError("no")))
        await other.complete("sent")
        following = await anext(leases)
        assert following.id == jobs[2].id
        assert not failing.done()
        await client.rename(attempts + b".away", attempts)
        await failing
        await following.release()
    status = await jobs[0].status()
    assert (status.state, [attempt.type for attempt in status.attempts]) == ("scheduled", ["ValueError"])
