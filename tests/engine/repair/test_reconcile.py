"""reconcile: makes everything agree with the records in one pass, whatever was lost or overwritten."""

from typing import Any

import pytest

from penstock.engine.engine import PAGE, Engine
from penstock.engine.keys import KINDS
from penstock.engine.read.views import Views
from penstock.engine.record.record import write
from penstock.engine.repair.audit import audit
from penstock.engine.repair.reconcile import reconcile
from penstock.model.header import Header
from tests.conftest import Clock
from tests.engine.factories import (
    LARGE,
    LIFE,
    TestWorker,
    call_of,
    dump,
    enqueue,
    happened,
    header_of,
    new_job,
    populate,
    populate_lanes,
    raw,
    spoil,
    states,
)

REBUILT = sorted(KINDS.keys() - {"jobs", "payloads", "meta", "workers", "nodes"})


async def test_reconcile_changes_nothing_in_a_sound_namespace(engine: Engine) -> None:
    await populate(engine)
    assert await reconcile(engine) == 0
    before = await dump(engine)
    assert await reconcile(engine) == 0
    assert await dump(engine) == before


# A key is lost


async def test_a_lost_sequence_is_found_again_also_where_a_lane_shows_its_next_job_meanwhile(engine: Engine) -> None:
    await enqueue(engine, *(new_job(name, lanes=["lock:t"], payload=b"." * 300) for name in ("first", "next", "last")))
    client: Any = await raw(engine)
    await client.hdel(engine.keys("payloads"), "first")
    await client.hdel(engine.keys("meta"), "seq")
    await reconcile(engine)
    assert await states(engine) == {"first": "dead", "next": "ready", "last": "held"}
    assert await audit(engine) == []
    assert int(await client.hget(engine.keys("meta"), "seq")) > 3


@pytest.mark.parametrize("name", REBUILT)
async def test_a_lost_key_is_rebuilt_and_no_job_is_lost(engine: Engine, name: str) -> None:
    await populate(engine)
    before = await states(engine)
    await (await raw(engine)).delete(engine.keys(name))
    assert await audit(engine) != []
    await reconcile(engine)
    assert await audit(engine) == []
    assert await states(engine) == before
    assert await reconcile(engine) == 0


@pytest.mark.parametrize("name", REBUILT)
async def test_a_lost_key_is_rebuilt_for_lanes_and_no_slot_is_lost_or_taken_twice(engine: Engine, name: str) -> None:
    await populate_lanes(engine)
    before = await states(engine)
    await (await raw(engine)).delete(engine.keys(name))
    assert await audit(engine) != []
    await reconcile(engine)
    assert await audit(engine) == []
    # What a rate had left cannot be rebuilt, so a job may be shown early.
    allowed = {"wants-rate": "ready"} if name == "lanes" else {}
    assert await states(engine) == before | allowed
    assert await reconcile(engine) == 0


async def test_reconcile_changes_nothing_in_a_sound_namespace_with_lanes(engine: Engine) -> None:
    await populate_lanes(engine)
    assert await reconcile(engine) == 0
    before = await dump(engine)
    assert await reconcile(engine) == 0
    assert await dump(engine) == before


async def test_lanes_that_were_lost_altogether_work_as_before(engine: Engine, clock: Clock) -> None:
    worker = await populate_lanes(engine)
    lost = ("ready", "held", "holders", "lanes", "openings", "leases", "timers", "counts")
    await (await raw(engine)).delete(*map(engine.keys, lost))
    await reconcile(engine)
    assert await audit(engine) == []
    assert await engine.complete(worker.name, [("locked", 1, b""), ("first", 1, b"")]) == ["ok", "ok"]
    started = {lease.id for lease in await worker.lease(99)}
    assert started == {"wants-lock", "wants-rate", "few-0"}


@pytest.mark.parametrize("name", ["workers", "nodes"])
async def test_workers_that_were_lost_are_back_when_they_register_again(engine: Engine, name: str) -> None:
    worker = await populate(engine)
    before = await states(engine)
    await (await raw(engine)).delete(engine.keys(name))
    await reconcile(engine)
    for lost in ("worker", "idle"):
        assert await engine.register(lost, LIFE) == "ok"
    assert await audit(engine) == []
    assert await states(engine) == before
    assert await engine.release(worker.name, [("running", 2)]) == ["ok"]


async def test_waiting_jobs_that_lost_their_payloads_are_dead_with_the_reason(engine: Engine) -> None:
    await populate(engine)
    before = await states(engine)
    await (await raw(engine)).delete(engine.keys("payloads"))
    await reconcile(engine)
    assert await states(engine) == before | {"ready": "dead", "scheduled": "dead"}
    for job_id in ("ready", "scheduled"):
        assert (await header_of(engine, job_id)).reason == "payload_lost"
        assert ("bury", job_id, "payload_lost") in await happened(engine)
    await (await raw(engine)).delete(*engine.all_keys())


