"""enqueue: nothing → ready or scheduled; the same id or a taken unique key makes no second job."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from penstock.client.producer import Producer
from penstock.engine.answers import EnqueueAnswer
from penstock.engine.engine import ALIKE, PAGE, Engine, NewJob
from penstock.engine.read.views import Views
from penstock.engine.repair.audit import audit
from penstock.engine.repair.reconcile import reconcile
from penstock.engine.scripts import EVENTS_KEPT
from penstock.errors import QueueFull
from tests.conftest import Clock, namespace, open_engine
from tests.engine.factories import TestWorker, contents, dump, enqueue, happened, header_of, listening, new_job, raw


async def test_a_job_without_a_delay_is_ready_and_one_with_it_scheduled(engine: Engine, clock: Clock) -> None:
    placed = await engine.enqueue([new_job("a"), new_job("b", due=5_000), new_job("c", due=clock() - 1)])
    assert placed == [
        EnqueueAnswer("created", "a", "ready"),
        EnqueueAnswer("created", "b", "scheduled"),
        EnqueueAnswer("created", "c", "ready"),
    ]
    record = await Views(engine).job("b")
    assert record is not None
    assert record.header.due == clock() + 5_000
    assert record.payload == b"payload"


async def test_the_same_id_makes_one_job_and_keeps_the_first(engine: Engine) -> None:
    assert await engine.enqueue([new_job("a", payload=b"1", nonce="x")]) == [EnqueueAnswer("created", "a", "ready")]
    assert await engine.enqueue([new_job("a", payload=b"2", nonce="y")]) == [EnqueueAnswer("exists", "a", "ready")]
    record = await Views(engine).job("a")
    assert record is not None
    assert record.payload == b"1"


async def test_a_resent_enqueue_gets_its_first_answer_again(engine: Engine) -> None:
    call = engine.enqueue([new_job("a", nonce="x"), new_job("b", nonce="x", unique="u"), new_job("c", unique="u")])
    first = await call
    assert [placed.word for placed in first] == ["created", "created", "unique"]
    assert await call == first


async def test_an_id_twice_in_one_page_is_one_job(engine: Engine) -> None:
    placed = await engine.enqueue([new_job("a", nonce="x"), new_job("a", nonce="y")])
    assert [one.word for one in placed] == ["created", "exists"]


async def test_a_taken_unique_key_gives_its_holder_until_that_is_finished(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    assert await enqueue(engine, new_job("a", unique="u"), new_job("b", unique="u")) == ["a", "a"]
    (lease,) = await worker.lease()
    assert await engine.enqueue([new_job("c", unique="u")]) == [EnqueueAnswer("unique", "a", "running")]
    assert await worker.complete(lease) == "ok"
    assert await engine.enqueue([new_job("c", unique="u")]) == [EnqueueAnswer("created", "c", "ready")]


async def test_times_below_the_threshold_are_delays_and_others_instants(engine: Engine, clock: Clock) -> None:
    await enqueue(engine, new_job("delays", due=5_000, expires=9_000))
    await enqueue(engine, new_job("instants", due=clock() + 5_000, expires=clock() + 9_000))
    delays, instants = await header_of(engine, "delays"), await header_of(engine, "instants")
    assert (delays.due, delays.expires) == (instants.due, instants.expires) == (clock() + 5_000, clock() + 9_000)
    assert delays.created == delays.since == clock()


async def test_a_job_that_is_due_now_waits_in_line_and_not_for_a_timer(engine: Engine, clock: Clock) -> None:
    assert [placed.state for placed in await engine.enqueue([new_job(due=clock())])] == ["ready"]


async def test_the_size_of_the_payload_is_noted_and_its_bytes_are_kept(engine: Engine) -> None:
    payloads = {"none": b"", "binary": bytes(range(256)) * 40}
    await enqueue(engine, *(new_job(job_id, payload=payload) for job_id, payload in payloads.items()))
    for job_id, payload in payloads.items():
        record = await Views(engine).job(job_id)
        assert record is not None
        assert (record.payload, record.header.size) == (payload, len(payload))


async def test_jobs_stand_in_line_by_priority_and_then_by_arrival(engine: Engine) -> None:
    await enqueue(engine, new_job("c", priority=99), new_job("a", priority=0), new_job("b"), new_job("b2"))
    await enqueue(engine, new_job("elsewhere", queue="other", priority=0))
    views = Views(engine)
    assert [await views.position(job_id) for job_id in ("a", "b", "b2", "c", "elsewhere")] == [0, 1, 2, 3, 0]


async def test_a_job_that_is_there_already_changes_nothing(engine: Engine) -> None:
    await enqueue(engine, new_job("a", nonce="x", unique="u"))
    before = await dump(engine)
    placed = await engine.enqueue([new_job("a", nonce="y", queue="new", due=5), new_job("b", unique="u", queue="new")])
    assert [one.word for one in placed] == ["exists", "unique"]
    assert await dump(engine) == before


async def test_an_id_is_known_in_every_state_until_its_tombstone_is_gone(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    job = new_job("a", nonce="x", keep=1_000)
    other = new_job("a", nonce="y")
    await enqueue(engine, job)
    (lease,) = await worker.lease()
    assert await engine.enqueue([job, other]) == [
        EnqueueAnswer("created", "a", "running"),
        EnqueueAnswer("exists", "a", "running"),
    ]
    await worker.complete(lease)
    assert await engine.enqueue([job, other]) == [
        EnqueueAnswer("created", "a", "done"),
        EnqueueAnswer("exists", "a", "done"),
    ]
    clock.advance(1_000)
    await engine.prune()
    assert (await header_of(engine, "a")).compact
    assert await engine.enqueue([job, other]) == [
        EnqueueAnswer("created", "a", "done"),
        EnqueueAnswer("exists", "a", "done"),
    ]
    clock.advance(90 * 86_400_000)
    await engine.prune()
    assert await engine.enqueue([other]) == [EnqueueAnswer("created", "a", "ready")]


async def test_a_unique_key_that_nobody_unfinished_holds_is_free(engine: Engine) -> None:
    client = await raw(engine)
    await enqueue(engine, new_job("finished"))
    await engine.cancel(["finished"])
    await client.hset(engine.keys("unique"), mapping={"u": "finished", "v": "never-was"})
    placed = await engine.enqueue([new_job("a", unique="u"), new_job("b", unique="v")])
    assert placed == [EnqueueAnswer("created", "a", "ready"), EnqueueAnswer("created", "b", "ready")]


async def test_a_page_is_one_event_with_a_line_per_job(engine: Engine, clock: Clock) -> None:
    await enqueue(engine, new_job("a"), new_job("b", queue="other"), new_job("c", queue="other", due=5))
    events = await Views(engine).events()
    assert [(event.verb, event.queue, event.task, event.job) for event in events] == [
        ("enqueue", "default", "tasks:run", "a"),
        ("enqueue", "other", "tasks:run", "b"),
        ("enqueue", "other", "tasks:run", "c"),
    ]
    assert len({event.id for event in events}) == 1
    assert {event.at for event in events} == {clock()}


async def test_an_event_groups_its_lines_by_queue_and_task(engine: Engine) -> None:
    kinds = [("a", "t"), ("b", "t"), ("a", "u"), ("a", "t")]
    await enqueue(engine, *(new_job(f"j{i}", queue=queue, task=task) for i, (queue, task) in enumerate(kinds)))
    assert [event.job for event in await Views(engine).events()] == ["j0", "j3", "j1", "j2"]


async def test_counts_queues_and_statistics_follow(engine: Engine, clock: Clock) -> None:
    await enqueue(engine, new_job(), new_job(), new_job(due=5), new_job(queue="other"), new_job(queue="other"))
    assert await Views(engine).counts() == {"default": {"ready": 2, "scheduled": 1}, "other": {"ready": 2}}
    assert await Views(engine).queues() == {"default": False, "other": False}
    client = await raw(engine)
    assert await client.hget(engine.keys("meta"), "accepted") == b"5"
    assert await client.hget(engine.keys("stats"), f"{clock() // 60_000}\x1fdefault\x1fenqueue") == b"3"


async def test_a_paused_queue_takes_jobs_and_stays_paused(engine: Engine) -> None:
    await engine.pause("default")
    await enqueue(engine, new_job())
    assert await Views(engine).queues() == {"default": True}


async def test_as_many_sleepers_are_woken_as_jobs_came(engine: Engine) -> None:
    for name in ("w1", "w2", "w3"):
        await (await TestWorker(engine, name).register()).lease()
    box = engine.keys.mailbox
    async with (
        listening(engine, box("w1")) as first,
        listening(engine, box("w2")) as second,
        listening(engine, box("w3")) as third,
    ):
        await enqueue(engine, new_job(), new_job())
        letters = [await mailbox.letters() for mailbox in (first, second, third)]
        assert sorted(letters) == [[], ["work"], ["work"]]
        await enqueue(engine, new_job())
        await enqueue(engine, new_job())
        more = [await mailbox.letters() for mailbox in (first, second, third)]
        assert sorted(a + b for a, b in zip(letters, more, strict=True)) == [["work"]] * 3


async def test_only_workers_of_the_queue_are_woken_and_its_own_before_those_of_all(engine: Engine) -> None:
    for name, queues in (("all", ("*",)), ("mail", ("mail",)), ("sms", ("sms",))):
        await (await TestWorker(engine, name, queues).register()).lease()
    box = engine.keys.mailbox
    async with (
        listening(engine, box("all")) as everything,
        listening(engine, box("mail")) as mail,
        listening(engine, box("sms")) as sms,
    ):
        await enqueue(engine, new_job(queue="mail"))
        assert [await everything.letters(), await mail.letters(), await sms.letters()] == [[], ["work"], []]
        await enqueue(engine, new_job(queue="mail"))
        assert [await everything.letters(), await mail.letters(), await sms.letters()] == [["work"], [], []]


async def test_a_sleeper_that_nobody_listens_for_is_passed_over(engine: Engine) -> None:
    for name in ("a-deaf", "b-deaf", "c-awake"):
        await (await TestWorker(engine, name).register()).lease()
    async with listening(engine, engine.keys.mailbox("c-awake")) as mailbox:
        await enqueue(engine, new_job())
        assert await mailbox.letters() == ["work"]


async def test_a_scheduled_job_wakes_nobody(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await worker.lease()
    async with listening(engine, engine.keys.mailbox(worker.name)) as mailbox:
        await enqueue(engine, new_job(due=1))
        assert await mailbox.letters() == []


async def test_the_timer_is_told_when_something_is_due_or_expires_earlier_than_was_known(
    engine: Engine, clock: Clock
) -> None:
    async with listening(engine, engine.keys.timer) as timer:
        await enqueue(engine, new_job(due=5_000), new_job(due=4_000), new_job(due=6_000))
        assert await timer.letters() == [str(clock() + 4_000)]
        await enqueue(engine, new_job(due=4_500))
        assert await timer.letters() == []
        await enqueue(engine, new_job(expires=3_000))
        assert await timer.letters() == [str(clock() + 3_000)]
        await enqueue(engine, new_job(expires=3_500))
        assert await timer.letters() == []


async def test_more_than_a_page_is_refused_before_anything_is_sent(engine: Engine) -> None:
    with pytest.raises(ValueError, match=f"at most {PAGE}"):
        engine.enqueue([new_job(priority=n % 2) for n in range(PAGE + 1)])
    for fields in ({"due": 5}, {"lanes": ["lock:t"]}, {"batch": "b"}):
        with pytest.raises(ValueError, match=f"at most {PAGE}"):
            engine.enqueue([new_job(**fields) for n in range(PAGE + 1)])
    with pytest.raises(ValueError, match=f"at most {ALIKE}"):
        engine.enqueue([new_job() for _ in range(ALIKE + 1)])
    placed = await engine.enqueue([new_job() for _ in range(ALIKE)])
    assert len({one.id for one in placed if one.word == "created"}) == ALIKE
    assert len(await happened(engine)) == ALIKE


# A plain job takes a shorter way (lib/plain.lua)

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
        for one in (engine, twin):
            await setting(one)
            worker = await TestWorker(one, "w", queues=("mail",)).register()
            assert await worker.lease() == []
        async with listening(engine, engine.keys.mailbox("w")) as box, listening(twin, twin.keys.mailbox("w")) as other:
            for job in jobs:
                clock.advance(20_000)
                (placed,) = await engine.enqueue([job])
                assert await twin.enqueue([job, job]) == [placed, placed]
                assert await box.letters() == await other.letters() == (["work"] if job.id == "b" else [])
                assert await contents(engine) == await contents(twin)
        assert await happened(engine) == await happened(twin)
        assert await engine.enqueue([jobs[3]]) == [msgspec.structs.replace(placed, id="d")]
        assert await contents(engine) == await contents(twin)
    finally:
        await (await raw(twin)).delete(*twin.all_keys())
        await twin.script_client.endpoint.aclose()


# A page of plain jobs does, too


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
async def test_a_page_of_jobs_alike_does_what_other_pages_do(
    url: str, engine: Engine, clock: Clock, setting: Callable[[Engine], Awaitable[object]]
) -> None:
    twin = open_engine(url, namespace(), clock)
    sizes = (0, 1, 7, 255, 256, 300)
    try:
        for one in (engine, twin):
            await setting(one)
            worker = await TestWorker(one, "w", queues=("mail",)).register()
            assert await worker.lease() == []
        async with listening(engine, engine.keys.mailbox("w")) as box, listening(twin, twin.keys.mailbox("w")) as other:
            for number, fields in enumerate([{}, {"queue": "mail", "priority": 7, "retries": 0, "keep": 5}, {}, {}]):
                clock.advance(20_000)
                jobs = [new_job(f"{number}-{n}", payload=b"." * sizes[n % 6], **fields) for n in range(90)]
                placed = await engine.enqueue(jobs)
                assert placed == [EnqueueAnswer("created", job.id, "ready") for job in jobs]
                assert await twin.enqueue([*jobs, jobs[0]]) == [*placed, placed[0]]  # one that is there: the long way
                assert await box.letters() == await other.letters() == (["work"] if number == 1 else [])
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


async def test_a_label_is_sent_once_for_those_that_follow_with_the_same(engine: Engine) -> None:
    jobs = [new_job("a"), new_job("b"), new_job("c", task="other"), new_job("d", task="other"), new_job("e")]
    call = engine.enqueue(jobs)
    assert [bool(given) for given in call.args[1::3]] == [True, False, True, False, True]
    assert [placed.word for placed in await call] == ["created"] * 5
    assert [(await header_of(engine, job.id)).task for job in jobs] == [job.header.task for job in jobs]


async def test_a_single_job_for_a_queue_with_a_setting_is_counted(engine: Engine) -> None:
    await engine.cap("default", most=1)
    assert [(await engine.enqueue([new_job(name)]))[0].word for name in "ab"] == ["created", "full"]


async def test_jobs_alike_bring_few_keys_and_the_others_when_they_are_asked_for(engine: Engine) -> None:
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


@pytest.mark.parametrize("number", [ALIKE + 1, ALIKE + 100, 3 * ALIKE - 1])
async def test_no_page_is_taken_before_one_that_does_not_fit(engine: Engine, number: int) -> None:
    await engine.cap("q", most=100)
    jobs = await sent_in_pages(engine, number)
    assert await in_line(engine) == [job.id for job in jobs[:100]]
    assert await audit(engine) == []


@pytest.mark.parametrize("known", [0, 100, ALIKE])
async def test_pages_keep_their_order_where_some_of_their_jobs_are_there_already(engine: Engine, known: int) -> None:
    header = new_job(queue="q").header
    await engine.enqueue([NewJob(f"j{known:04}", header, b"")])
    jobs = await sent_in_pages(engine, 3 * ALIKE)
    found = await in_line(engine)
    assert found[0] == f"j{known:04}"
    assert found[1:] == [job.id for job in jobs if job.id != found[0]]


async def test_a_page_behind_one_that_is_not_there_is_taken_when_it_is_sent_again(engine: Engine) -> None:
    await enqueue(engine, new_job("before"))
    for behind in ("before", "nobody"):
        for jobs in ([new_job()], [new_job(), new_job()], [new_job(), new_job(task="other", due=5)]):
            assert {placed.word for placed in await engine.enqueue(jobs, behind)} == {"created"}
            assert {placed.word for placed in engine.enqueue(jobs, behind).sync()} == {"created"}
    assert await audit(engine) == []


# What spares a look (meta: asleep, settings)


async def test_a_worker_that_lies_down_after_none_slept_is_woken(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    assert await worker.lease() == []
    async with listening(engine, engine.keys.mailbox(worker.name)) as box:
        for _ in range(3):
            await enqueue(engine, new_job(), new_job())
            assert await box.letters() == ["work"]
            await enqueue(engine, new_job())  # nobody sleeps any more, and that is noted
            assert await (await raw(engine)).hget(engine.keys("meta"), "asleep") == b""
            assert await box.letters() == []
            assert len(await worker.lease(9)) == 3


async def test_a_pause_holds_although_it_was_forgotten_that_something_is_set(engine: Engine) -> None:
    await engine.pause("default")
    await (await raw(engine)).hdel(engine.keys("meta"), "settings")
    assert [finding.rule for finding in await audit(engine)] == ["settings"]
    await reconcile(engine)
    worker = await TestWorker(engine).register()
    assert await worker.lease(by_letter=True) == []
    (placed,) = await engine.enqueue([new_job()])
    assert placed.state == "ready"
    assert await worker.lease() == []


async def test_single_jobs_are_told_apart_however_many_kinds_and_sizes_came_before(
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
    for job_id, told in expected.items():
        header = await header_of(engine, job_id)
        assert (header.queue, header.task, header.priority, header.seq, header.created, header.size) == told
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
