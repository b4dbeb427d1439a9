"""Jobs that kill their process: they alone become dead, and all other jobs are done."""

import json

import pytest

from penstock.engine.engine import NewJob
from penstock.model.header import Header
from tests.app_helpers import eventually
from tests.worker.harness import Crew

MAX_CRASHES = ("exit", "segfault", "killed")
FAILURES = ("memory", "SystemExit", "KeyboardInterrupt")
TOLD = {"exit": "exit code 3", "segfault": "SIGSEGV", "killed": "SIGKILL"}


async def test_jobs_that_kill_their_process_are_buried_and_5000_good_ones_are_done(crew: Crew) -> None:
    await crew.started("-c", "50", "-p", "2", children=2)
    good = [crew.tasks.quick.call(n) for n in range(5_000)]
    bad = {how: crew.tasks.die.call(how) for how in (*MAX_CRASHES, *FAILURES)}
    await crew.app.enqueue_many([*good[:1000], *bad.values(), *good[1000:]])
    await crew.all_in("done", "dead", within=110)
    states = {call.job.id: await crew.header(call.job) for call in good[:2000:10]}
    assert {header.state for header in states.values()} == {"done"}
    counts = await crew.app.client.views.counts()
    assert (counts["default"]["done"], counts["default"]["dead"]) == (5_000, len(bad))
    for how in MAX_CRASHES:
        header = await crew.header(bad[how].job)
        assert (header.reason, header.crashes) == ("crash_loop", 3), how
        record = await crew.app.client.views.job(bad[how].job.id)
        assert record is not None
        assert TOLD[how] in json.loads(record.attempts[-1].error)["message"]  # alone: nobody else's death
    for how in FAILURES:
        header = await crew.header(bad[how].job)
        assert (header.state, header.reason, header.failures) == ("dead", "retries_exhausted", 1), how
        assert header.crashes < 3


async def _mixture(crew: Crew, raising: int, undecodable: int, exiting: int, good: int) -> None:
    await crew.started("-c", "50", "-p", "2", children=2)
    calls = [crew.tasks.fail.call() for _ in range(raising)]
    calls += [crew.tasks.die.call("exit") for _ in range(exiting)]
    fine = [crew.tasks.quick.call(n) for n in range(good)]
    calls += fine
    calls.sort(key=lambda call: call.job.id[-6:])  # ids end in random digits: well shuffled
    spoilt = [NewJob(f"spoilt-{n}", Header(state="", task="typed"), b"\x93\xc1") for n in range(undecodable)]
    for start in range(0, undecodable, 100):
        await crew.app.client.engine.enqueue(spoilt[start : start + 100])
    await crew.app.enqueue_many(calls)
    await crew.all_in("done", "dead", within=900)
    reasons: dict[tuple[str, str, str], int] = {}
    async for _, header in crew.app.client.views.headers():
        key = header.task, header.state, header.reason
        reasons[key] = reasons.get(key, 0) + 1
    assert reasons == {
        ("fail", "dead", "retries_exhausted"): raising,
        ("typed", "dead", "undecodable"): undecodable,
        ("die", "dead", "crash_loop"): exiting,
        ("quick", "done", ""): good,
    }
    # What ran when its process died has run again, and nothing else has.
    effects = crew.count()
    for call in fine:
        header = await crew.header(call.job)
        assert 1 <= effects[call.job.id] <= 1 + header.crashes + header.releases


async def test_among_bad_jobs_of_every_kind_every_good_one_is_done(crew: Crew) -> None:
    await _mixture(crew, raising=900, undecodable=90, exiting=10, good=1_000)


@pytest.mark.long
async def test_9900_bad_jobs_and_100_deadly_ones_among_1000_good_ones(crew: Crew) -> None:
    await _mixture(crew, raising=9_000, undecodable=900, exiting=100, good=1_000)


async def test_a_process_that_dies_charges_its_job_and_leaves_the_worker_alone(crew: Crew) -> None:
    await crew.started("-c", "4")
    beside = await crew.tasks.slow.enqueue(3.0)
    await crew.until_started(1)
    job = await crew.tasks.apart.enqueue("exit")
    await crew.all_in("done", "dead")
    header = await crew.header(job)
    assert (header.reason, header.crashes, header.failures) == ("crash_loop", 3, 0)
    assert "exit code 7" in str((await job.status()).attempts)
    assert (await crew.header(beside)).starts == 1


async def test_current_job_works_in_a_process_and_its_error_is_stored(crew: Crew) -> None:
    supervisor = await crew.started("-c", "4")
    job = await crew.tasks.apart.using(tags=["a"]).enqueue()
    attempt, state, tags, pid, parent = await job.result(timeout=30)
    assert (attempt, state, tags) == (1, "state", ["a"])
    assert pid != parent != supervisor.pid
    assert (await job.status()).progress is not None
    await eventually(lambda: "a line from a process" in crew.log())
    failed = await crew.tasks.apart.enqueue("raise")
    await crew.all_in("done", "dead")
    status = await failed.status()
    assert "LookupError" in str(status.attempts)
    assert "not here" in str(status.attempts)


async def test_a_thread_that_overruns_has_its_process_replaced_and_siblings_finish(crew: Crew) -> None:
    supervisor = await crew.started("-c", "4")
    sibling = await crew.tasks.slow.enqueue(9.0)
    stuck = await crew.tasks.stubborn.enqueue(600.0)
    await crew.until_started(2)
    later = await crew.tasks.quick.enqueue(1)
    await later.result(timeout=20)
    await eventually(lambda: "takes no more jobs" in crew.log(), within=30)
    fresh = await crew.tasks.slow.enqueue(0.0)
    assert await fresh.result(timeout=30) != await sibling.result(timeout=30)
    await crew.all_in("done", "dead")
    header = await crew.header(stuck)
    assert (header.reason, header.failures, header.crashes) == ("retries_exhausted", 1, 0)
    assert (await crew.header(sibling)).starts == 1
    assert crew.lines("end")[-1].job != stuck.id
    assert await crew.stop(supervisor) == 0