async def test_jobs_that_lost_record_and_payload_leave_nothing_behind(engine: Engine) -> None:
    await populate(engine)
    ids = await states(engine)
    for part in ("jobs", "payloads"):
        await (await raw(engine)).hdel(engine.keys(part), *ids)
    await reconcile(engine)
    assert await audit(engine) == []
    assert await states(engine) == {}


async def test_indexes_that_were_all_lost_at_once_are_rebuilt(engine: Engine) -> None:
    await populate(engine)
    before = await states(engine)
    client = await raw(engine)
    lost = ["ready", "scheduled", "leases", "dead", "finished", "tombs", "timers", "cancels", "unique", "counts"]
    await client.delete(*map(engine.keys, lost))
    await reconcile(engine)
    assert await audit(engine) == []
    assert await states(engine) == before


async def test_rebuilt_indexes_work_as_before(engine: Engine, clock: Clock) -> None:
    worker = await populate(engine)
    await enqueue(engine, new_job("second"), new_job("first", priority=0))
    await (await raw(engine)).delete(*map(engine.keys, ("ready", "scheduled", "leases", "timers", "unique", "queues")))
    await reconcile(engine)
    assert await engine.complete(worker.name, [("running", 2, b"result")]) == ["ok"]
    assert await enqueue(engine, new_job("x", unique="u"), new_job("y", unique="s")) == ["ready", "scheduled"]
    assert [lease.id for lease in await worker.lease(9)] == ["first", "ready", "second"]
    clock.advance(70_000)
    assert (await engine.expire())[:2] == (1, -1)


# Somebody else wrote

STRAYS: dict[str, Any] = {
    "ready": {"default\x1f" + "0" * 16 + "\x1fghost": 0, "default\x1f" + "0" * 16 + "\x1fdone": 0, "foreign": 0},
    "scheduled": {"ghost": 1, "ready": 2, "for\x1feign": 3},
    "leases": {"worker\x1f1\x1fghost": 0, "worker\x1f9\x1fready": 0, "nobody\x1f1\x1frunning": 0, "foreign": 0},
    "cancels": {"worker\x1fghost": 0, "worker\x1fready": 0, "foreign": 0},
    "timers": {"expire\x1fghost": 1, "expire\x1fdone": 2, "expire\x1frunning": 3, "foreign": 4},
    "finished": {"ghost": 1, "ready": 2, "dead": 3},
    "dead": {"ghost": 1, "running": 2, "done": 3},
    "tombs": {"ghost": 1, "ready": 2, "done": 3},
    "idle": {"*\x1fghost": 0, "foreign": 0},
    "payloads": {"ghost": b"bytes", "done": b"bytes", "tomb": b"bytes"},
    "results": {"ghost": b"bytes", "ready": b"bytes", "tomb": b"bytes"},
    "attempts": {"ghost": b"\x90", "tomb": b"\x90"},
    "unique": {"ghost": "ghost", "x": "ready", "y": "done"},
    "waiting": {"ghost": "client\x1f", "done": "client\x1f"},
    "nodes": {"ghost": b"\x94\xa2{}\x90\x01\x01"},
    "calls": {"ghost": "7"},
    "lives": {"ghost": 7, "foreign": 8},
    "held": {"lock:t\x1fdefault\x1f" + "0" * 16 + "\x1fghost": 0, "lock:t\x1fdefault\x1f50\x1fready": 0, "foreign": 0},
    "holders": {"lock:t\x1fghost": 0, "lock:t\x1fready": 0, "foreign": 0},
    "lanes": {"lock:ghost": b"\x95\x01\x00\x00\xa0\xa0", "lane:text": b"garbage", "lane:map": b"\x80"},
    "openings": {"lane:ghost": 1, "foreign": 2},
}


@pytest.mark.parametrize("name", STRAYS)
async def test_foreign_members_are_taken_out(engine: Engine, name: str) -> None:
    await populate(engine)
    await reconcile(engine)
    before = await dump(engine)
    client = await raw(engine)
    if KINDS[name] == "zset":
        await client.zadd(engine.keys(name), STRAYS[name])
    else:
        await client.hset(engine.keys(name), mapping=STRAYS[name])
    assert await audit(engine) != []
    assert await reconcile(engine) == len(STRAYS[name])
    assert await audit(engine) == []
    after = await dump(engine)
    assert {key for key in before if before[key] != after[key]} <= {engine.keys(name)}


@pytest.mark.parametrize("name", ["scheduled", "dead", "finished", "tombs", "lives"])
async def test_a_wrong_time_in_an_index_is_put_right(engine: Engine, name: str) -> None:
    await populate(engine)
    client = await raw(engine)
    (member,) = await client.zrange(engine.keys(name), 0, 0)
    await client.zincrby(engine.keys(name), 77, member)
    assert await audit(engine) != []
    assert await reconcile(engine) == 1


