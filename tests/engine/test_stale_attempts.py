"""An attempt that does not hold its job changes not one byte; one that does and sends again gets its first answer.

Only that it was refused is counted, in `stats`.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.engine.engine import Engine
from penstock.engine.read.views import Views
from penstock.engine.transport.script_client import ScriptCall
from tests.conftest import Clock
from tests.engine.factories import LIFE, TestWorker, enqueue, new_job, populate, raw, states
from tests.engine.factories import dump as whole_dump

Attempt = tuple[str, str, int]  # worker, job, call number

SETTLES: dict[str, Callable[[Engine, str, str, int], ScriptCall[Any]]] = {
    "complete": lambda engine, worker, job, call: engine.complete(worker, [(job, call, b"result")]),
    "retry": lambda engine, worker, job, call: engine.retry(worker, [(job, call, 1_000, "error", "{}")]),
    "bury": lambda engine, worker, job, call: engine.bury(worker, [(job, call, "failed", "{}")]),
    "release": lambda engine, worker, job, call: engine.release(worker, [(job, call)]),
    "snooze": lambda engine, worker, job, call: engine.snooze(worker, [(job, call, 1_000, "later")]),
    "progress": lambda engine, worker, job, call: engine.progress(worker, job, call, "[1,2]"),
}


async def dump(engine: Engine) -> dict[bytes, bytes | None]:
    return {key: value for key, value in (await whole_dump(engine)).items() if key != engine.keys("stats")}


async def _empty_call(engine: Engine, clock: Clock) -> Attempt:
    """An earlier call of the worker that holds the job, which had got nothing."""
    worker = await TestWorker(engine, "w").register()
    await worker.lease()
    await enqueue(engine, new_job("a"))
    await worker.lease()
    return "w", "a", 1


async def _earlier_call(engine: Engine, clock: Clock) -> Attempt:
    """An earlier call of the worker that holds the job: it had it before, settled it, and has it for the third time."""
    worker = await TestWorker(engine, "w").register()
    await enqueue(engine, new_job("a"))
    await worker.snooze((await worker.lease())[0], 0)
    await engine.promote()
    await worker.release((await worker.lease())[0])
    await worker.lease()
    return "w", "a", 1


async def _other_worker(engine: Engine, clock: Clock) -> Attempt:
    """Another worker, with the call number of the one that holds the job."""
    await (await TestWorker(engine, "other").register()).lease()
    await enqueue(engine, new_job("a"))
    await (await TestWorker(engine, "w").register()).lease()
    return "other", "a", 1


async def _reaped_worker(engine: Engine, clock: Clock) -> Attempt:
    await enqueue(engine, new_job("a"))
    for name in ("gone", "w"):
        await (await TestWorker(engine, name).register()).lease()
        if name == "gone":
            await engine.reap_worker("gone", ["a"], LIFE)
    return "gone", "a", 1


async def _nobody(engine: Engine, clock: Clock) -> Attempt:
    await enqueue(engine, new_job("a"))
    await (await TestWorker(engine, "w").register()).lease()
    return "stranger", "a", 4711


async def _later_call(engine: Engine, clock: Clock) -> Attempt:
    await enqueue(engine, new_job("a"))
    await (await TestWorker(engine, "w").register()).lease()
    return "w", "a", 11


async def _beginning_alike(engine: Engine, clock: Clock) -> Attempt:
    """Names and numbers that begin like those of the holder."""
    await enqueue(engine, new_job("a"))
    worker = await TestWorker(engine, "w1").register()
    worker.number = 11
    await worker.lease()
    return "w", "a", 12


async def _in(engine: Engine, job_id: str) -> Attempt:
    worker = await populate(engine)
    return worker.name, job_id, 9


CASES: dict[str, Callable[[Engine, Clock], Awaitable[Attempt]]] = {
    "an earlier call": _earlier_call,
    "an empty call": _empty_call,
    "another worker": _other_worker,
    "a reaped worker": _reaped_worker,
    "nobody": _nobody,
    "a later call": _later_call,
    "names that begin alike": _beginning_alike,
    **{
        f"a {job_id} job": lambda engine, clock, job_id=job_id: _in(engine, job_id)  # type: ignore[misc]
        for job_id in ("ready", "scheduled", "cancelling", "done", "dead", "cancelled", "tomb", "never-was")
    },
}


@pytest.mark.parametrize("case", CASES)
async def test_an_attempt_that_does_not_hold_its_job_is_refused_and_changes_not_one_byte(
    engine: Engine, clock: Clock, case: str
) -> None:
    attempt = await CASES[case](engine, clock)
    before = await dump(engine)
    clock.advance(5)
    for verb, settle in SETTLES.items():
        assert await settle(engine, *attempt) in ("stale", ["stale"]), verb
        assert await dump(engine) == before, verb


async def test_refused_settles_are_counted_for_their_queue_and_nothing_else_is(engine: Engine, clock: Clock) -> None:
    attempt = await _nobody(engine, clock)
    client = await raw(engine)
    before = await client.hgetall(engine.keys("stats"))
    for settle in SETTLES.values():
        await settle(engine, *attempt)
    await engine.complete("w", [("never-was", 1, b"")])
    after = await client.hgetall(engine.keys("stats"))
    minute = clock() // 60_000
    assert {name.decode(): int(value) for name, value in after.items() if name not in before} == {
        f"{minute}\x1fdefault\x1fstale": 5,
        f"{minute}\x1f\x1fstale": 1,
    }


@pytest.mark.parametrize("first", sorted(SETTLES.keys() - {"progress"}))
async def test_an_attempt_that_settled_may_send_the_same_settle_again_but_no_other(engine: Engine, first: str) -> None:
    worker = await TestWorker(engine, "w").register()
    await enqueue(engine, new_job("a"))
    await worker.lease()
    assert await SETTLES[first](engine, "w", "a", 1) == ["ok"]
    before = await dump(engine)
    for verb, settle in SETTLES.items():
        answer = await settle(engine, "w", "a", 1)
        assert answer in (["ok"] if verb == first else ["stale"], "stale"), verb
        assert await dump(engine) == before, verb


@pytest.mark.parametrize("verb", sorted(SETTLES.keys() - {"progress", "complete"}))
async def test_the_answer_that_a_job_was_cancelled_is_given_again_too(engine: Engine, verb: str) -> None:
    worker = await TestWorker(engine, "w").register()
    await enqueue(engine, new_job("a"))
    await worker.lease()
    await engine.cancel(["a"])
    assert await SETTLES[verb](engine, "w", "a", 1) == ["cancelled"]
    before = await dump(engine)
    assert await SETTLES[verb](engine, "w", "a", 1) == ["cancelled"]
    assert await dump(engine) == before


async def test_a_resent_enqueue_gets_its_first_answer_again_and_changes_nothing(engine: Engine, clock: Clock) -> None:
    await enqueue(engine, new_job("theirs", nonce="them", unique="v"))
    jobs = [
        new_job("a", nonce="n"),
        new_job("later", nonce="n", due=5_000),
        new_job("b", nonce="n", unique="u"),
        new_job("c", nonce="n", unique="u"),
        new_job("d", nonce="n", unique="v"),
        new_job("theirs", nonce="n"),
    ]
    first = await engine.enqueue(jobs)
    assert [placed.word for placed in first] == ["created", "created", "created", "unique", "unique", "exists"]
    before = await dump(engine)
    clock.advance(100)
    assert await engine.enqueue(jobs) == first
    assert await dump(engine) == before


async def test_a_resent_lease_gets_its_jobs_again_and_changes_nothing(engine: Engine, clock: Clock) -> None:
    await engine.register("w", LIFE)
    await enqueue(engine, *(new_job(priority=priority) for priority in (3, 1, 2, 9)))
    call = engine.lease("w", 1, want=3)
    first = await call
    assert [lease.header.priority for lease in first.leases] == [1, 2, 3]
    before = await dump(engine)
    clock.advance(100)
    assert sorted((await call).leases) == sorted(first.leases)
    assert await dump(engine) == before


async def test_a_resent_complete_gets_its_first_answers_again_also_at_tombstones(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine, "w").register()
    await enqueue(engine, new_job("a", keep=0), new_job("b"))
    await worker.lease(2)
    call = engine.complete("w", [("a", 1, b"result"), ("b", 1, b"result"), ("b", 7, b"")])
    assert await call == ["ok", "ok", "stale"]
    before = await dump(engine)
    assert await call == ["ok", "ok", "stale"]
    assert await dump(engine) == before
    await engine.prune()
    assert await call == ["ok", "ok", "stale"]
    record = await Views(engine).job("b")
    assert record is not None
    assert record.result == b"result"
    assert await states(engine) == {"a": "done", "b": "done"}
