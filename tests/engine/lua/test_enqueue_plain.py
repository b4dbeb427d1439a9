"""enqueue: plain and simple jobs are stored as other jobs are, and pages keep their order."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from penstock.client.producer import Producer
from penstock.engine.answers import EnqueueAnswer
from penstock.engine.engine import PLAIN_PAGE, Engine, NewJob
from penstock.engine.repair.audit import audit
from penstock.engine.scripts import EVENTS_KEPT
from penstock.errors import QueueFull
from tests.conftest import Clock, namespace, open_engine
from tests.engine.factories import TestWorker, contents, enqueue, happened, header_of, listening, new_job, raw

SETTINGS: dict[str, Callable[[Engine], Awaitable[object]]] = {
    "nothing set": lambda engine: engine.resume("mail"),
    "paused": lambda engine: engine.pause("mail"),
    "at most 3 run": lambda engine: engine.cap("mail", limit=3),
    "at most 1,000 wait": lambda engine: engine.cap("mail", most=1_000),
}


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
async def test_a_single_job_does_what_one_among_others_does(
    url: str, engine: Engine, clock: Clock, setting: Callable[[Engine], Awaitable[object]]
) -> None:
    twin = open_engine(url, namespace(), clock)
    jobs = [
        new_job("a"),
        new_job("b", queue="mail", priority=7, retries=0, keep=5),
        new_job("c", payload=b"." * 255),
        new_job("d", payload=b"." * 256),
        new_job("e", queue="mail", payload=b""),
    ]
    try:
        for side in (engine, twin):
            await setting(side)
            worker = await TestWorker(side, "w", queues=("mail",)).register()
            assert await worker.lease() == []
        async with (
            listening(engine, engine.keys.channel("w")) as subscription,
            listening(twin, twin.keys.channel("w")) as other,
        ):
            for job in jobs:
                clock.advance(20_000)
                (placed,) = await engine.enqueue([job])
                assert await twin.enqueue([job, job]) == [placed, placed]
                assert await subscription.messages() == await other.messages() == (["work"] if job.id == "b" else [])
                assert await contents(engine) == await contents(twin)
        assert await happened(engine) == await happened(twin)
        assert await engine.enqueue([jobs[3]]) == [msgspec.structs.replace(placed, id="d")]
        assert await contents(engine) == await contents(twin)
    finally:
        await (await raw(twin)).delete(*twin.all_keys())
        await twin.script_client.endpoint.aclose()


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
async def test_a_page_of_plain_jobs_does_what_other_pages_do(
    url: str, engine: Engine, clock: Clock, setting: Callable[[Engine], Awaitable[object]]
) -> None:
    twin = open_engine(url, namespace(), clock)
    sizes = (0, 1, 7, 255, 256, 300)
    try:
        for side in (engine, twin):
            await setting(side)
            worker = await TestWorker(side, "w", queues=("mail",)).register()
            assert await worker.lease() == []
        async with (
            listening(engine, engine.keys.channel("w")) as subscription,
            listening(twin, twin.keys.channel("w")) as other,
        ):
            for number, fields in enumerate([{}, {"queue": "mail", "priority": 7, "retries": 0, "keep": 5}, {}, {}]):
                clock.advance(20_000)
                jobs = [new_job(f"{number}-{n}", payload=b"." * sizes[n % 6], **fields) for n in range(90)]
                placed = await engine.enqueue(jobs)
                assert placed == [EnqueueAnswer("created", job.id, "ready") for job in jobs]
                assert await twin.enqueue([*jobs, jobs[0]]) == [*placed, placed[0]]  # one that is there: the long way
                assert await subscription.messages() == await other.messages() == (["work"] if number == 1 else [])
                assert await contents(engine) == await contents(twin)
        assert await happened(engine) == await happened(twin)
        assert await audit(engine) == []
        assert await engine.enqueue(jobs) == placed  # sent again
        assert await contents(engine) == await contents(twin)
    finally:
        await (await raw(twin)).delete(*twin.all_keys())
        await twin.script_client.endpoint.aclose()


async def test_a_page_for_a_queue_with_a_setting_is_counted(engine: Engine) -> None:
    await engine.cap("default", most=2)
    words = [placed.word for placed in await engine.enqueue([new_job(name) for name in "abc"])]
    assert words == ["created", "created", "full"]


async def test_a_label_is_sent_once_for_consecutive_jobs_that_share_it(engine: Engine) -> None:
    jobs = [new_job("a"), new_job("b"), new_job("c", task="other"), new_job("d", task="other"), new_job("e")]
    call = engine.enqueue(jobs)
    assert [bool(given) for given in call.args[1::3]] == [True, False, True, False, True]
    assert [placed.word for placed in await call] == ["created"] * 5
    assert [(await header_of(engine, job.id)).task for job in jobs] == [job.header.task for job in jobs]


async def test_a_single_job_for_a_queue_with_a_setting_is_counted(engine: Engine) -> None:
    await engine.cap("default", most=1)
    assert [(await engine.enqueue([new_job(name)]))[0].word for name in "ab"] == ["created", "full"]


async def test_a_call_with_plain_jobs_sends_few_keys_and_all_when_it_is_asked_for_them(engine: Engine) -> None:
    job, key = new_job("a"), engine.keys("").decode()
    await engine.pause("other")  # a script that the server does not know yet would have all of them sent again
    call, other = engine.enqueue([job]), engine.enqueue([new_job("b", due=5)])
    assert (call.fast_keys, other.fast_keys) == (True, False)
    assert str(engine.script_client._short(call)).count(key) == 12 < str(engine.script_client._short(other)).count(key)
    assert [placed.word for placed in await call] == ["created"]
    for again in (await engine.enqueue([job]), engine.enqueue([job]).sync()):  # it is there: the long way
        assert again == [EnqueueAnswer("created", "a", "ready")]
    calls = engine.enqueue([job, new_job("c")]), engine.pause("default"), engine.enqueue([new_job("d")])
    first, _, last = await engine.script_client.together(*calls)
    assert [placed.word for placed in calls[0].decode(first) + calls[2].decode(last)] == ["created"] * 3
    assert [verb for verb, *_ in await happened(engine)] == ["pause", "enqueue", "enqueue", "pause", "enqueue"]


async def in_line(engine: Engine) -> list[str]:
    """The ids of one queue's jobs, in their order."""
    line = await (await raw(engine)).zrange(engine.keys("ready"), "[q\x1f", "(q ", bylex=True)
    return [member.decode().rpartition("\x1f")[2] for member in line]


