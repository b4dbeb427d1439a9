"""retire: a worker ends; jobs that it holds go back to their places, no attempt used."""

from penstock.engine.engine import Engine
from penstock.engine.read.views import Views
from penstock.engine.repair.reconcile import reconcile
from tests.engine.factories import (
    TestWorker,
    enqueue,
    happened,
    header_of,
    listening,
    new_job,
    raw,
    spoil,
    states,
)


async def test_the_jobs_of_a_retired_worker_go_back_to_their_places(engine: Engine) -> None:
    worker, other = await TestWorker(engine).register(), await TestWorker(engine).register()
    await enqueue(engine, *map(new_job, "abcd"))
    await worker.lease(2)
    (c,) = await other.lease()
    assert await engine.retire(worker.name) == (2, 0)
    header = await header_of(engine, "a")
    assert (header.state, header.claim, header.releases, header.failures, header.crashes) == ("ready", "", 1, 0, 0)
    assert [lease.id for lease in await other.lease(9)] == ["a", "b", "d"]
    assert await other.complete(c) == "ok"


async def test_the_id_of_a_retired_worker_is_refused(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    (lease,) = await worker.lease()
    await engine.retire(worker.name)
    assert await engine.register(worker.name, 1_000) == "retired"
    assert (await engine.renew(1_000, [worker.name])).words == ["unknown"]
    assert (await engine.lease(worker.name, 2)).word == "unknown"
    assert await worker.complete(lease) == "stale"
    assert await Views(engine).workers() == []


async def test_a_page_ends_at_its_limit_and_the_worker_goes_with_the_last(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job() for _ in range(5)))
    await worker.lease(5)
    assert await engine.retire(worker.name, 2) == (2, 1)
    assert (await engine.renew(1_000, [worker.name])).words == ["ok"]
    assert await engine.retire(worker.name, 2) == (2, 1)
    assert await engine.retire(worker.name, 2) == (1, 0)
    assert (await engine.renew(1_000, [worker.name])).words == ["unknown"]
    assert set((await states(engine)).values()) == {"ready"}


async def test_a_job_whose_cancelling_was_asked_for_ends_so(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"), new_job("b"))
    await worker.lease(2)
    await engine.cancel(["a"], "changed my mind")
    await engine.retire(worker.name)
    assert await states(engine) == {"a": "cancelled", "b": "ready"}
    assert (await header_of(engine, "a")).reason == "changed my mind"


async def test_a_retired_idle_worker_is_not_woken(engine: Engine) -> None:
    for name in ("a-gone", "b-there"):
        await (await TestWorker(engine, name, ("mail", "sms")).register()).lease()
    async with (
        listening(engine, engine.keys.channel("a-gone")) as gone,
        listening(engine, engine.keys.channel("b-there")) as there,
    ):
        await engine.retire("a-gone")
        await enqueue(engine, new_job(queue="sms"))
        assert (await gone.messages(), await there.messages()) == ([], ["work"])


async def test_a_resent_retire_and_a_retire_of_an_unknown_worker_change_nothing(engine: Engine) -> None:
    worker, other = await TestWorker(engine, "w").register(), await TestWorker(engine, "w2").register()
    await enqueue(engine, new_job("a"), new_job("b"))
    await worker.lease()
    await other.lease()
    assert await engine.retire("w") == (1, 0)
    assert await engine.retire("w") == (0, 0)
    assert await engine.retire("stranger") == (0, 0)
    assert await states(engine) == {"a": "ready", "b": "running"}


async def test_unknown_entries_of_the_index_are_dropped_and_delay_no_job(engine: Engine) -> None:
    worker, other = await TestWorker(engine, "w").register(), await TestWorker(engine, "other").register()
    await enqueue(engine, *map(new_job, ("a", "others", "waiting", "spoilt")))
    await worker.lease()
    await other.lease()
    await enqueue(engine, new_job("z", priority=0))
    await worker.lease()
    strays = [f"w\x1f1\x1f{job_id}" for job_id in ("never-was", "waiting", "others", "spoilt")]
    await (await raw(engine)).zadd(engine.keys("leases"), dict.fromkeys(strays, 0))
    await spoil(engine, "spoilt")
    await engine.retire("w")
    assert await (await raw(engine)).zrange(engine.keys("leases"), 0, -1) == [b"", b"other\x1f1\x1fothers"]
    await reconcile(engine)
    assert await states(engine) == {
        "a": "ready",
        "z": "ready",
        "others": "running",
        "waiting": "ready",
        "spoilt": "dead",
    }


async def test_retire_wakes_workers_is_counted_and_adds_an_event_of_release(engine: Engine) -> None:
    worker, idle = await TestWorker(engine).register(), await TestWorker(engine, "idle").register()
    await enqueue(engine, new_job("a"))
    await worker.lease()
    await idle.lease()
    async with listening(engine, engine.keys.channel("idle")) as subscription:
        await engine.retire(worker.name)
        assert await subscription.messages() == ["work"]
    assert (await happened(engine))[2:] == [("release", "a", "")]
    assert await Views(engine).counts() == {"default": {"ready": 1, "running": 0}}
