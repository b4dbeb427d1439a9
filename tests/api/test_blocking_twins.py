"""Blocking twins of async methods: the same signature, the same answers, no event loop; and clear errors."""

import asyncio
import inspect
from collections.abc import Callable, Iterator

import pytest

from penstock import Batch, Call, Job, JobContext, Penstock, PenstockError, QueueFull, Schedule, Task
from penstock.api.lane import LaneControl
from penstock.api.queue import QueueControl
from penstock.engine.transport.blocking import blocking, is_blocking, run_blocking
from tests.engine.factories import new_job

CLASSES = (Batch, Job, JobContext, LaneControl, Penstock, QueueControl, Schedule, Task)
TWINS = [(kind, name) for kind in CLASSES for name in dir(kind) if name.endswith("_sync")]
#: those that take one kind of iterable only, or fewer parameters
NARROWER = {"add_many_sync", "enqueue_many_sync", "map_sync", "as_completed_sync", "purge_sync"}


@pytest.mark.parametrize(("kind", "name"), TWINS, ids=[f"{kind.__name__}.{name}" for kind, name in TWINS])
def test_every_twin_has_the_parameters_of_its_method_and_says_so(kind: type, name: str) -> None:
    twin, method = getattr(kind, name), getattr(kind, name.removesuffix("_sync"))
    assert twin.__name__ == name
    assert twin.__doc__.startswith("The same from blocking code")
    assert not inspect.iscoroutinefunction(twin)
    if name not in NARROWER:
        assert list(inspect.signature(twin).parameters) == list(inspect.signature(method).parameters)


async def test_a_twin_works_in_a_thread_and_on_the_thread_of_a_loop(app: Penstock) -> None:
    @app.task
    async def nothing(number: int) -> None: ...

    job = await nothing.enqueue(1)
    assert (await asyncio.to_thread(job.status_sync)).state == job.status_sync().state == "ready"
    assert app.queue("default").status_sync().counts["ready"] == 1
    assert "ready" in job.explain_sync() or "no live worker" in job.explain_sync()
    assert job.log_sync() == []
    assert not is_blocking()


async def test_a_full_queue_is_the_same_error_for_every_way_to_enqueue(app: Penstock) -> None:
    @app.task(queue="small")
    async def nothing(number: int) -> None: ...

    await app.queue("small").set(max_size=0)
    batch = await app.batch().open()
    ways: list[Callable[[], object]] = [
        lambda: nothing.enqueue_sync(1),
        lambda: app.enqueue_many_sync([nothing.call(1), nothing.call(2)]),
        lambda: batch.add_sync(nothing.call(1)),
        lambda: batch.add_many_sync([nothing.call(1), nothing.call(2)]),
    ]
    for way in ways:
        with pytest.raises(QueueFull, match="small"):
            await asyncio.to_thread(way)
    await batch.seal()


async def test_calls_sent_together_are_answered_in_their_order(app: Penstock) -> None:
    engine = app.client.engine

    async def together() -> list[object]:
        return await engine.script_client.together(engine.enqueue([new_job("a")]), engine.cancel(["a"]))

    assert await asyncio.to_thread(run_blocking, together()) == [b"ready", [b"cancelled"]]


async def test_awaiting_anything_else_is_a_clear_error_and_ends_the_coroutine(app: Penstock) -> None:
    ended: list[str] = []

    async def sleeps() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            ended.append("sleeps")

    async def needs_a_timer() -> None:
        async with asyncio.timeout(1):
            await asyncio.sleep(0)

    for work in (sleeps, needs_a_timer):
        with pytest.raises(PenstockError, match=f"{work.__name__} awaits something that needs an event loop"):
            await asyncio.to_thread(run_blocking, work())
    assert ended == ["sleeps"]
    with pytest.raises(PenstockError, match="several steps"):
        await asyncio.to_thread(run_blocking, app.client.engine.script_client.ask(_in_two_steps))


async def _in_two_steps(client: object) -> None: ...


async def test_a_loop_inside_of_blocking_code_works_as_usual_and_so_does_blocking_code_inside(app: Penstock) -> None:
    @app.task
    async def nothing(number: int) -> None: ...

    async def enqueue() -> Job[None]:
        assert not is_blocking()
        await asyncio.sleep(0)
        return await nothing.enqueue(1)

    def calls() -> Iterator[Call[None]]:
        assert is_blocking()
        assert asyncio.run(enqueue()).created
        assert nothing.enqueue_sync(2).status_sync().state == "ready"
        assert is_blocking()
        yield nothing.call(3)

    jobs = await asyncio.to_thread(app.batch().add_many_sync, calls())
    assert len(jobs) == 1
    assert app.queue("default").status_sync().counts["ready"] == 3


def test_a_twin_keeps_errors_and_is_no_longer_blocking_after_one() -> None:
    class Subject:
        async def fail(self, text: str) -> None:
            """Raise it."""
            assert is_blocking()
            raise KeyError(text)

        fail_sync = blocking(fail)

    with pytest.raises(KeyError, match="lost"):
        Subject().fail_sync("lost")
    assert not is_blocking()
    assert Subject.fail_sync.__doc__ == "The same from blocking code."
