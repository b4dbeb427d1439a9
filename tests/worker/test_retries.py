"""Retries: when a failed job is tried again, and when it is given up."""

import itertools
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Backoff,
    Bury,
    Job,
    JobFailed,
    Penstock,
    Retry,
    Snooze,
    current_job,
)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_retries_wait_as_the_backoff_says_and_then_the_job_is_dead(app: Penstock, kind: str) -> None:
    starts: list[float] = []

    def fail() -> None:
        starts.append(time.monotonic())
        raise ValueError(f"attempt {current_job().attempt}")

    options: dict[str, Any] = {"retries": 3, "backoff": Backoff("linear", base="60ms", jitter=False)}

    @app.task(**options)
    async def on_loop() -> None:
        fail()

    @app.task(**options)
    def in_thread() -> None:
        fail()

    job: Job[None] = await (on_loop if kind == "async" else in_thread).enqueue()
    async with app.worker():
        with pytest.raises(JobFailed, match="attempt 4"):
            await job.result(timeout=10)
    waits = [after - before for before, after in itertools.pairwise(starts)]
    assert len(waits) == 3
    assert all(planned <= wait < planned + 0.25 for planned, wait in zip((0.06, 0.12, 0.18), waits, strict=True))
    status = await job.status()
    assert (status.state, status.reason, status.attempt) == ("dead", "retries_exhausted", 4)
    assert [(attempt.number, attempt.type, attempt.message) for attempt in status.attempts] == [
        (number, "ValueError", f"attempt {number}") for number in range(1, 5)
    ]
    assert all(attempt.started <= attempt.ended for attempt in status.attempts)


async def test_a_list_of_delays_is_followed_and_its_last_repeats(app: Penstock) -> None:
    starts: list[float] = []

    @app.task(retries=3, backoff=["10ms", "300ms"])
    async def fail() -> None:
        starts.append(time.monotonic())
        raise ValueError

    job = await fail.enqueue()
    async with app.worker():
        with pytest.raises(JobFailed):
            await job.result(timeout=10)
    waits = [after - before for before, after in itertools.pairwise(starts)]
    assert 0.01 <= waits[0] < min(waits[1:])
    assert min(waits[1:]) >= 0.3


async def test_a_retry_is_scheduled_with_an_attempt_behind_it(app: Penstock) -> None:
    @app.task(backoff=["1h"])
    async def fail() -> None:
        raise ValueError("no")

    job = await fail.enqueue()
    await app.run_until_idle()
    status = await job.status()
    assert (status.state, status.attempt, status.reason) == ("scheduled", 1, "ValueError")
    assert "ValueError" in await job.explain()


class Temporary(Exception):
    pass


class VeryTemporary(Temporary):
    pass


async def test_retry_on_and_give_up_on_decide_by_class_and_its_parents(app: Penstock) -> None:
    raised: list[type[Exception]] = [VeryTemporary, Temporary, KeyError, LookupError]

    @app.task(name="retry_on", retries=1, backoff=[0], retry_on=Temporary)
    async def retried(which: int) -> None:
        raise raised[which]

    @app.task(name="give_up_on", retries=1, backoff=[0], give_up_on=[LookupError, VeryTemporary])
    def given_up(which: int) -> None:
        raise raised[which]

    jobs = [await task.enqueue(which) for task in (retried, given_up) for which in range(4)]
    await app.run_until_idle()
    outcomes = [((await job.status()).attempt, (await job.status()).reason) for job in jobs]
    twice, once = (2, "retries_exhausted"), (1, "given_up")
    assert outcomes == [twice, twice, once, once, once, twice, once, once]


async def test_retry_on_and_give_up_on_of_one_call_replace_the_tasks(app: Penstock) -> None:
    @app.task(retries=1, backoff=["1h"], retry_on=[Temporary], give_up_on=[LookupError])
    async def fail(key: bool) -> None:
        raise KeyError if key else Temporary

    tasks = [
        fail.using(give_up_on=[], retry_on=[Exception], backoff=[0]),
        fail.using(give_up_on=Temporary, backoff=[0]),
        fail.using(retry_on=[], backoff=[0]),
        fail.using(retries=0),
    ]
    jobs = [await task.enqueue(key) for task in tasks for key in (True, False)]
    await app.run_until_idle()
    assert [(await job.status()).attempt for job in jobs] == [2, 2, 1, 1, 1, 1, 1, 1]


async def test_a_task_may_ask_for_a_retry_a_snooze_or_the_dead_letter(app: Penstock) -> None:
    runs: list[tuple[str, int]] = []

    @app.task(retries=2, backoff=["1h"])
    async def retry() -> str:
        runs.append(("retry", current_job().attempt))
        if current_job().attempt <= 2:
            raise Retry("20ms")
        return "third time"

    @app.task(retries=0)
    def snooze() -> str:
        runs.append(("snooze", current_job().attempt))
        if len([run for run in runs if run[0] == "snooze"]) <= 3:
            raise Snooze("20ms")
        return "awake"

    @app.task(retries=5)
    async def bury() -> None:
        runs.append(("bury", current_job().attempt))
        raise Bury("hopeless")

    async with app.worker():
        first, second, third = await retry.enqueue(), await snooze.enqueue(), await bury.enqueue()
        assert await first.result(timeout=5) == "third time"
        assert await second.result(timeout=5) == "awake"
        with pytest.raises(JobFailed, match="hopeless"):
            await third.result(timeout=5)
    assert Counter(runs) == Counter([("retry", 1), ("retry", 2), ("retry", 3), ("bury", 1), *[("snooze", 1)] * 4])
    assert (await second.status()).attempt == 1
    assert (await third.status()).reason == "hopeless"


async def test_a_retry_without_a_delay_follows_the_backoff_and_ends_with_the_budget(app: Penstock) -> None:
    @app.task(retries=2, backoff=[0])
    async def again() -> None:
        raise Retry

    job = await again.enqueue()
    await app.run_until_idle()
    status = await job.status()
    assert (status.state, status.attempt, status.reason) == ("dead", 3, "retries_exhausted")


SHOP = """
import sys
from penstock import Penstock
class Fatal(Exception): pass
app = Penstock(sys.argv[2], url=sys.argv[1])
@app.task(retries=2, backoff=[0])
async def pay() -> None: raise Fatal
if __name__ == "__main__":
    print(pay.using(give_up_on=Fatal).enqueue_sync().id)
"""


async def test_give_up_on_works_from_a_module_that_runs_as_main(
    app: Penstock, tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "shop_module.py").write_text(SHOP)
    where = [str(app.settings.url), app.name]
    done = subprocess.run([sys.executable, tmp_path / "shop_module.py", *where], capture_output=True, check=True)  # noqa: ASYNC221
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["worker", *where])
    shop: Any = __import__("shop_module")
    await shop.app.run_until_idle()
    status = await (await app.get_job(done.stdout.decode().strip())).status()
    await shop.app.aclose()
    assert (status.attempt, status.reason) == (1, "given_up")
