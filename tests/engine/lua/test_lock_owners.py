"""A lock that one queue uses is owned by the job that has it or gets it next."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest

from penstock.engine.engine import Engine
from penstock.engine.read.lane_views import LaneViews
from penstock.engine.record.layout import LETTERS, OWNER
from penstock.engine.record.record import is_owner
from penstock.engine.repair.audit import audit
from penstock.engine.repair.reconcile import reconcile
from penstock.engine.transport.blocking import run_blocking
from penstock.errors import PenstockError
from tests.engine.factories import TestWorker, call_of, enqueue, new_job, raw, states

OWNED = LETTERS["ready"].encode() + bytes([OWNER])  #: how the record of a job begins that owns its lock


async def lane_of(engine: Engine, name: str = "lock:t") -> list[Any] | None:
    packed = await (await raw(engine)).hget(engine.keys("lanes"), name)
    return msgspec.msgpack.decode(packed) if packed else None


async def owners(engine: Engine) -> set[str]:
    rows: dict[bytes, bytes] = await (await raw(engine)).hgetall(engine.keys("jobs"))
    return {job_id.decode() for job_id, record in rows.items() if is_owner(record)}


async def running(engine: Engine) -> list[str]:
    return sorted(job_id for job_id, state in (await states(engine)).items() if state == "running")


async def stopped(engine: Engine, stop: int, call: Any) -> None:
    engine.script_client.stop_at = stop
    with suppress(PenstockError):  # it may end before that call
        await call
    engine.script_client.stop_at = 0


async def test_a_lock_goes_from_owner_to_owner_without_an_entry_in_holders(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job(name, lanes=["lock:t"]) for name in "abc"))
    for name, waiting in zip("abc", (2, 1, 0), strict=True):
        assert await lane_of(engine) == [-1, 0, 0, "", "", "default", waiting, 50, name]
        assert await owners(engine) == {name}
        assert (await LaneViews(engine.script_client).lane("lock:t")).in_use == 0
        (lease,) = await worker.lease(5)
        status = run_blocking(LaneViews(engine.script_client).lane("lock:t"))
        assert (lease.id, status.in_use, status.holders, status.waiting) == (name, 1, [name], waiting)
        assert await (await raw(engine)).zrange(engine.keys("holders"), 0, -1) == [b""]
        assert await worker.complete(lease) == "ok"
    assert await lane_of(engine) is None


@pytest.mark.parametrize("fields", [{"queue": "other"}, {"priority": 1}], ids=["of another queue", "before the owner"])
async def test_a_job_of_another_queue_or_before_the_owner_turns_the_lock_into_an_ordinary_lane(
    engine: Engine, fields: dict[str, Any]
) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", lanes=["lock:t"]))
    await enqueue(engine, new_job("b", lanes=["lock:t"], **fields))
    assert (await lane_of(engine) or [])[0] == 0
    assert await owners(engine) == set()
    assert [len(await worker.lease(5)), len(await worker.lease(5))] == [1, 0]


async def test_a_job_with_two_locks_that_comes_first_takes_a_lock_from_a_waiting_owner(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("both", lanes=["lock:t", "lock:u"]), new_job("owner", lanes=["lock:u"]))
    assert await owners(engine) == {"owner"}
    (both,) = await worker.lease(5)
    assert both.id == "both"
    assert await states(engine) == {"both": "running", "owner": "held"}
    assert await worker.complete(both) == "ok"
    assert [lease.id for lease in await worker.lease(5)] == ["owner"]


async def test_a_lock_has_an_owner_again_after_a_retry(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job(name, lanes=["lock:t"]) for name in "abc"))
    (a,) = await worker.lease()
    assert await worker.retry(a, delay=1_000) == "ok"
    assert await owners(engine) == set()
    (b,) = await worker.lease(5)
    assert await worker.complete(b) == "ok"
    assert (await lane_of(engine) or [])[0] == -1
    assert await owners(engine) == {"c"}


async def test_a_lock_that_is_paused_by_hand_has_no_owner(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", lanes=["lock:t"]))
    await engine.tune("lock:t", paused=True)
    assert await owners(engine) == set()
    assert await worker.lease() == []
    await engine.tune("lock:t", paused=False)
    assert [lease.id for lease in await worker.lease()] == ["a"]


# Wherever a script is stopped, no two of them run


@pytest.mark.parametrize("stop", range(8, 14))
async def test_a_stopped_enqueue_leaves_no_owner_in_line_that_the_lock_does_not_know(engine: Engine, stop: int) -> None:
    worker = await TestWorker(engine).register()
    await stopped(engine, stop, engine.enqueue([new_job("a", lanes=["lock:t"])]))
    await enqueue(engine, new_job("b", lanes=["lock:t"]))
    await worker.lease(5)
    assert len(await running(engine)) <= 1
    await reconcile(engine)


@pytest.mark.parametrize("stop", range(10, 17))
async def test_a_stopped_complete_leaves_no_owner_in_line_that_the_lock_does_not_know(
    engine: Engine, stop: int
) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", lanes=["lock:t"]), new_job("b", lanes=["lock:t"]))
    (a,) = await worker.lease()
    await stopped(engine, stop, engine.complete(worker.name, [(a.id, call_of(a), b"")]))
    await enqueue(engine, new_job("c", lanes=["lock:t"], queue="other"))
    await worker.lease(5)
    assert len(await running(engine)) <= 1
    await reconcile(engine)


@pytest.mark.parametrize("stop", range(4, 16))
async def test_complete_leaves_no_holder_after_a_stopped_tune(engine: Engine, stop: int) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", lanes=["lock:t"]), new_job("b", lanes=["lock:t"]))
    (a,) = await worker.lease()
    await stopped(engine, stop, engine.tune("lock:t", limit=1))
    await worker.complete(a)
    assert await (await raw(engine)).zrange(engine.keys("holders"), 0, -1) == [b""]
    await reconcile(engine)


# What somebody else damaged


@pytest.mark.parametrize("waiters", [0, 1, 2])
async def test_an_unreadable_owner_frees_its_lock(engine: Engine, waiters: int) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job(name, lanes=["lock:t"]) for name in "abc"[: waiters + 1]))
    (a,) = await worker.lease()
    client: Any = await raw(engine)
    packed = await client.hget(engine.keys("jobs"), "a")
    await client.hset(engine.keys("jobs"), "a", packed[:-1])
    assert await worker.complete(a) == "ok"
    assert bool(await lane_of(engine)) == bool(waiters)
    assert await audit(engine) == []


@pytest.mark.parametrize("cut", range(1, 8))
async def test_a_damaged_lock_refuses_no_job(engine: Engine, cut: int) -> None:
    await enqueue(engine, new_job("a", lanes=["lock:t"]))
    client: Any = await raw(engine)
    packed = await client.hget(engine.keys("lanes"), "lock:t")
    await client.hset(engine.keys("lanes"), "lock:t", packed[:-cut])
    await enqueue(engine, new_job("b", lanes=["lock:t"]), new_job("c"))
    await reconcile(engine)


RECORDS: dict[str, list[Any]] = {
    "that many wait": [-1, 0, 0, "", "", "default", 7, 50, "a"],
    "that a text wait": [-1, 0, 0, "", "", "default", "x", 50, "a"],
    "another queue, too": [-1, 0, 0, "", "", "default", 1, 50, "a", "other", 0, 50, "q"],
    "another priority": [-1, 0, 0, "", "", "default", 1, 3, "a"],
    "what locks do not declare": [-1, 0, 0, "3\x1f\x1f\x1f", "", "default", 1, 50, "a"],
    "that it is that of one who waits": [-1, 0, 0, "", "", "default", 1, 50, "b"],
    "that it is that of one who asks for another": [-1, 0, 0, "", "", "default", 1, 50, "u"],
    "that it is nobody's": [-1, 0, 0, "", "", "default", 1, 50, ""],
    "nothing else": [-1, 0, 0, "", ""],
}


@pytest.mark.parametrize("run", [False, True], ids=["ready", "running"])
@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
async def test_a_wrong_value_of_a_lock_is_found_and_repaired_in_one_pass(
    engine: Engine, record: list[Any], *, run: bool
) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job(name, lanes=["lock:t"]) for name in "ab"), new_job("u", lanes=["lock:u"]))
    if run:
        await worker.lease(2)
    client: Any = await raw(engine)
    await client.hset(engine.keys("lanes"), "lock:t", msgspec.msgpack.encode(record))
    assert await audit(engine) != [] or (run and record[7] == 3)  # of one that runs nobody asks for its priority
    await reconcile(engine)
    assert await audit(engine) == []


async def test_an_owner_that_its_lock_does_not_know_is_found_and_repaired(engine: Engine) -> None:
    await enqueue(engine, *(new_job(name, lanes=["lock:t"]) for name in "ab"))
    client: Any = await raw(engine)
    record = await client.hget(engine.keys("jobs"), "b")
    await client.hset(engine.keys("jobs"), "b", OWNED + record[2:])
    assert {finding.rule for finding in await audit(engine)} >= {"owners"}
    await reconcile(engine)
    assert await audit(engine) == []


async def test_an_owner_of_a_paused_lock_is_found_and_repaired(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", lanes=["lock:t"]))
    await (await raw(engine)).hset(engine.keys("limits"), "lock:t", msgspec.msgpack.encode([-1, 1]))
    assert [finding.rule for finding in await audit(engine)] == ["owners"]
    await reconcile(engine)
    assert await worker.lease() == []


async def test_reconcile_changes_no_sound_lock(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    for name in ("t", "u"):
        await enqueue(engine, *(new_job(f"{name}{n}", lanes=[f"lock:{name}"]) for n in range(3)))
    await worker.lease()
    before = await lane_of(engine), await lane_of(engine, "lock:u"), await owners(engine)
    assert await reconcile(engine) == 0
    assert (await lane_of(engine), await lane_of(engine, "lock:u"), await owners(engine)) == before
