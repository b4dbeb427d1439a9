"""The producer: which jobs travel together, and the order in which they arrive."""

import asyncio
import time
from random import Random
from typing import Any

import pytest

from penstock import (
    BadArguments,
    Job,
    Lane,
    Penstock,
    Unavailable,
)
from penstock.engine.engine import PAGE
from tests.app_helpers import connections, stats
from tests.conftest import namespace
from tests.proxy import proxied
from tests.servers import Server


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
    results = await asyncio.gather(*map(sent, numbers), return_exceptions=True)
    assert [isinstance(result, Job) and result.created for result in results] == [number % 3 > 0 for number in numbers]
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
    results = await asyncio.gather(*(echo.enqueue(bad if n == 5 else n) for n in range(10)), return_exceptions=True)
    assert [isinstance(result, Job) for result in results] == [n != 5 for n in range(10)]
    assert isinstance(results[5], BadArguments)


async def test_a_cancelled_enqueue_spoils_nothing_for_the_others_of_its_tick(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    tasks = [asyncio.create_task(echo.enqueue(number)) for number in range(50)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results[::2])
    kept = [result for result in results[1::2] if isinstance(result, Job)]
    await app.run_until_idle()
    assert [await job.result() for job in kept] == list(range(1, 50, 2))


async def test_twenty_thousand_enqueues_at_once_all_arrive_on_a_healthy_server(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    results = await asyncio.gather(*(echo.enqueue(number) for number in range(20_000)), return_exceptions=True)
    assert {type(result) for result in results} == {Job}
