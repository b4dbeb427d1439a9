"""Views: reading what is stored."""

from penstock.engine.engine import PAGE, Engine
from penstock.engine.read.views import Views
from tests.conftest import Clock
from tests.engine.factories import LIFE, TestWorker, dump, enqueue, new_job, populate


async def test_an_empty_namespace_has_nothing_to_show(engine: Engine) -> None:
    views = Views(engine)
    assert await views.job("never-was") is None
    assert [await views.counts(), await views.queues(), await views.workers()] == [{}, {}, []]
    assert await views.position("never-was") is None
    assert [row async for row in views.headers()] == []
    assert await views.events() == []
    assert await views.last_event() == b""


async def test_reading_changes_nothing(engine: Engine) -> None:
    await populate(engine)
    before = await dump(engine)
    views = Views(engine)
    for job_id in ("ready", "running", "done", "tomb", "never-was"):
        await views.job(job_id)
        await views.position(job_id)
    await views.counts()
    await views.queues()
    await views.workers()
    await views.events()
    assert await dump(engine) == before


async def test_the_place_in_line_is_the_number_of_jobs_before_it(engine: Engine) -> None:
    await enqueue(engine, new_job("b"), new_job("c"), new_job("a", priority=1), new_job("other", queue="def"))
    views = Views(engine)
    assert [await views.position(job_id) for job_id in ("a", "b", "c", "other")] == [0, 1, 2, 0]
    worker = await TestWorker(engine, queues=("default",)).register()
    await worker.lease()
    assert [await views.position(job_id) for job_id in ("a", "b", "c")] == [None, 0, 1]


async def test_workers_are_shown_with_what_they_said_of_themselves(engine: Engine, clock: Clock) -> None:
    await engine.register("w1", LIFE, '{"pid":1}', ("a", "b"))
    clock.advance(10)
    await engine.register("w2", LIFE)
    first, second = await Views(engine).workers()
    assert (first.worker, first.info, first.queues, first.since) == ("w1", '{"pid":1}', ["a", "b"], clock() - 10)
    assert (second.worker, second.queues, second.alive_until) == ("w2", ["*"], clock() + LIFE)


async def test_all_headers_are_read_in_pages(engine: Engine) -> None:
    ids = {job_id for _ in range(4) for job_id in await enqueue(engine, *(new_job() for _ in range(PAGE)))}
    found = [job_id async for job_id, _ in Views(engine).headers()]
    assert len(found) == 4 * PAGE
    assert set(found) == ids


async def test_events_go_on_after_the_last_one_that_was_seen(engine: Engine) -> None:
    views = Views(engine)
    await enqueue(engine, new_job("a"), new_job("b"))
    seen = await views.events()
    assert [event.job for event in seen] == ["a", "b"]
    assert await views.events(seen[-1].id) == []
    await enqueue(engine, new_job("c"))
    await enqueue(engine, new_job("d"))
    assert [event.job for event in await views.events(seen[-1].id, count=1)] == ["c"]
    more = await views.events(seen[-1].id)
    assert [event.job for event in more] == ["c", "d"]
    assert (await views.last_event()).decode() == more[-1].id
