"""cap: limits how many jobs of a queue run at once, and how many wait in it."""

from penstock.engine.engine import Engine
from penstock.engine.read.views import Views
from penstock.engine.repair.audit import audit
from tests.engine.factories import TestWorker, enqueue, happened, lane, new_job, states


async def test_jobs_start_up_to_the_limit_of_their_queue_and_an_end_makes_room(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job(f"j{i}") for i in range(6)), new_job("elsewhere", queue="other"))
    assert await engine.cap("default", 2) == "ok"
    leases = await worker.lease(9)
    assert sorted(lease.id for lease in leases) == ["elsewhere", "j0", "j1"]
    assert await worker.lease(9) == []
    await worker.complete(next(lease for lease in leases if lease.id == "j0"))
    assert [lease.id for lease in await worker.lease(9)] == ["j2"]


async def test_a_limit_holds_for_workers_of_named_queues_and_of_all_queues(engine: Engine) -> None:
    await enqueue(engine, *(new_job(f"j{i}") for i in range(6)))
    await engine.cap("default", 3)
    one = await TestWorker(engine).register()
    assert len((await engine.lease(one.name, 1, queues=["default", "other"], want=2)).leases) == 2
    assert len((await engine.lease(one.name, 2, queues=["*"], want=9)).leases) == 1


async def test_a_limit_is_raised_lowered_and_lifted_while_jobs_run(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job(f"j{i}") for i in range(9)))
    await engine.cap("default", 4)
    assert len(await worker.lease(9)) == 4
    await engine.cap("default", 1)
    assert await worker.lease(9) == []
    await engine.cap("default", 6)
    assert len(await worker.lease(9)) == 2
    await engine.cap("default", -1)
    assert len(await worker.lease(9)) == 3


async def test_a_pause_keeps_the_limit_and_a_limit_keeps_the_pause(engine: Engine) -> None:
    await engine.cap("default", 4)
    await engine.pause("default")
    assert (await Views(engine).queue_settings())["default"] == (True, 4, None)
    await engine.cap("default", 5)
    assert (await Views(engine).queue_settings())["default"] == (True, 5, None)
    await engine.resume("default")
    assert (await Views(engine).queue_settings())["default"] == (False, 5, None)
    await engine.cap("default", -1)
    assert (await Views(engine).queue_settings())["default"] == (False, None, None)


async def test_cap_adds_one_event(engine: Engine) -> None:
    await engine.cap("default", 4)
    assert ("cap", "", "4") in await happened(engine)


async def test_a_limit_of_none_lets_nothing_start(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    await engine.cap("default", 0)
    assert await worker.lease(9) == []


# How many may wait


async def test_a_full_queue_takes_no_more_and_one_that_starts_makes_room(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await engine.cap("default", most=2)
    jobs = [new_job("a"), new_job("b", due=1_000), new_job("c"), new_job("other", queue="other")]
    placed = await engine.enqueue(jobs)
    assert [answer.word for answer in placed] == ["created", "created", "full", "created"]
    assert "c" not in await states(engine)
    await worker.lease(1)
    assert [answer.word for answer in await engine.enqueue([new_job("c"), new_job("d")])] == ["created", "full"]


async def test_a_job_that_is_there_already_is_recognised_in_a_full_queue(engine: Engine) -> None:
    await enqueue(engine, new_job("a"), new_job("b", unique="u"))
    await engine.cap("default", most=1)
    assert [answer.word for answer in await engine.enqueue([new_job("a"), new_job("x", unique="u")])] == [
        "created",
        "unique",
    ]


async def test_the_settings_of_a_queue_are_kept_side_by_side(engine: Engine) -> None:
    await engine.cap("default", most=7)
    await engine.pause("default")
    await engine.cap("default", 3)
    assert (await Views(engine).queue_settings())["default"] == (True, 3, 7)
    await engine.resume("default")
    await engine.cap("default", most=8)
    assert (await Views(engine).queue_settings())["default"] == (False, 3, 8)
    await engine.cap("default", -1)
    assert (await Views(engine).queue_settings())["default"] == (False, None, 8)
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"), new_job("b"))
    assert len(await worker.lease(9)) == 2
    await engine.cap("default", most=-1)
    assert (await Views(engine).queue_settings())["default"] == (False, None, None)


async def test_a_job_that_waits_in_a_lane_does_not_start_before_better_ones_in_line(engine: Engine) -> None:
    worker = await TestWorker(engine, queues=("q",)).register()
    other = await TestWorker(engine, queues=("z",)).register()
    await engine.cap("q", 1)
    both = [lane("a"), "lock:t"]
    await enqueue(engine, new_job("z", queue="z", lanes=["lock:t"]), new_job("b", queue="q", priority=10, lanes=both))
    waiting = [new_job(f"a{n}", queue="q", priority=90, lanes=[lane("a")]) for n in range(1, 9)]
    await enqueue(engine, new_job("urgent", queue="q", priority=11), *waiting)
    await other.lease()
    started: list[str] = []
    for _ in range(3):  # the first may have looked at no more than the one that has to wait for the lock
        started += [lease.id for lease in await worker.lease(2)]
    assert started == ["urgent"]
    assert await audit(engine) == []
