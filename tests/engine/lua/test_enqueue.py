"""enqueue: nothing → ready or scheduled; the same id or a taken unique key makes no second job."""

import pytest

from penstock.engine.answers import EnqueueAnswer
from penstock.engine.engine import PAGE, PLAIN_PAGE, Engine
from penstock.engine.read.views import Views
from penstock.engine.repair.audit import audit
from penstock.engine.repair.reconcile import reconcile
from tests.conftest import Clock
from tests.engine.factories import TestWorker, dump, enqueue, happened, header_of, new_job, raw


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
    assert [answer.word for answer in placed] == ["created", "exists"]


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
    assert [answer.word for answer in placed] == ["exists", "unique"]
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


async def test_more_than_a_page_is_refused_before_anything_is_sent(engine: Engine) -> None:
    with pytest.raises(ValueError, match=f"at most {PAGE}"):
        engine.enqueue([new_job(priority=n % 2) for n in range(PAGE + 1)])
    for fields in ({"due": 5}, {"lanes": ["lock:t"]}, {"batch": "b"}):
        with pytest.raises(ValueError, match=f"at most {PAGE}"):
            engine.enqueue([new_job(**fields) for n in range(PAGE + 1)])
    with pytest.raises(ValueError, match=f"at most {PLAIN_PAGE}"):
        engine.enqueue([new_job() for _ in range(PLAIN_PAGE + 1)])
    placed = await engine.enqueue([new_job() for _ in range(PLAIN_PAGE)])
    assert len({answer.id for answer in placed if answer.word == "created"}) == PLAIN_PAGE
    assert len(await happened(engine)) == PLAIN_PAGE


async def test_a_pause_holds_although_it_was_forgotten_that_something_is_set(engine: Engine) -> None:
    await engine.pause("default")
    await (await raw(engine)).hdel(engine.keys("meta"), "settings")
    assert [finding.rule for finding in await audit(engine)] == ["settings"]
    await reconcile(engine)
    worker = await TestWorker(engine).register()
    assert await worker.lease(push=True) == []
    (placed,) = await engine.enqueue([new_job()])
    assert placed.state == "ready"
    assert await worker.lease() == []