async def sent_in_pages(engine: Engine, number: int) -> list[NewJob]:
    """Pages that follow each other at once, for a queue of their own."""
    for _ in range(3):
        await enqueue(engine, new_job(queue="other"))  # the connection is at hand
    header = new_job(queue="q").header
    jobs = [NewJob(f"j{n:04}", header, b"") for n in range(number)]
    with suppress(QueueFull):
        async for _ in Producer(engine, 5.0).enqueue_many(jobs):
            pass
    return jobs


@pytest.mark.parametrize("number", [PLAIN_PAGE + 1, PLAIN_PAGE + 100, 3 * PLAIN_PAGE - 1])
async def test_no_page_is_taken_before_one_that_does_not_fit(engine: Engine, number: int) -> None:
    await engine.cap("q", most=100)
    jobs = await sent_in_pages(engine, number)
    assert await in_line(engine) == [job.id for job in jobs[:100]]
    assert await audit(engine) == []


@pytest.mark.parametrize("known", [0, 100, PLAIN_PAGE])
async def test_pages_keep_their_order_where_some_of_their_jobs_are_there_already(engine: Engine, known: int) -> None:
    header = new_job(queue="q").header
    await engine.enqueue([NewJob(f"j{known:04}", header, b"")])
    jobs = await sent_in_pages(engine, 3 * PLAIN_PAGE)
    line = await in_line(engine)
    assert line[0] == f"j{known:04}"
    assert line[1:] == [job.id for job in jobs if job.id != line[0]]


async def test_a_page_behind_one_that_is_not_there_is_taken_when_it_is_sent_again(engine: Engine) -> None:
    await enqueue(engine, new_job("before"))
    for behind in ("before", "nobody"):
        for jobs in ([new_job()], [new_job(), new_job()], [new_job(), new_job(task="other", due=5)]):
            assert {placed.word for placed in await engine.enqueue(jobs, behind)} == {"created"}
            assert {placed.word for placed in engine.enqueue(jobs, behind).sync()} == {"created"}
    assert await audit(engine) == []


async def test_single_jobs_are_stored_right_however_many_labels_and_sizes_came_before(
    engine: Engine, clock: Clock
) -> None:
    """What was worked out for one call is used by the next: a few labels, the last number, the last time."""
    expected = {}
    for n in range(270):
        clock.advance(n * 7)
        queue, task = f"q{n % 5}", f"tasks:run{n}"
        job = new_job(f"job{n}" * (n % 7 + 1), payload=b"." * n, queue=queue, task=task, priority=n % 100)
        assert await engine.enqueue([job]) == [EnqueueAnswer("created", job.id, "ready")]
        expected[job.id] = queue, task, n % 100, n + 1, clock(), n
    for job_id, values in expected.items():
        header = await header_of(engine, job_id)
        assert (header.queue, header.task, header.priority, header.seq, header.created, header.size) == values
    assert [event[1:] for event in await happened(engine)] == [(job_id, "") for job_id in expected]
    assert await audit(engine) == []


async def test_single_jobs_keep_the_stream_of_events_short(engine: Engine) -> None:
    await engine.init()
    client: Any = await raw(engine)
    pipe = client.pipeline(transaction=False)
    for _ in range(EVENTS_KEPT + 1_000):
        pipe.xadd(engine.keys("events"), {"e": msgspec.msgpack.encode((0, []))})
    await pipe.execute()
    for n in range(100):
        await enqueue(engine, new_job(f"a{n}"))
    assert await client.xlen(engine.keys("events")) < EVENTS_KEPT + 200
