"""Sending jobs: every way to do it, from everywhere, and what can be said of a job before it runs."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock import BadArguments, Call, Job, JobNotFound, Lane, Penstock, Unavailable
from penstock.engine.engine import ALIKE, PAGE
from penstock.engine.repair.audit import audit
from tests.app_helpers import connections, on_both, own_app, stats, twin
from tests.conftest import namespace
from tests.proxy import proxied
from tests.servers import Server, running

# One job


@on_both
async def test_an_enqueued_job_is_stored_when_enqueue_returns(app: Penstock) -> None:
    @app.task(queue="mail")
    async def send(user: int, subject: str = "hi") -> str:
        return subject

    job = await send.enqueue(7, subject="x")
    assert job.created
    async with twin(app) as elsewhere:
        status = await (await elsewhere.get_job(job.id)).status()
    assert (status.state, status.queue, status.priority, status.attempt) == ("ready", "mail", 50, 0)
    assert status.task == send.name


async def test_a_plain_call_of_a_task_runs_here_and_now(app: Penstock) -> None:
    @app.task
    async def double(x: int) -> int:
        return 2 * x

    @app.task
    def triple(x: int) -> int:
        return 3 * x

    assert await double(4) == 8
    assert triple(4) == 12


async def test_a_call_is_sent_only_by_enqueue_many(app: Penstock) -> None:
    @app.task
    async def double(x: int) -> int:
        return 2 * x

    call = double.call(4)
    assert isinstance(call, Call)
    with pytest.raises(JobNotFound):
        await app.get_job(call.job.id)
    (job,) = await app.enqueue_many([call])
    assert job.id == call.job.id
    assert await app.get_job(job.id) == job


async def test_get_job_of_a_task_is_typed_and_an_unknown_id_is_not_found(app: Penstock) -> None:
    @app.task
    async def when() -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    job = await when.enqueue()
    await app.run_until_idle()
    assert await (await when.get_job(job.id)).result() == datetime(2026, 1, 1, tzinfo=UTC)
    assert await (await app.get_job(job.id)).result() == datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(JobNotFound, match="nothing-here"):
        await when.get_job("nothing-here")
    with pytest.raises(JobNotFound):
        await asyncio.to_thread(app.get_job_sync, "nothing-here")


async def test_every_kind_of_parameter_arrives_where_it_belongs(app: Penstock) -> None:
    @app.task
    async def anything(a: int, b: int = 2, *rest: int, c: int = 3, **more: int) -> list[Any]:
        return [a, b, list(rest), c, more]

    @app.task
    async def only_named(*, a: int, b: int = 2) -> list[int]:
        return [a, b]

    @app.task
    async def first_without_name(a: int, /, b: int) -> list[int]:
        return [a, b]

    jobs: list[Job[Any]] = [
        await anything.enqueue(1),
        await anything.enqueue(1, c=5),
        await anything.enqueue(1, 5, 6, 7, c=8, d=9),
        await anything.enqueue(a=1, b=0),
        await only_named.enqueue(a=1),
        await first_without_name.enqueue(1, b=5),
    ]
    await app.run_until_idle()
    assert [await job.result() for job in jobs] == [
        [1, 2, [], 3, {}],
        [1, 2, [], 5, {}],
        [1, 5, [6, 7], 8, {"d": 9}],
        [1, 0, [], 3, {}],
        [1, 2],
        [1, 5],
    ]


# Many


def calls_of(task: Any, numbers: range) -> Iterator[Call[Any]]:
    return (task.call(number) for number in numbers)


@on_both
async def test_enqueue_many_takes_any_iterable_and_keeps_the_order(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    async def stream() -> AsyncIterator[Call[int]]:
        for number in range(20, 30):
            await asyncio.sleep(0)
            yield echo.call(number)

    jobs = [
        *await app.enqueue_many([echo.call(number) for number in range(10)]),
        *await app.enqueue_many(calls_of(echo, range(10, 20))),
        *await app.enqueue_many(stream()),
    ]
    assert all(job.created for job in jobs)
    await app.run_until_idle()
    assert await asyncio.gather(*(job.result() for job in jobs)) == list(range(30))
    assert await app.enqueue_many([]) == []


async def test_enqueue_many_sends_a_page_per_script_call(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    await app.enqueue_many([echo.call(0)])
    before = await stats(app, "fcall")
    jobs = await app.enqueue_many(calls_of(echo, range(5 * ALIKE)))
    assert len({job.id for job in jobs}) == 5 * ALIKE
    assert await stats(app, "fcall") - before == 5


async def test_calls_that_are_not_alike_come_in_smaller_pages(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    other = echo.using(priority=3)
    before = await stats(app, "fcall")
    for numbers in (range(PAGE), range(PAGE + 1), range(2 * PAGE)):
        await app.enqueue_many((other if number == 50 else echo).call(number) for number in numbers)
    await app.enqueue_many(other.call(number) if number >= PAGE else echo.call(number) for number in range(3 * PAGE))
    assert await stats(app, "fcall") - before == 1 + 2 + 2 + 2
    assert (await app.client.views.counts())["default"]["ready"] == 7 * PAGE + 1
    assert await audit(app.client.engine) == []


async def test_enqueue_many_bounds_a_page_in_bytes_too(app: Penstock) -> None:
    @app.task
    async def weigh(data: bytes) -> int:
        return len(data)

    await weigh.enqueue(b"")
    before = await stats(app, "fcall")
    heavy = await app.enqueue_many(weigh.call(b"x" * 1_000_000) for _ in range(9))
    assert await stats(app, "fcall") - before == 3
    await asyncio.gather(*(job.cancel() for job in heavy))


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_calls_that_fail_half_way_raise_their_own_error_and_leave_whole_pages(
    app: Penstock, asynchronous: bool
) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    def broken() -> Iterator[Call[int]]:
        yield from calls_of(echo, range(2 * ALIKE + 50))
        raise LookupError("no more rows")

    async def broken_stream() -> AsyncIterator[Call[int]]:
        for call in broken():
            yield call

    with pytest.raises(LookupError, match="no more rows"):
        await app.enqueue_many(broken_stream() if asynchronous else broken())
    counts = await app.client.views.counts()
    assert counts.get("default", {}).get("ready", 0) in {ALIKE, 2 * ALIKE}


async def test_a_call_with_bad_arguments_in_the_middle_is_refused_where_it_is_written(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    bad: Any = "three"
    with pytest.raises(BadArguments):
        await app.enqueue_many(echo.call(bad if number == 3 else number) for number in range(10))
    assert await app.client.views.counts() == {}


async def test_enqueue_many_may_mix_tasks_queues_and_options(app: Penstock) -> None:
    @app.task(queue="a")
    async def one() -> int:
        return 1

    @app.task(queue="b")
    def two() -> str:
        return "two"

    calls: list[Call[Any]] = [one.call(), two.call(), one.using(queue="c", delay="1h").call()]
    jobs = await app.enqueue_many(calls)
    assert [(await job.status()).queue for job in jobs] == ["a", "b", "c"]
    await app.run_until_idle()
    assert [await job.result() for job in jobs[:2]] == [1, "two"]
    assert (await jobs[2].status()).state == "scheduled"


# Ids and unique keys


async def test_an_id_makes_one_job_however_often_it_is_sent(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    jobs = await asyncio.gather(*(echo.using(id="order-7").enqueue(number) for number in range(20)))
    assert {job.id for job in jobs} == {"order-7"}
    assert sorted(job.created for job in jobs) == [False] * 19 + [True]
    await app.run_until_idle()
    first = next(number for number, job in enumerate(jobs) if job.created)
    assert await jobs[0].result() == first
    late = await echo.using(id="order-7").enqueue(99)
    assert not late.created
    assert await late.result() == first


async def test_generated_ids_differ_and_sort_by_time(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    ids = [echo.call(number).job.id for number in range(5_000)]
    assert len(set(ids)) == len(ids)
    await asyncio.sleep(0.002)
    assert echo.call(0).job.id > max(ids)


@pytest.mark.parametrize("unique", ["the-only-one", True, "user:{user}"])
async def test_a_unique_job_is_made_once_until_it_has_finished(app: Penstock, unique: str | bool) -> None:
    @app.task(unique=unique)
    async def remind(user: int, text: str = "hi") -> str:
        return text

    first, second = await remind.enqueue(7), await remind.enqueue(7)
    assert (first.created, second.created) == (True, False)
    assert first == second
    assert (await remind.enqueue(8)).created == (unique != "the-only-one")
    await app.run_until_idle()
    third = await remind.enqueue(7)
    assert third.created
    assert third.id != first.id


async def test_unique_by_template_looks_at_the_named_arguments_only(app: Penstock) -> None:
    @app.task(unique="{user}/{text}")
    async def remind(user: int, text: str = "hi", times: int = 1) -> None: ...

    first = await remind.enqueue(7, times=1)
    assert (await remind.enqueue(7, times=2)).id == first.id
    assert (await remind.enqueue(7, text="hi")).id == first.id
    assert (await remind.enqueue(user=7)).id == first.id
    assert (await remind.enqueue(7, text="ho")).created


async def test_unique_true_looks_at_task_and_arguments(app: Penstock) -> None:
    @app.task(unique=True)
    async def remind(user: int) -> None: ...

    @app.task(unique=True)
    async def forget(user: int) -> None: ...

    first = await remind.enqueue(7)
    assert (await remind.enqueue(user=7)).id == first.id
    assert (await forget.enqueue(7)).created


async def test_a_unique_key_given_with_using_is_taken_literally(app: Penstock) -> None:
    @app.task
    async def remind(user: int) -> None: ...

    first = await remind.using(unique="{user}").enqueue(7)
    assert (await remind.using(unique="{user}").enqueue(8)).id == first.id
    assert (await remind.using(unique=False).enqueue(8)).created


async def test_a_cancelled_job_frees_its_unique_key(app: Penstock) -> None:
    @app.task(unique="k", delay="1h")
    async def remind() -> None: ...

    first = await remind.enqueue()
    assert await first.cancel() == "cancelled"
    assert (await remind.enqueue()).created


# Options


async def test_using_changes_a_copy_and_stacks(app: Penstock) -> None:
    @app.task(queue="mail", retries=5)
    async def send() -> None: ...

    urgent = send.using(priority=0)
    later = urgent.using(delay="1h", queue="slow")
    statuses = [await (await task.enqueue()).status() for task in (send, urgent, later)]
    assert [(s.queue, s.priority, s.state, s.retries) for s in statuses] == [
        ("mail", 50, "ready", 5),
        ("mail", 0, "ready", 5),
        ("slow", 0, "scheduled", 5),
    ]


@pytest.mark.parametrize("delay", [3600, 3600.0, timedelta(hours=1), "1h", "60m", "3600s", "3600000ms"])
async def test_a_delay_can_be_said_in_many_ways(app: Penstock, delay: Any) -> None:
    @app.task(delay=delay)
    async def later() -> None: ...

    status = await (await later.enqueue()).status()
    assert status.state == "scheduled"
    assert status.due is not None
    assert status.due - status.created == timedelta(hours=1)


async def test_at_is_an_instant_in_any_zone_and_wins_over_the_tasks_delay(app: Penstock) -> None:
    @app.task(delay="2h")
    async def later() -> None: ...

    instant = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    for zone in (UTC, None):
        status = await (await later.using(at=instant.astimezone(zone)).enqueue()).status()
        assert status.due == instant


async def test_an_at_that_is_just_past_means_now_and_a_delay_of_nothing_too(app: Penstock) -> None:
    @app.task
    async def now() -> int:
        return 1

    past = await now.using(at=datetime.now(UTC) - timedelta(days=400)).enqueue()
    at_once = await now.using(delay=0).enqueue()
    await app.run_until_idle()
    assert [await past.result(), await at_once.result()] == [1, 1]


async def test_a_job_that_expires_first_is_cancelled_with_that_reason(app: Penstock) -> None:
    @app.task(delay="1h")
    async def late() -> None: ...

    job = await late.using(expires="5ms").enqueue()
    async with app.worker():
        with pytest.raises(Exception, match="expired"):
            await job.result(timeout=5)
    status = await job.status()
    assert (status.state, status.reason, status.attempt) == ("cancelled", "expired", 0)


async def test_priorities_come_first_and_inside_one_the_order_of_enqueueing(app: Penstock) -> None:
    ran: list[int] = []

    @app.task
    async def note(x: int) -> None:
        ran.append(x)

    for number, priority in enumerate([50, 99, 0, 50, 0, 99, 7]):
        await note.using(priority=priority).enqueue(number)
    await app.run_until_idle(concurrency=1)
    assert ran == [2, 4, 6, 0, 3, 1, 5]


# What travels together


@pytest.mark.parametrize(("number", "calls"), [(1, 1), (2, 2), (3, 2), (4, 3), (PAGE, 3)])
async def test_jobs_enqueued_while_a_call_is_on_its_way_travel_together(app: Penstock, number: int, calls: int) -> None:
    """The first goes by itself; several that wait for the same answer go in two halves."""

    @app.task
    async def echo(x: int) -> int:
        return x

    await echo.enqueue(0)
    before = await stats(app, "fcall")
    jobs = await asyncio.gather(*map(echo.enqueue, range(number)))
    assert len({job.id for job in jobs}) == number
    assert await stats(app, "fcall") - before == calls


@pytest.mark.parametrize("lane", [(), Lane("line", ordered=True)], ids=["plain", "ordered"])
async def test_jobs_of_one_program_are_in_line_in_the_order_in_which_it_sent_them(app: Penstock, lane: Any) -> None:
    ran: list[int] = []

    @app.task(lane=lane)
    async def note(x: int) -> None:
        ran.append(x)

    await asyncio.gather(*(note.enqueue(number) for number in range(330)))
    await app.enqueue_many(note.call(number) for number in range(330, 700))
    await asyncio.gather(*(note.enqueue(number) for number in range(700, 750)), note.enqueue(750))
    await app.run_until_idle(concurrency=1)
    assert ran == list(range(751))


@pytest.mark.parametrize("lane", [(), Lane("line", ordered=True)], ids=["plain", "ordered"])
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("callers", [False, True], ids=["many", "callers"])
async def test_pages_stay_in_their_order_when_an_answer_is_lost(
    single: Server, lane: Any, nth: int, callers: bool
) -> None:
    ran: list[int] = []
    with proxied(single.port) as proxy:
        async with Penstock(namespace(), url=proxy.url, deadline="10s") as app:

            @app.task(lane=lane)
            async def note(x: int) -> None:
                ran.append(x)

            await note.enqueue(0)
            proxy.lose(nth)
            if callers:
                jobs = await asyncio.gather(*map(note.enqueue, range(1, 1_001)))
            else:
                jobs = await app.enqueue_many(note.call(number) for number in range(1, 1_001))
            assert proxy.lost == 1
            assert all(job.created for job in jobs)
            await app.run_until_idle(concurrency=1)
    assert ran == list(range(1_001))


async def test_a_connection_that_hangs_holds_up_one_call_not_those_behind_it(single: Server) -> None:
    with proxied(single.port) as proxy:
        app = Penstock(namespace(), url=proxy.url, deadline="5s")

        @app.task
        async def echo(x: int) -> int:
            return x

        async with app:
            await echo.enqueue(0)
            proxy.hang()
            first = asyncio.create_task(echo.enqueue(1))
            await asyncio.sleep(0)
            others = await asyncio.gather(*map(echo.enqueue, range(2, 40)))
            assert len({job.id for job in others}) == 38
            assert not first.done()
            with pytest.raises(Unavailable):
                await first


async def test_a_page_on_a_connection_that_hangs_is_overtaken_by_those_that_come_later(single: Server) -> None:
    with proxied(single.port) as proxy:
        app = Penstock(namespace(), url=proxy.url, deadline="5s")

        @app.task
        async def echo(x: int) -> int:
            return x

        async with app:
            await echo.enqueue(0)
            warm = [asyncio.create_task(echo.enqueue(number)) for number in range(1, 4)]
            await warm[0]  # the other two are a page, which is on its way now
            proxy.hang()
            hung = [asyncio.create_task(echo.enqueue(number)) for number in range(4, 8)]
            await asyncio.sleep(0.4)  # later than this, nothing follows them on their connection
            begin = time.monotonic()
            others = await asyncio.gather(*map(echo.enqueue, range(10, 40)))
            assert time.monotonic() - begin < 3
            assert len({job.id for job in others}) == 30
            await asyncio.gather(*warm, *hung, return_exceptions=True)


@pytest.mark.parametrize("refused", ["unique", "full"])
async def test_jobs_behind_one_that_is_not_taken_keep_their_order(app: Penstock, refused: str) -> None:
    """Each page says which job must be there before it. Those of which it is not wait for the page, not for the job."""
    ran: list[int] = []

    @app.task
    async def note(x: int) -> None:
        ran.append(x)

    if refused == "unique":
        other = note.using(unique="one", delay="1h")
    else:
        other = note.using(queue="small", delay="1h")
        await app.queue("small").set(max_size=1)
    await other.enqueue(-1)

    def sent(number: int) -> Any:
        return (other if number % 3 == 0 else note).enqueue(number)

    numbers = range(1, 1_000)
    found = await asyncio.gather(*map(sent, numbers), return_exceptions=True)
    assert [isinstance(one, Job) and one.created for one in found] == [number % 3 > 0 for number in numbers]
    await app.run_until_idle(concurrency=1)
    assert ran == [number for number in numbers if number % 3]


async def test_jobs_behind_a_page_that_ends_with_a_known_id_keep_their_order(app: Penstock) -> None:
    """That this job is there does not tell that the others of its page are."""
    ran: list[int] = []

    @app.task
    async def note(x: int) -> None:
        ran.append(x)

    known, unique = note.using(id="mine", delay="1h"), note.using(unique="one", delay="1h")
    await asyncio.gather(known.enqueue(-1), unique.enqueue(-1))
    choice = Random(7)
    for first in range(0, 8_000, 400):
        kinds = choice.choices([note, known, unique], k=400)
        await asyncio.gather(*(kind.enqueue(first + number) for number, kind in enumerate(kinds)))
    await app.run_until_idle(concurrency=1)
    assert ran == sorted(ran)


async def test_pages_of_known_ids_alone_do_not_overtake_each_other(app: Penstock) -> None:
    ran: list[int] = []

    @app.task
    async def note(x: int) -> None:
        ran.append(x)

    for turn in range(2):
        await app.enqueue_many(note.using(id=f"note-{number}").call(number) for number in range(250 * (turn + 1)))
    await asyncio.gather(*(note.using(id=f"note-{number}").enqueue(number) for number in range(400, 900)))
    await app.run_until_idle(concurrency=1)
    assert ran == list(range(900))


async def test_a_program_that_blocks_its_loop_does_not_spoil_the_order_of_its_jobs(app: Penstock) -> None:
    """The answers are there, but were not heard: that is no reason to overtake."""
    ran: list[int] = []

    @app.task
    async def note(x: int) -> None:
        ran.append(x)

    unique = note.using(unique="one", delay="1h")
    await unique.enqueue(-1)

    async def block(turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        time.sleep(0.6)  # noqa: ASYNC251

    for turn in range(6):
        numbers = range(600 * turn, 600 * (turn + 1))
        await asyncio.gather(*((note if n % 3 else unique).enqueue(n) for n in numbers), block(turn))
    await app.run_until_idle(concurrency=1)
    assert ran == [number for number in range(3_600) if number % 3]


@pytest.mark.parametrize("lane", [(), Lane("line", ordered=True)], ids=["plain", "ordered"])
async def test_the_first_jobs_are_in_order_however_long_the_server_takes_to_be_found(single: Server, lane: Any) -> None:
    ran: list[int] = []
    with proxied(single.port) as proxy:
        app = Penstock(namespace(), url=proxy.url, deadline="10s")

        @app.task(lane=lane)
        async def note(x: int) -> None:
            ran.append(x)

        proxy.stall("replies")
        asyncio.get_running_loop().call_later(1.5, proxy.flow)
        await asyncio.gather(*map(note.enqueue, range(500)))
        await app.run_until_idle(concurrency=1)
        await app.aclose()
    assert ran == list(range(500))


async def test_thousands_of_enqueues_at_once_are_bounded_and_all_arrive(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    await echo.enqueue(-1)
    open_before, calls_before = await connections(app), await stats(app, "fcall")
    jobs = await asyncio.gather(*(echo.enqueue(number) for number in range(5_000)))
    assert len({job.id for job in jobs}) == 5_000
    assert await stats(app, "fcall") - calls_before <= 5_000 / PAGE + 5
    assert await connections(app) - open_before <= 4
    assert (await app.client.views.counts())["default"]["ready"] == 5_001


async def test_a_refused_job_does_not_fail_the_others_of_its_tick(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    bad: Any = object()
    found = await asyncio.gather(*(echo.enqueue(bad if n == 5 else n) for n in range(10)), return_exceptions=True)
    assert [isinstance(one, Job) for one in found] == [n != 5 for n in range(10)]
    assert isinstance(found[5], BadArguments)


async def test_a_cancelled_enqueue_spoils_nothing_for_the_others_of_its_tick(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    tasks = [asyncio.create_task(echo.enqueue(number)) for number in range(50)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in found[::2])
    kept = [one for one in found[1::2] if isinstance(one, Job)]
    await app.run_until_idle()
    assert [await job.result() for job in kept] == list(range(1, 50, 2))


# When the server does not answer


async def test_a_stopped_server_ends_every_enqueue_within_the_deadline_and_the_same_id_works_afterwards() -> None:
    with running(Server("--appendonly", "no")) as server:
        name = namespace()
        async with own_app(server, name) as first:  # the server takes the scripts, which may take long

            @first.task(name="first")
            async def begin() -> None: ...

            await begin.using(delay="1h").enqueue()
        async with own_app(server, name, deadline="700ms") as app:

            @app.task
            async def echo(x: int) -> int:
                return x

            await echo.enqueue(0)
            os.kill(server.process.pid, signal.SIGSTOP)
            began = time.monotonic()
            try:
                with pytest.raises(Unavailable, match="same id is safe"):
                    await echo.using(id="mine").enqueue(1)
                found = await asyncio.gather(*(echo.enqueue(n) for n in range(3_000)), return_exceptions=True)
                assert {type(one) for one in found} == {Unavailable}
                with pytest.raises(Unavailable):
                    await app.enqueue_many(echo.call(n) for n in range(1_000))
                assert time.monotonic() - began < 3 * 0.7 + 5  # the machine may be busy
            finally:
                os.kill(server.process.pid, signal.SIGCONT)
            again = await echo.using(id="mine").enqueue(1)
            assert again.id == "mine"
            await app.run_until_idle()
            assert await again.result() == 1


async def test_an_enqueue_goes_through_when_the_server_comes_back_in_time() -> None:
    with running(Server("--appendonly", "yes", "--appendfsync", "always")) as server:
        async with own_app(server, namespace()) as app:

            @app.task
            async def echo(x: int) -> int:
                return x

            await echo.enqueue(0)
            server.kill()
            jobs = [asyncio.create_task(echo.enqueue(number)) for number in range(100)]
            blocking = asyncio.create_task(asyncio.to_thread(echo.enqueue_sync, 100))
            await asyncio.sleep(0)
            await asyncio.to_thread(server.restart)
            await asyncio.gather(blocking, *jobs)
            assert (await app.client.views.counts())["default"]["ready"] == 102


def test_a_server_that_is_not_there_is_an_error_of_ours_that_says_where() -> None:
    app = Penstock(namespace(), url="redis://127.0.0.1:1", deadline="300ms")

    @app.task
    async def echo(x: int) -> int:
        return x

    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        echo.enqueue_sync(1)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        asyncio.run(_enqueue(echo.enqueue, 1))
    app.close()


async def _enqueue(enqueue: Callable[..., Any], *args: Any) -> Any:
    return await enqueue(*args)


# From everywhere


async def test_enqueue_sync_works_in_threads_while_a_loop_runs_elsewhere(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    async with app.worker():
        found = await asyncio.gather(*(asyncio.to_thread(echo.enqueue_sync, number) for number in range(50)))
        assert await asyncio.gather(*(job.result(timeout=5) for job in found)) == list(range(50))
        many = await asyncio.to_thread(app.enqueue_many_sync, [echo.call(number) for number in range(450)])
        assert await asyncio.gather(*(job.result(timeout=5) for job in many)) == list(range(450))


async def test_enqueue_sync_works_on_a_loop_too(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    job = echo.enqueue_sync(4)
    assert job.status_sync().state == "ready"
    await app.run_until_idle()
    assert await job.result() == 4


def test_a_loop_that_ends_in_the_middle_of_enqueues_leaves_nothing_behind(single: Server) -> None:
    app = Penstock(namespace(), url=single.url)

    @app.task
    async def echo(x: int) -> int:
        return x

    async def leave(ticks: int) -> list[asyncio.Task[Job[int]]]:
        tasks = [asyncio.create_task(echo.enqueue(number)) for number in range(3)]
        for _ in range(ticks):
            await asyncio.sleep(0)
        return tasks

    for ticks in range(8):
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            runner.run(leave(ticks))
        assert not asyncio.all_tasks(loop)
    asyncio.run(_clean(app))


def test_an_app_serves_loops_one_after_another_and_side_by_side(url: str) -> None:
    app = Penstock(namespace(), url=url)

    @app.task
    async def echo(x: int) -> int:
        return x

    async def once(x: int) -> int:
        job = await echo.enqueue(x)
        async with app.worker(concurrency=5):
            return await job.result(timeout=10)

    assert [asyncio.run(once(number)) for number in range(3)] == [0, 1, 2]
    found: list[int] = []
    threads = [threading.Thread(target=lambda n=n: found.append(asyncio.run(once(n)))) for n in range(3, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(found) == [3, 4, 5]
    assert echo.enqueue_sync(9).created
    asyncio.run(_clean(app))


async def _clean(app: Penstock) -> None:
    client = await app.client.endpoint.client()
    await client.delete(*app.client.engine.all_keys())
    await app.aclose()


FORKING = """
import asyncio, os, sys
from penstock import Penstock

