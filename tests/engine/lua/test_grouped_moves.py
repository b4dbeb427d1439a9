"""Plain jobs: stored without rare fields, and moved together with others that have the same label."""

from typing import Any

import msgspec
import pytest

from penstock.engine.engine import Engine
from penstock.engine.read.views import Views
from penstock.engine.record.record import is_plain, read_header, write
from penstock.engine.repair.audit import audit
from penstock.engine.repair.reconcile import reconcile
from penstock.model.header import Header
from tests.conftest import Clock
from tests.engine.factories import (
    TestWorker,
    call_of,
    enqueue,
    happened,
    header_of,
    is_rare,
    new_job,
    record_of,
    spoil,
    states,
)

PLAIN_ONES = {
    "nothing but a name": Header(state="", task="t"),
    "another queue": Header(state="", task="t", queue="mail", priority=0),
    "the last in line": Header(state="", task="t", priority=99, retries=0, keep=0),
    "other letters": Header(state="", task="tâche", queue="مهام"),
}
OTHERS = {
    "an id of somebody's choice": Header(state="", task="t", nonce="n"),
    "two locks": Header(state="", task="t", lanes=["l", "m"]),
    "a rate": Header(state="", task="t", lanes=["l\x1f\x1f0.001\x1f1\x1f\x1f1"]),
    "an order": Header(state="", task="t", lanes=["l\x1f1\x1f\x1f\x1fordered\x1f1"]),
    "a lock of a long name": Header(state="", task="t", lanes=["l" * 256]),
    "a unique key": Header(state="", task="t", unique="u"),
    "a due time": Header(state="", task="t", due=5),
    "an expiry": Header(state="", task="t", expires=5),
    "a long name": Header(state="", task="t" * 256),
}


@pytest.mark.parametrize("header", PLAIN_ONES.values(), ids=PLAIN_ONES)
async def test_a_plain_job_stores_no_rare_field_all_its_life(engine: Engine, clock: Clock, header: Header) -> None:
    worker = await TestWorker(engine).register()
    (placed,) = await engine.enqueue([msgspec.structs.replace(new_job("a"), header=header)])
    assert placed.word == "created"
    assert not is_rare(await record_of(engine, "a"))
    ready = await header_of(engine, "a")
    assert (ready.state, ready.task, ready.queue, ready.priority) == (
        "ready",
        header.task,
        header.queue,
        header.priority,
    )
    assert (ready.keep, ready.retries, ready.created, ready.since) == (header.keep, header.retries, clock(), clock())
    clock.advance(3)
    (lease,) = await worker.lease()
    assert not is_rare(await record_of(engine, "a"))
    assert lease.header == await header_of(engine, "a")
    assert (lease.header.task, lease.header.started, lease.attempt) == (header.task, clock(), 1)
    clock.advance(3)
    assert await worker.complete(lease, b"result") == "ok"
    assert not is_rare(await record_of(engine, "a"))
    done = await header_of(engine, "a")
    assert (done.state, done.since, done.starts, done.attempt) == ("done", clock(), 1, 1)
    assert done.result == (1 if header.keep else 2)
    assert await audit(engine) == []


@pytest.mark.parametrize("header", OTHERS.values(), ids=OTHERS)
async def test_a_job_with_more_options_is_stored_with_them(engine: Engine, header: Header) -> None:
    assert not is_plain(header) or len(header.task) > 255
    await engine.enqueue([msgspec.structs.replace(new_job("a"), header=header)])
    assert read_header(await record_of(engine, "a")).task == header.task
    assert await audit(engine) == []


async def test_plain_jobs_with_one_label_are_counted_and_reported_together(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job(f"a{n}") for n in range(5)), *(new_job(f"b{n}", task="other") for n in range(3)))
    leases = await worker.lease(8)
    await engine.complete(worker.name, [(lease.id, call_of(lease), b"") for lease in leases])
    for verb in ("enqueue", "lease", "complete"):
        reported = [event.job for event in await Views(engine).events() if event.verb == verb]
        assert sorted(reported) == ["a0", "a1", "a2", "a3", "a4", "b0", "b1", "b2"]
    assert set((await states(engine)).values()) == {"done"}
    assert await audit(engine) == []