async def test_a_foreign_holder_of_a_unique_key_is_replaced(engine: Engine) -> None:
    await populate(engine)
    await (await raw(engine)).hset(engine.keys("unique"), "u", "ghost")
    assert await reconcile(engine) == 2
    assert await enqueue(engine, new_job("x", unique="u")) == ["ready"]


# A header cannot be read

ROTTEN = {
    "nothing": b"",
    "no msgpack": b"\xc1",
    "text": b"garbage",
    "a number": b"\x07",
    "a short list": b"\x93\x01\x02\x03",
    "nothing but zeros": bytes(60),
    "cut off": write(Header(state="ready", task="t"), b"")[:-3],
}


@pytest.mark.parametrize("rot", ROTTEN.values(), ids=ROTTEN)
@pytest.mark.parametrize("payload", [b"bytes", LARGE], ids=["small", "large"])
async def test_the_payload_or_the_rest_of_an_unreadable_record_is_kept_in_a_dead_job(
    engine: Engine, rot: bytes, payload: bytes
) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", payload=payload, unique="u", expires=1_000), new_job("b"))
    await spoil(engine, "a", rot)
    await reconcile(engine)
    assert await audit(engine) == []
    record = await Views(engine).job("a")
    assert record is not None
    left = payload if payload == LARGE else rot
    assert (record.header.state, record.header.reason, record.payload) == ("dead", "unreadable_header", left)
    assert ("bury", "a", "unreadable_header") in await happened(engine)
    assert [lease.id for lease in await worker.lease(9)] == ["b"]
    assert await enqueue(engine, new_job("c", unique="u")) == ["c"]


@pytest.mark.parametrize(
    ("job_id", "state"),
    [
        ("ready", "dead"),
        ("scheduled", "dead"),
        ("running", "dead"),
        ("cancelling", "dead"),
        ("dead", "dead"),
        ("cancelled", None),
        ("done", None),
        ("tomb", None),
    ],
)
async def test_a_damaged_job_is_dead_or_without_a_payload_gone_whatever_it_was(
    engine: Engine, job_id: str, state: str | None
) -> None:
    await populate(engine)
    before = await states(engine)
    await spoil(engine, job_id)
    await reconcile(engine)
    assert await audit(engine) == []
    before.pop(job_id)
    assert await states(engine) == before | ({job_id: state} if state else {})


# Counts


async def test_counts_are_set_to_the_number_of_jobs(engine: Engine) -> None:
    await populate(engine)
    right = await Views(engine).counts()
    client = await raw(engine)
    wrong = {"default\x1fready": 77, "default\x1frunning": -3, "ghost\x1fready": 5}
    await client.hset(engine.keys("counts"), mapping=wrong)
    await client.hset(engine.keys("meta"), mapping={"accepted": 12345})
    assert await audit(engine) != []
    await reconcile(engine)
    assert await audit(engine) == []
    counts = await Views(engine).counts()
    assert _without_zeros(counts) == _without_zeros(right)


def _without_zeros(counts: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    return {queue: {state: n for state, n in row.items() if n} for queue, row in counts.items()}


async def test_recount_sets_nothing_if_a_job_moved_meanwhile(engine: Engine) -> None:
    await enqueue(engine, new_job())
    last = await Views(engine).last_event()
    await enqueue(engine, new_job())
    before = await dump(engine)
    assert await engine.recount(last, {"default\x1fdone": 1}) == "moved"
    assert await dump(engine) == before
    assert await engine.recount(await Views(engine).last_event(), {}) == "ok"


# Pages, and a system that is in use


async def test_a_large_namespace_is_repaired_page_by_page(engine: Engine) -> None:
    for _ in range(1_200 // PAGE):
        await engine.enqueue([new_job() for _ in range(PAGE)])
    total = 1_200 // PAGE * PAGE
    await (await raw(engine)).delete(engine.keys("ready"))
    await engine.init()
    cursor, mended = await engine.reconcile("jobs")
    assert cursor != 0
    assert 0 < mended < total
    assert mended + await reconcile(engine) == total


async def test_reconcile_leaves_running_jobs_to_their_workers(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"), new_job("b"))
    a, b = await worker.lease(2)
    await reconcile(engine)
    await (await raw(engine)).delete(engine.keys("leases"))
    await reconcile(engine)
    assert [await worker.complete(a), await worker.retry(b)] == ["ok", "ok"]
    assert (await engine.lease(worker.name, 2)).leases[0].id == "b"
    assert call_of(a) == 1


async def test_an_empty_namespace_is_made_and_in_order(engine: Engine) -> None:
    assert await reconcile(engine) == 0
    assert await audit(engine) == []


async def test_reconcile_works_with_the_production_scripts(real_engine: Engine) -> None:
    await populate(real_engine)
    before = await states(real_engine)
    client = await raw(real_engine)
    await client.delete(*map(real_engine.keys, ("ready", "leases", "finished", "unique", "counts")))
    await reconcile(real_engine)
    assert await states(real_engine) == before
