"""enqueue: – → ready or scheduled; the same id or a taken unique key makes no second job."""

from penstock.engine.engine import Engine, Placed
from penstock.engine.views import Views
from tests.conftest import Clock
from tests.engine.factories import TestWorker, enqueue, new_job


async def test_a_job_without_a_delay_is_ready_and_one_with_it_scheduled(engine: Engine, clock: Clock) -> None:
    placed = await engine.enqueue([new_job("a"), new_job("b", due=5_000), new_job("c", due=clock() - 1)])
    assert placed == [
        Placed("created", "a", "ready"),
        Placed("created", "b", "scheduled"),
        Placed("created", "c", "ready"),
    ]
    record = await Views(engine).job("b")
    assert record is not None
    assert record.header.due == clock() + 5_000
    assert record.payload == b"payload"


async def test_the_same_id_makes_one_job_and_keeps_the_first(engine: Engine) -> None:
    assert await engine.enqueue([new_job("a", payload=b"1", nonce="x")]) == [Placed("created", "a", "ready")]
    assert await engine.enqueue([new_job("a", payload=b"2", nonce="y")]) == [Placed("exists", "a", "ready")]
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
    assert await engine.enqueue([new_job("c", unique="u")]) == [Placed("unique", "a", "running")]
    assert await worker.complete(lease) == "ok"
    assert await engine.enqueue([new_job("c", unique="u")]) == [Placed("created", "c", "ready")]