app = Penstock(sys.argv[2], url=sys.argv[1])

@app.task
async def echo(x: int) -> int:
    return x

async def here(x: int) -> int:
    return await (await echo.enqueue(x)).result(timeout=10)

async def working(x: int) -> int:
    async with app.worker(concurrency=2):
        return await here(x)

echo.enqueue_sync(0)
assert asyncio.run(working(1)) == 1
child = os.fork()
mine = 100 if child else 200
for number in range(50):
    job = echo.enqueue_sync(mine + number)
    assert job.status_sync().id == job.id
assert asyncio.run(working(mine + 50)) == mine + 50
if child:
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    print("ok")
"""


async def test_parent_and_child_of_a_fork_both_enqueue(app: Penstock) -> None:
    assert app.settings.url is not None
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(FORKING), app.settings.url, app.name]
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=Path(__file__).parents[2], capture_output=True, check=False, timeout=30
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode() == "ok\n"
    counts = await app.client.views.counts()
    assert sum(counts["default"].values()) == 1 + 1 + 2 * 51


def test_with_and_async_with_open_and_close_an_app_and_it_can_be_used_again(url: str) -> None:
    app = Penstock(namespace(), url=url)

    @app.task
    async def echo(x: int) -> int:
        return x

    async def inside() -> Job[int]:
        async with app:
            return await echo.enqueue(1)

    with app:
        first = echo.enqueue_sync(0)
    second = asyncio.run(inside())
    assert {first.status_sync().state, second.status_sync().state} == {"ready"}
    asyncio.run(_clean(app))
