"""renew: keeps workers alive, whatever they run and however long it takes."""

from penstock.engine.answers import Renewed
from penstock.engine.engine import Engine
from penstock.engine.read.views import Views
from tests.conftest import Clock
from tests.engine.factories import LIFE, TestWorker, dump, enqueue, happened, new_job, outlive, states


async def test_a_renewed_worker_lives_on_from_now(engine: Engine, clock: Clock) -> None:
    for name in ("a", "b", "c"):
        await engine.register(name, LIFE)
    clock.advance(3_000)
    assert await engine.renew(LIFE, ["a", "never", "c"]) == Renewed(["ok", "unknown", "ok"], [])
    lives = {node.worker: node.alive_until for node in await Views(engine).workers()}
    assert lives == {"a": clock() + LIFE, "b": clock() - 3_000 + LIFE, "c": clock() + LIFE}


async def test_a_worker_past_its_lease_that_was_not_reaped_may_still_renew(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    await worker.lease()
    await outlive(engine, clock)
    assert (await engine.renew(LIFE, [worker.name])).words == ["ok"]
    assert await engine.reap(LIFE) == (0, 0)
    assert await states(engine) == {"a": "running"}


async def test_renew_of_a_retired_or_reaped_worker_answers_unknown(engine: Engine) -> None:
    await engine.register("retired", LIFE)
    await engine.retire("retired")
    await engine.register("reaped", LIFE)
    await engine.reap_worker("reaped", [], LIFE)
    before = await dump(engine)
    assert (await engine.renew(LIFE, ["retired", "reaped"])).words == ["unknown", "unknown"]
    assert await dump(engine) == before


async def test_one_call_keeps_all_jobs_of_many_workers(engine: Engine, clock: Clock) -> None:
    workers = [await TestWorker(engine).register() for _ in range(3)]
    await enqueue(engine, *(new_job() for _ in range(30)))
    for worker in workers:
        await worker.lease(10)
    for _ in range(10):
        clock.advance(LIFE // 3)
        await engine.renew(LIFE, [worker.name for worker in workers])
        assert await engine.reap(LIFE) == (0, 0)
    assert set((await states(engine)).values()) == {"running"}


async def test_renew_names_running_jobs_that_are_to_be_cancelled(engine: Engine) -> None:
    one, two = await TestWorker(engine, "w1").register(), await TestWorker(engine, "w11").register()
    await enqueue(engine, *map(new_job, "abcd"))
    a, _ = await one.lease(2)
    await two.lease(2)
    await engine.cancel(["a", "b", "d"])
    asked = (await engine.renew(LIFE, ["w1", "w11"])).cancelling
    assert sorted(asked) == [("w1", "a"), ("w1", "b"), ("w11", "d")]
    assert (await engine.renew(LIFE, ["w11"])).cancelling == [("w11", "d")]
    await one.release(a)
    assert (await engine.renew(LIFE, ["w1"])).cancelling == [("w1", "b")]


async def test_renew_without_workers_is_allowed(engine: Engine) -> None:
    assert await engine.renew(LIFE, []) == Renewed([], [])


async def test_renew_adds_no_event_and_changes_no_job(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    await worker.lease()
    before = await dump(engine)
    clock.advance(10)
    await engine.renew(LIFE, [worker.name])
    after = await dump(engine)
    assert {key for key in before if before[key] != after[key]} == {engine.keys("workers"), engine.keys("meta")}
    assert len(await happened(engine)) == 2
