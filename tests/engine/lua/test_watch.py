"""watch: a client gets a message when jobs finish; jobs that have finished are in the answer."""

from collections.abc import Awaitable, Callable

import pytest

from penstock.engine.answers import Watched
from penstock.engine.engine import PAGE, Engine
from penstock.engine.read.views import Views
from penstock.engine.repair.reconcile import reconcile
from tests.conftest import Clock
from tests.engine.factories import (
    LIFE,
    TestWorker,
    call_of,
    dump,
    enqueue,
    header_of,
    listening,
    new_job,
    populate,
    raw,
    spoil,
)

End = Callable[[Engine, TestWorker, Clock], Awaitable[object]]


async def _complete(engine: Engine, worker: TestWorker, clock: Clock) -> object:
    return await worker.complete((await worker.lease())[0], b"result")


async def _bury(engine: Engine, worker: TestWorker, clock: Clock) -> object:
    return await worker.bury((await worker.lease())[0])


async def _cancel(engine: Engine, worker: TestWorker, clock: Clock) -> object:
    return await engine.cancel(["a"])


async def _release_cancelled(engine: Engine, worker: TestWorker, clock: Clock) -> object:
    (lease,) = await worker.lease()
    await engine.cancel(["a"])
    return await worker.release(lease)


async def _expire(engine: Engine, worker: TestWorker, clock: Clock) -> object:
    clock.advance(60_000)
    return await engine.expire()


async def _lease_too_late(engine: Engine, worker: TestWorker, clock: Clock) -> object:
    clock.advance(60_000)
    return await worker.lease()


async def _crash(engine: Engine, worker: TestWorker, clock: Clock) -> object:
    await worker.lease()
    return await engine.reap_worker(worker.name, ["a"], LIFE, crashes=1)


ENDS = (_complete, _bury, _cancel, _release_cancelled, _expire, _lease_too_late, _crash)


@pytest.mark.parametrize("end", ENDS)
async def test_every_end_of_a_job_is_published_to_the_waiting_clients(engine: Engine, clock: Clock, end: End) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", expires=60_000))
    assert await engine.watch("client", ["a"]) == [Watched("ready", None, b"", [])]
    async with listening(engine, engine.keys.channel("client")) as subscription:
        await end(engine, worker, clock)
        assert await subscription.messages() == ["end\x1fa"]
        assert (await header_of(engine, "a")).state in {"done", "dead", "cancelled"}


async def test_watch_of_a_finished_job_answers_its_outcome(engine: Engine) -> None:
    await populate(engine)
    done, dead, missing = await engine.watch("client", ["done", "dead", "never-was"])
    assert done == Watched("done", await header_of(engine, "done"), b"result", [])
    record = await Views(engine).job("dead")
    assert record is not None
    assert dead == Watched("dead", record.header, b"", record.attempts)
    assert len(dead.attempts) == 1
    assert missing == Watched("missing", None, b"", [])


async def test_watch_registers_only_for_unfinished_jobs(engine: Engine) -> None:
    await populate(engine)
    before = await dump(engine)
    ids = ["ready", "scheduled", "running", "cancelling", "done", "dead", "cancelled", "tomb", "never-was"]
    watched = await engine.watch("client", ids)
    assert [outcome.state for outcome in watched] == [
        "ready",
        "scheduled",
        "running",
        "running",
        "done",
        "dead",
        "cancelled",
        "cancelled",
        "missing",
    ]
    after = await dump(engine)
    assert {key for key in before if before[key] != after[key]} == {engine.keys("waiting")}
    waiting = await (await raw(engine)).hkeys(engine.keys("waiting"))
    assert {name.decode() for name in waiting} == {"", "ready", "scheduled", "running", "cancelling"}


async def test_a_retry_a_release_and_a_snooze_are_no_end(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    await engine.watch("client", ["a"])
    async with listening(engine, engine.keys.channel("client")) as subscription:
        await worker.retry((await worker.lease())[0])
        await worker.release((await worker.lease())[0])
        await worker.snooze((await worker.lease())[0], 0)
        assert await subscription.messages() == []


async def test_a_client_gets_one_message_with_all_jobs_that_ended_in_one_call(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *map(new_job, "abc"))
    await engine.watch("client-1", ["a", "b"])
    await engine.watch("client-2", ["b", "c"])
    async with (
        listening(engine, engine.keys.channel("client-1")) as first,
        listening(engine, engine.keys.channel("client-2")) as second,
    ):
        leases = await worker.lease(3)
        await engine.complete(worker.name, [(lease.id, call_of(lease), b"") for lease in leases])
        assert await first.messages() == ["end\x1fa\x1fb"]
        assert await second.messages() == ["end\x1fb\x1fc"]


async def test_a_client_that_watches_twice_gets_one_message(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    for _ in range(3):
        await engine.watch("client", ["a"])
    async with listening(engine, engine.keys.channel("client")) as subscription:
        await worker.bury((await worker.lease())[0])
        assert await subscription.messages() == ["end\x1fa"]
        await engine.revive(["a"])
        await engine.cancel(["a"])
        assert await subscription.messages() == []


async def test_reconcile_reports_lost_jobs_to_the_waiting_clients(engine: Engine) -> None:
    await enqueue(engine, new_job("spoilt"), new_job("gone"))
    await engine.watch("client", ["spoilt", "gone"])
    client = await raw(engine)
    await spoil(engine, "spoilt")
    for part in ("jobs", "payloads"):
        await client.hdel(engine.keys(part), "gone")
    async with listening(engine, engine.keys.channel("client")) as subscription:
        await reconcile(engine)
        assert sorted(await subscription.messages()) == ["end\x1fgone", "end\x1fspoilt"]


async def test_reconcile_keeps_the_clients_that_wait_for_unfinished_jobs(engine: Engine) -> None:
    await enqueue(engine, new_job("a"))
    await engine.watch("client", ["a"])
    async with listening(engine, engine.keys.channel("client")) as subscription:
        assert await reconcile(engine) == 0
        assert await subscription.messages() == []
        await engine.cancel(["a"])
        assert await subscription.messages() == ["end\x1fa"]


async def test_more_than_a_page_is_refused_before_anything_is_sent(engine: Engine) -> None:
    with pytest.raises(ValueError, match=f"at most {PAGE}"):
        engine.watch("client", [str(i) for i in range(PAGE + 1)])
    assert len(await engine.watch("client", [str(i) for i in range(PAGE)])) == PAGE