async def test_plain_jobs_and_others_start_in_the_order_of_their_line(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    kinds: list[dict[str, Any]] = [{}, {"lanes": ["a"]}, {"lanes": ["b"]}, {}, {"task": "x"}, {"unique": "u"}, {}]
    order = await enqueue(engine, *(new_job(f"{n}", **fields) for n, fields in enumerate(kinds)))
    assert [lease.id for lease in await worker.lease(20)] == order


async def test_a_page_that_would_be_too_big_ends_before_a_plain_job(engine: Engine) -> None:
    await engine.register("w", 10_000)
    await enqueue(engine, *(new_job(f"{n}", payload=b"x" * 400) for n in range(4)))
    first = await engine.lease("w", 1, want=10, room=1_000)
    assert ([lease.id for lease in first.leases], first.again) == (["0", "1"], True)
    second = await engine.lease("w", 2, want=10, room=1)
    assert [lease.id for lease in second.leases] == ["2"]


async def test_a_plain_job_that_is_named_twice_in_a_page_is_done_once(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"), new_job("b"))
    one, two = await worker.lease(2)
    rows = [(one.id, call_of(one), b"first"), (two.id, call_of(two), b""), (one.id, call_of(one), b"second")]
    assert await engine.complete(worker.name, rows) == ["ok", "ok", "ok"]
    record = await Views(engine).job("a")
    assert record is not None
    assert record.result == b"first"
    assert [job for verb, job, _ in await happened(engine) if verb == "complete"] == ["a", "b"]
    assert await audit(engine) == []


async def test_the_same_plain_job_sent_again_is_the_same_job(engine: Engine) -> None:
    job = new_job("a")
    assert [placed.word for placed in await engine.enqueue([job, job])] == ["created", "created"]
    assert [(placed.word, placed.state) for placed in await engine.enqueue([job])] == [("created", "ready")]
    assert [placed.word for placed in await engine.enqueue([new_job("a", nonce="another")])] == ["exists"]
    assert await states(engine) == {"a": "ready"}
    assert await audit(engine) == []


_GOOD = write(Header(state="ready", task="t", size=3), b"abc")
ROTTEN = {
    "cut off": _GOOD[:-1],
    "too long": _GOOD + b".",
    "no label": _GOOD.replace(b"\x1f", b"."),
    "no such state": b"?" + _GOOD[1:],
    "only a head": _GOOD[:9],
}


@pytest.mark.parametrize("rot", ROTTEN.values(), ids=ROTTEN)
async def test_a_damaged_plain_job_is_buried_and_the_others_run(engine: Engine, rot: bytes) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job(name, payload=name.encode()) for name in "abc"))
    await spoil(engine, "b", rot)
    taken: list[str] = []
    for _ in range(3):
        taken += [lease.id for lease in await worker.lease(9)]
    assert taken == ["a", "c"]
    record = await Views(engine).job("b")
    assert record is not None
    assert (record.header.state, record.header.reason, record.payload) == ("dead", "unreadable_header", rot)
    assert await audit(engine) == []


async def test_a_plain_job_that_is_damaged_while_it_runs_is_buried_when_it_settles(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"), new_job("b"))
    one, two = await worker.lease(2)
    await spoil(engine, "a", (await record_of(engine, "a"))[:-3])
    assert await engine.complete(worker.name, [(one.id, call_of(one), b""), (two.id, call_of(two), b"")]) == [
        "ok",
        "ok",
    ]
    assert await states(engine) == {"a": "dead", "b": "done"}
    await reconcile(engine)
    assert await audit(engine) == []
