"""Batches as users meet them, on a worker that runs in the same program."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from penstock import (
    BadArguments,
    BadOption,
    BatchNotFound,
    BatchSealed,
    BatchStatus,
    Bury,
    JobFailed,
    Penstock,
    PenstockError,
    current_job,
)
from penstock.engine.engine import PAGE
from tests.app_helpers import eventually, kill_connections, on_both, twin


class Tasks:
    """What the batches of these tests are made of."""

    def __init__(self, app: Penstock) -> None:
        self.reports: list[BatchStatus] = []
        self.failure_reports: list[BatchStatus] = []

        @app.task(name="double")
        async def double(number: int) -> int:
            return number * 2

        @app.task(name="fail")
        async def fail(number: int) -> int:
            raise Bury(f"no {number}")

        @app.task(name="report", queue="reports")
        async def report(status: BatchStatus) -> None:
            self.reports.append(status)

        @app.task(name="wail")
        def wail(status):  # type: ignore[no-untyped-def]  # without an annotation it is given the same
            self.failure_reports.append(status)

        self.double, self.fail, self.report, self.wail = double, fail, report, wail


@pytest.fixture
def tasks(app: Penstock) -> Tasks:
    return Tasks(app)


@on_both
async def test_members_run_while_others_are_added_and_then_runs_once(app: Penstock, tasks: Tasks) -> None:
    async with app.worker():
        async with app.batch("nightly", limit=2, priority=20, then=tasks.report, on_failure=tasks.wail) as batch:
            first = await batch.add(tasks.double.call(1))
            assert await first.result(timeout=5) == 2
            assert (await batch.status()).open
            await batch.add_many(tasks.double.call(n) for n in range(10))
            await batch.add(tasks.fail.call(7))
        status = await batch.wait(timeout=10)
        assert (status.total, status.done, status.dead, status.cancelled, status.pending) == (12, 11, 1, 0, 0)
        assert (status.name, status.open, status.state, status.priority) == ("nightly", False, "ended", 20)
        await eventually(lambda: tasks.reports and tasks.failure_reports)
    assert [report.done for report in tasks.reports] == [11]
    assert [type(report) for report in tasks.failure_reports] == [BatchStatus]
    assert tasks.reports[0].ended is not None


async def test_handles_come_in_the_order_they_finish_with_their_results(app: Penstock, tasks: Tasks) -> None:
    async with app.worker():
        async with app.batch() as batch:
            jobs = await batch.add_many(tasks.double.call(n) for n in range(250))
        results = {job.id: await job.result() async for job in batch.as_completed()}
        assert results == {job.id: n * 2 for n, job in enumerate(jobs)}
        async with twin(app) as other:
            again = [job.id async for job in (await other.get_batch(batch.id)).as_completed()]
    assert sorted(again) == sorted(results)


async def test_a_reader_that_waits_is_told_and_survives_a_lost_connection(app: Penstock, tasks: Tasks) -> None:
    batch = await app.batch("slow").open()
    seen: list[Any] = []

    async def read() -> None:
        async for job in batch.as_completed():
            seen.append(await job.result())  # noqa: PERF401  (one by one, as they come)

    reading, waiting = asyncio.create_task(read()), asyncio.create_task(batch.wait())
    async with app.worker():
        await batch.add(tasks.double.call(1))
        await eventually(lambda: seen == [2])
        await kill_connections(app)
        await batch.add(tasks.double.call(2))
        await eventually(lambda: seen == [2, 4], within=15)
        await batch.seal()
        await asyncio.wait_for(reading, 15)
        assert (await asyncio.wait_for(waiting, 15)).done == 2


async def test_map_gives_results_in_the_order_of_rows(app: Penstock, tasks: Tasks) -> None:
    async def rows() -> AsyncIterator[int]:
        for n in range(30):
            yield n

    async with app.worker():
        assert await app.map(tasks.double, range(30), limit=4) == [n * 2 for n in range(30)]
        assert await app.map(tasks.double, rows()) == [n * 2 for n in range(30)]
        assert await app.map(tasks.double, []) == []
        with pytest.raises(JobFailed, match="no 0"):
            await app.map(tasks.fail, [0, 1])
        both = await app.map(tasks.fail, [0, 1], return_exceptions=True)
        assert [type(one) for one in both] == [JobFailed, JobFailed]


async def test_map_leaves_nothing_behind_if_a_row_does_not_fit(app: Penstock, tasks: Tasks) -> None:
    rows: list[Any] = [*range(PAGE + 50), "no number"]
    with pytest.raises(BadArguments):
        await app.map(tasks.double, rows)
    batches = [batch async for batch in app.client.views.batches()]
    assert [(batch.state, batch.pending, batch.open) for batch in batches] == [("ended", 0, False)]
    with pytest.raises(BadArguments):
        await app.map(tasks.double, rows, on_error="keep")
    assert sorted([batch.open async for batch in app.client.views.batches()]) == [False, True]


async def test_map_shows_how_far_it_has_come(app: Penstock, tasks: Tasks, capsys: pytest.CaptureFixture[str]) -> None:
    async with app.worker():
        await app.map(tasks.double, range(5), progress=True)
    assert "double: 5 of 5 done, 0 running, 0 failed, ended" in capsys.readouterr().err


async def test_blocking_code_has_the_same(app: Penstock, tasks: Tasks) -> None:
    def blocking() -> tuple[int, list[int], int]:
        with app.batch("b", then=tasks.report) as batch:
            batch.add_sync(tasks.double.call(1))
            batch.add_many_sync(tasks.double.call(n) for n in range(3))
            batch.set_sync(limit=3)
        done = batch.wait_sync(timeout=20).done
        results = sorted(job.result_sync() for job in app.get_batch_sync(batch.id).as_completed_sync())
        assert batch.status_sync().state == "ended"
        assert batch.retry_failed_sync() == 0
        assert batch.cancel_sync().reason == ""
        return done, results, sum(app.map_sync(tasks.double, [1, 2]))

    async with app.worker():
        assert await asyncio.to_thread(blocking) == (4, [0, 2, 2, 4], 6)
    with pytest.raises(PenstockError, match="await wait"):
        app.batch().wait_sync()


async def test_a_member_adds_members_to_its_own_batch(app: Penstock, tasks: Tasks) -> None:
    @app.task(name="spread")
    async def spread(depth: int) -> None:
        batch = await app.get_batch(current_job().batch)
        if depth:
            await batch.add_many(spread.call(depth - 1) for _ in range(2))
        else:
            await batch.add(tasks.double.call(depth))

    async with app.worker():
        batch = await app.batch().open()
        await batch.add(spread.call(2))
        await eventually(lambda: _has(batch, 11))
        await batch.seal()
        assert (await batch.wait(timeout=10)).done == 11


async def _has(batch: Any, total: int) -> bool:
    status = await batch.status()
    return bool(status.total == total and not status.pending)


async def test_batches_inside_batches(app: Penstock, tasks: Tasks) -> None:
    async with app.worker():
        async with app.batch("outer", then=tasks.report) as outer:
            for n in range(2):
                async with outer.batch(f"inner-{n}", then=tasks.report) as inner:
                    await inner.add(tasks.double.call(n))
            await outer.add(tasks.double.call(9))
        assert (await outer.wait(timeout=10)).done == 3
        await eventually(lambda: len(tasks.reports) == 3)
    assert {report.name for report in tasks.reports} == {"outer", "inner-0", "inner-1"}


async def test_failed_members_are_retried_and_the_batch_ends_again(app: Penstock, tasks: Tasks) -> None:
    works = False

    @app.task(name="moody")
    async def moody() -> None:
        if not works:
            raise Bury("not yet")

    async with app.worker():
        async with app.batch("b", then=tasks.report) as batch:
            await batch.add_many(moody.call() for _ in range(3))
        assert (await batch.wait(timeout=10)).dead == 3
        works = True
        assert await batch.retry_failed() == 3
        status = await batch.wait(timeout=10)
        assert (status.done, status.dead, status.generation) == (3, 0, 2)
        await eventually(lambda: len(tasks.reports) == 2)
    assert [report.dead for report in tasks.reports] == [3, 0]


async def test_cancelling_stops_what_runs_and_drops_what_waits(app: Penstock, tasks: Tasks) -> None:
    began = asyncio.Event()

    @app.task(name="long")
    async def long() -> None:
        began.set()
        await asyncio.sleep(600)

    async with app.worker():
        batch = await app.batch("b", limit=1, then=tasks.report).open()
        await batch.add_many(long.call() for _ in range(150))
        await asyncio.wait_for(began.wait(), 10)
        assert (await batch.cancel("enough")).reason == "enough"
        status = await batch.wait(timeout=15)
        assert (status.cancelled, status.pending, status.reason) == (150, 0, "enough")
        await eventually(lambda: tasks.reports)
        with pytest.raises(BatchSealed, match="ended"):
            await batch.add(long.call())


# Bad input


async def test_a_batch_that_takes_no_more_says_so(app: Penstock, tasks: Tasks) -> None:
    batch = await app.batch().open()
    member = await batch.add(tasks.double.call(1))
    await batch.seal()
    with pytest.raises(BatchSealed, match="is sealed and takes no more members"):
        await batch.add(tasks.double.call(2))
    with pytest.raises(BatchSealed, match="sealed"):
        await batch.add_many([tasks.double.call(2)])
    with pytest.raises(BatchSealed, match="sealed"):
        await batch.batch("inside").open()
    await batch.cancel()
    with pytest.raises(BatchSealed):
        batch.add_sync(tasks.double.call(2))
    assert (await member.status()).state == "cancelled"
    assert (await batch.status()).total == 1


async def test_an_unknown_batch_is_not_found(app: Penstock, tasks: Tasks) -> None:
    with pytest.raises(BatchNotFound, match="'nobody'"):
        await app.get_batch("nobody")
    with pytest.raises(BatchNotFound):
        app.get_batch_sync("nobody")
    with pytest.raises(BadArguments, match="takes calls"):
        await app.batch().add(1)  # type: ignore[arg-type]


async def test_an_empty_batch_ends_at_once_and_then_runs(app: Penstock, tasks: Tasks) -> None:
    async with app.worker():
        async with app.batch(then=tasks.report) as batch:
            pass
        assert (await batch.wait(timeout=5)).total == 0
        await eventually(lambda: tasks.reports)


async def test_a_generator_that_raises_leaves_it_open_or_cancels_it(
    app: Penstock, tasks: Tasks, caplog: pytest.LogCaptureFixture
) -> None:
    def calls() -> Iterator[Any]:
        yield from (tasks.double.call(n) for n in range(PAGE + 50))
        raise RuntimeError("the file is broken")

    caplog.set_level(logging.WARNING, "penstock")
    with pytest.raises(RuntimeError):
        async with app.batch("kept") as kept:
            await kept.add_many(calls())
    status = await kept.status()
    assert status.open
    assert status.total in {PAGE, PAGE + 50}
    assert f"batch {kept.id} (kept) stays open" in caplog.text
    with pytest.raises(RuntimeError):
        async with app.batch("dropped", on_error="cancel") as dropped:
            await dropped.add_many(calls())
    status = await dropped.status()
    assert status.state == "ended"
    assert status.cancelled == status.total
    assert "RuntimeError" in status.reason


@pytest.mark.parametrize(
    "options",
    [
        {"limit": 0},
        {"limit": "many"},
        {"priority": 100},
        {"abandon_after": 0},
        {"on_error": "explode"},
        {"then": print},
        {"id": "with space"},
        {"id": "with@"},
        {"name": "\x00"},
    ],
)
async def test_a_bad_option_is_refused_where_it_is_written(app: Penstock, options: Any) -> None:
    with pytest.raises(BadOption):
        app.batch(**options)


async def test_a_then_that_cannot_take_a_status_is_refused(app: Penstock, tasks: Tasks) -> None:
    @app.task(name="nothing")
    async def nothing() -> None: ...

    @app.task(name="two")
    async def two(status: BatchStatus, other: int) -> None: ...

    @app.task(name="several")
    async def several(*statuses: BatchStatus) -> None: ...

    for task in (nothing, two, several, tasks.double):
        with pytest.raises(BadOption, match=r"then=.*BatchStatus"):
            app.batch(then=task)
    with pytest.raises(BadOption, match="nothing to set"):
        await app.batch().set()
