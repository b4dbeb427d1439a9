"""How long a failed job waits: exactly what its Backoff says, until it is given up."""

from typing import Any

import pytest

from penstock.engine.engine import Engine
from penstock.engine.read.views import Views
from penstock.model.backoff import Backoff, backoff
from penstock.worker.outcome import Buried, Retried, RetryPolicy, outcome_of
from tests.conftest import Clock
from tests.engine.factories import TestWorker, call_of, enqueue, header_of, new_job

CASES: list[tuple[Any, list[int]]] = [
    (Backoff("exponential", base="1s", jitter=False), [1_000, 2_000, 4_000, 8_000, 16_000]),
    (Backoff("exponential", base="1s", cap="5s", jitter=False), [1_000, 2_000, 4_000, 5_000, 5_000]),
    (Backoff("linear", base="2s", jitter=False), [2_000, 4_000, 6_000, 8_000, 10_000]),
    (Backoff("linear", base="2s", cap="7s", jitter=False), [2_000, 4_000, 6_000, 7_000, 7_000]),
    (Backoff("fixed", base="250ms", jitter=False), [250] * 5),
    (Backoff("fixed", base="1h", jitter=False), [3_600_000] * 5),
    (["10s", 60, "5m"], [10_000, 60_000, 300_000, 300_000, 300_000]),
]


@pytest.mark.parametrize(("policy", "waits"), CASES, ids=[str(case[0]) for case in CASES])
async def test_a_job_waits_exactly_as_stated_and_is_given_up_after_the_maximum(
    engine: Engine, clock: Clock, policy: Any, waits: list[int]
) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", retries=len(waits)))
    for number, wait in enumerate(waits, 1):
        (lease,) = await worker.lease()
        assert lease.header.attempt == number
        outcome = outcome_of(lease, ValueError(f"try {number}"), RetryPolicy(backoff(policy), None, ()))
        assert isinstance(outcome, Retried)
        await engine.retry(worker.name, [(lease.id, call_of(lease), outcome.delay, outcome.reason, outcome.error)])
        assert (await header_of(engine, "a")).due == clock() + wait
        clock.advance(wait - 1)
        assert (await engine.promote()).moved == 0
        clock.advance(1)
        assert (await engine.promote()).moved == 1
    (lease,) = await worker.lease()
    outcome = outcome_of(lease, ValueError("the last one"), RetryPolicy(backoff(policy), None, ()))
    assert isinstance(outcome, Buried)
    assert outcome.reason == "retries_exhausted"
    await worker.bury(lease, outcome.reason, outcome.error)
    record = await Views(engine).job("a")
    assert record is not None
    assert [(attempt.number, attempt.outcome, attempt.worker) for attempt in record.attempts] == [
        *((number, "retry", worker.name) for number in range(1, len(waits) + 1)),
        (len(waits) + 1, "bury", worker.name),
    ]
    assert all("ValueError" in attempt.error and attempt.started <= attempt.ended for attempt in record.attempts)


@pytest.mark.parametrize("kind", ["exponential", "linear", "fixed"])
def test_jitter_draws_between_half_and_all_of_it(kind: Any) -> None:
    plain, drawn = Backoff(kind, base="1s", cap="1m", jitter=False), Backoff(kind, base="1s", cap="1m")
    for failures in (1, 2, 5, 50, 10_000):
        waits = {drawn.after(failures) for _ in range(200)}
        assert plain.after(failures) // 2 <= min(waits) < max(waits) <= plain.after(failures) <= 60_000
        assert len(waits) > 50


async def test_a_revived_job_has_its_whole_retry_budget_again(engine: Engine, clock: Clock) -> None:
    worker, policy = await TestWorker(engine).register(), RetryPolicy(Backoff(jitter=False), None, ())
    await enqueue(engine, new_job("a", retries=1))
    for _ in range(2):
        for expected in (Retried, Buried):
            (lease,) = await worker.lease()
            assert isinstance(outcome_of(lease, ValueError(), policy), expected)
            await (worker.retry(lease) if expected is Retried else worker.bury(lease))
        assert await engine.revive(["a"]) == ["ok"]
    record = await Views(engine).job("a")
    assert record is not None
    assert [attempt.number for attempt in record.attempts] == [1, 2, 1, 2]
    assert record.header.generation == 2
