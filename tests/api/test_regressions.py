"""What once went wrong, found by attacking the API; each stays here so that it cannot come back."""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import (
    BadOption,
    Job,
    JobCancelled,
    JobFailed,
    JobNotFound,
    Penstock,
    PenstockError,
    Retry,
    Snooze,
    Unavailable,
)
from penstock.engine.answers import Leased
from penstock.engine.transport.script_client import ScriptCall, ScriptClient
from penstock.worker.slots import Slots
from tests.app_helpers import eventually, in_state, own_app, twin
from tests.conftest import namespace
from tests.engine.factories import raw, rewrite_payload, rewrite_raw
from tests.servers import Server, running

# ---- 1 wrong values to the task


async def test_arguments_keep_their_places_when_a_default_is_left_out(app: Penstock) -> None:
    @app.task
    async def first_without_name(a: int, /, b: int = 2, c: int = 3) -> list[int]:
        return [a, b, c]

    job = await first_without_name.enqueue(1, c=5)
    await app.run_until_idle()
    assert await job.result() == [1, 2, 5]  # is [1, 5, 3]


# ---- 2 a run that ends in an error of its own leaks its slot and leaves the job running for ever


class MyRetry(Retry):
    def __init__(self, why: str) -> None:
        self.why = why


class MySnooze(Snooze):
    def __init__(self) -> None: ...


class Evil:
    def __str__(self) -> str:
        raise ValueError


REFUSE = False


@dataclass
class Connected:
    x: int

    def __post_init__(self) -> None:
        if REFUSE:
            raise RuntimeError("no database here")


async def test_arguments_whose_own_code_fails_in_the_worker_end_the_attempt(app: Penstock) -> None:
    global REFUSE  # noqa: PLW0603

    @app.task
    async def use(value: Connected) -> int:
        return value.x

    job = await use.enqueue(Connected(1))
    REFUSE = True
    try:
        async with app.worker(concurrency=1, grace=0.1):
            with pytest.raises(JobFailed):
                await job.result(timeout=2)
    finally:
        REFUSE = False


async def test_a_payload_with_a_garbled_backoff_ends_in_the_dead_letter(app: Penstock) -> None:
    @app.task(retries=0)
    async def fail() -> None:
        raise ValueError

    job = await fail.using(id="with-a-header").enqueue()
    payload = msgspec.msgpack.encode([{}, [], -1, ["foo"]])
    await rewrite_payload(app.client.engine, job.id, payload)
    async with app.worker(concurrency=1, grace=0.1):
        with pytest.raises(JobFailed):
            await job.result(timeout=2)


# ---- 3 cancelling races


async def test_a_cancel_in_the_turn_in_which_a_job_starts_is_heard(app: Penstock, monkeypatch: Any) -> None:
    """As when the lease's answer and the letter are read in one turn of the loop: about 1 in 200 cancels at start."""
    start = Slots.start

    def and_cancel(self: Slots, leased: Leased, *rest: Any) -> None:
        start(self, leased, *rest)
        for lease in leased.leases:
            self.cancel(lease.id, may_arrive=True)

    monkeypatch.setattr(Slots, "start", and_cancel)

    @app.task
    async def slow() -> None:
        await asyncio.sleep(60)

    async with app.worker(concurrency=1, grace=0.1, lease="600ms") as worker:
        job = await slow.enqueue()
        await in_state(job, "running")
        await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result(timeout=3)
        assert worker._slots.busy == 0


async def test_a_cancel_that_comes_before_the_leases_answer_is_heard_within_a_second(
    app: Penstock, monkeypatch: Any
) -> None:
    together = ScriptClient.together

    async def late(self: ScriptClient, *calls: ScriptCall[Any], **options: Any) -> list[Any]:
        answers = await together(self, *calls, **options)
        if calls[-1].script.name == "lease":
            for lease in calls[-1].decode(answers[-1]).leases:
                await app.client.engine.cancel([lease.id])
                await asyncio.sleep(0.05)  # the letter is read first
        return answers

    monkeypatch.setattr(ScriptClient, "together", late)

    @app.task(lock="door")  # so that it is leased, and does not come by letter
    async def slow() -> None:
        await asyncio.sleep(60)

    async with app.worker(grace=0.1):
        with pytest.raises(JobCancelled):
            await (await slow.enqueue()).result(timeout=2)  # takes until the next renewal, 10 s


async def test_cleaning_up_after_a_cancel_is_not_cancelled_again(app: Penstock) -> None:
    told: list[str] = []

    @app.task
    async def careful() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.5)
            told.append("clean")

    async with app.worker(lease="300ms"):
        job = await careful.enqueue()
        await in_state(job, "running")
        await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result(timeout=5)
    assert told == ["clean"]


# ---- 4 stopping


async def test_a_worker_that_is_cancelled_again_while_it_drains_does_not_live_on(app: Penstock) -> None:
    @app.task
    async def slow() -> None:
        await asyncio.sleep(3600)

    job = await slow.enqueue()
    working = asyncio.create_task(app.worker(lease="300ms").run())
    await in_state(job, "running")
    for _ in range(2):
        working.cancel()
        await asyncio.sleep(0.05)
    await asyncio.wait([working])
    try:
        assert not [thread for thread in threading.enumerate() if thread.name == "penstock-renew"]
        await in_state(job, "ready", within=3)
    finally:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()


# ---- 5 one bad record stops a worker, or everybody who waits


@pytest.mark.parametrize(
    "fields", [{"task": 7}, {"task": [1]}, {"size": "x"}, {"priority": "x"}, {"expires": "x"}, {"reason": 5}], ids=str
)
async def test_a_header_with_a_wrong_type_stops_nobody_else(app: Penstock, fields: dict[str, Any]) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    await rewrite_raw(app.client.engine, (await echo.enqueue(1)).id, **fields)
    async with app.worker(grace=0.1):
        assert await (await echo.enqueue(2)).result(timeout=2) == 2


async def test_a_garbled_history_stops_nobody_else(app: Penstock) -> None:
    @app.task(backoff=["100ms"])
    async def fail() -> None:
        raise ValueError

    @app.task
    async def fine() -> int:
        return 1

    async with app.worker(grace=0.1):
        job = await fail.enqueue()
        await in_state(job, "scheduled")
        await (await raw(app.client.engine)).hset(app.client.engine.keys("attempts"), job.id, b"\xc1")
        await asyncio.sleep(0.3)
        assert await (await fine.enqueue()).result(timeout=2) == 1


async def test_a_garbled_header_goes_to_the_dead_letter_and_run_until_idle_ends(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    job = await echo.enqueue(1)
    await (await raw(app.client.engine)).hset(app.client.engine.keys("jobs"), job.id, b"\xc1")
    async with asyncio.timeout(3):
        await app.run_until_idle()
    with pytest.raises(JobFailed):
        await job.result(timeout=1)


# ---- 6 sending


async def test_twenty_thousand_enqueues_at_once_all_arrive_on_a_healthy_server(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    found = await asyncio.gather(*(echo.enqueue(number) for number in range(20_000)), return_exceptions=True)
    assert {type(one) for one in found} == {Job}


@pytest.mark.parametrize("options", [{"id": "\ud800"}, {"unique": "\ud800"}, {"tags": ["\ud800"]}], ids=str)
async def test_a_text_that_is_no_unicode_is_refused_and_hurts_nobody(app: Penstock, options: Any) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    async def bad() -> None:
        with pytest.raises(PenstockError):
            await echo.using(**options).enqueue(1)

    async with asyncio.timeout(3):
        _, good = await asyncio.gather(bad(), echo.enqueue(2))
    assert good.created


def test_a_short_deadline_holds_for_blocking_code_too() -> None:
    with running(Server("--appendonly", "no")) as server:
        app = Penstock(namespace(), url=server.url, deadline="500ms")

        @app.task
        async def echo(x: int) -> int:
            return x

        job = echo.enqueue_sync(1)
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.raises(Unavailable):
                echo.enqueue_sync(2)
            assert time.monotonic() - began < 2  # takes 5
            began = time.monotonic()
            with pytest.raises(TimeoutError):
                job.result_sync(timeout=0.5)
            assert time.monotonic() - began < 2  # takes 5
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        app.close()


async def test_unique_true_does_not_care_how_arguments_are_written(app: Penstock) -> None:
    @app.task(unique=True)
    async def remind(user: int, text: str = "hi") -> None: ...

    first = await remind.enqueue(user=7, text="hi")
    assert (await remind.enqueue(text="hi", user=7)).id == first.id
    assert (await remind.enqueue(7)).id == first.id


@pytest.mark.parametrize("unique", ["{x.y}", "{x[0]}", "{x:{y}}", "{x!z}", "{x:q}"])
async def test_a_template_that_cannot_be_filled_is_an_error_of_ours(app: Penstock, unique: str) -> None:
    with pytest.raises(PenstockError):  # noqa: PT012

        @app.task(unique=unique)
        async def remind(x: int) -> None: ...

        remind.call(1)


async def test_an_instant_of_the_last_century_is_past(app: Penstock) -> None:
    @app.task
    async def now() -> int:
        return 1

    job = await now.using(at=datetime(1990, 1, 1, tzinfo=UTC)).enqueue()
    assert (await job.status()).state == "ready"  # is scheduled for 2046


async def test_pages_sent_before_the_iterable_failed_are_awaited(app: Penstock, unhandled: list[Any]) -> None:
    slow = app.client.engine.script_client
    together = slow.together

    @app.task
    async def echo(x: int) -> int:
        return x

    async def refuse(*_: Any, **__: Any) -> Any:
        await asyncio.sleep(0.02)
        raise Unavailable("not now")

    def calls() -> Any:
        yield from (echo.call(number) for number in range(250))
        raise LookupError

    slow.together = refuse  # type: ignore[method-assign]
    with pytest.raises((LookupError, Unavailable)):
        await app.enqueue_many(calls())
    await asyncio.sleep(0.1)
    slow.together = together  # type: ignore[method-assign]
    gc.collect()
    assert unhandled == []


@pytest.mark.parametrize("wrong", [[5], [None], 5], ids=str)
async def test_anything_but_a_call_is_refused_with_an_error_of_ours(app: Penstock, wrong: Any) -> None:
    with pytest.raises(PenstockError):
        await app.enqueue_many(wrong)


async def test_a_call_of_another_app_is_refused(app: Penstock) -> None:
    other = Penstock("another", url=app.settings.url)

    @other.task
    async def theirs() -> None: ...

    with pytest.raises(PenstockError):
        await app.enqueue_many([theirs.call()])


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


# ---- 7 results


async def test_many_large_results_at_once_are_settled_in_bounded_pages() -> None:
    with running(Server("--appendonly", "no")) as server:
        async with own_app(server, namespace(), deadline="400ms") as app:
            gate = asyncio.Event()

            @app.task
            async def heavy() -> bytes:
                await gate.wait()
                return b"x" * 1_000_000

            jobs = await app.enqueue_many(heavy.call() for _ in range(150))
            async with app.worker(concurrency=150, grace=0.1) as worker:
                await eventually(lambda: worker._slots.busy == 150)
                gate.set()
                await eventually(lambda: worker._slots.settler.settled == 150, within=15)
            assert len(jobs) == 150


@pytest.mark.parametrize("hint", [int, bytes | str], ids=str)
async def test_a_result_that_does_not_fit_its_annotation_is_an_error_of_ours(app: Penstock, hint: Any) -> None:
    async def function() -> Any:
        return "text"

    function.__annotations__ = {"return": hint}
    job = await app.task(name="f")(function).enqueue()
    await app.run_until_idle()
    try:  # noqa: SIM105
        assert await job.result(timeout=2) == "text"
    except PenstockError:
        pass


async def test_a_cancelled_job_with_a_delay_can_be_run_again(app: Penstock) -> None:
    @app.task(delay="1h")
    async def later() -> None: ...

    job = await later.enqueue()
    await job.cancel()
    await job.retry()  # the audit at the end finds: became ready before it was due


async def test_no_id_at_all_is_not_found(app: Penstock) -> None:
    @app.task
    async def nothing() -> None: ...

    await nothing.enqueue()
    with pytest.raises(JobNotFound):
        await app.get_job("")


async def test_explain_sync_on_a_loop_is_an_answer_or_an_error_of_ours(app: Penstock) -> None:
    @app.task
    async def one() -> int:
        return 1

    job = await one.enqueue()
    with contextlib.suppress(PenstockError):
        assert job.explain_sync()


async def test_the_status_of_a_job_with_deep_arguments_can_be_asked_for(app: Penstock) -> None:
    @app.task
    async def deep(x: list[Any]) -> None: ...

    nested: list[Any] = []
    for _ in range(600):
        nested = [nested]
    assert (await (await deep.enqueue(nested)).status()).state == "ready"


# ---- 8 workers' options (test_worker.py, test_bad_input.py)


async def test_run_until_idle_ends_when_all_that_is_ready_is_paused(app: Penstock) -> None:
    @app.task
    async def one() -> int:
        return 1

    await one.enqueue()
    await app.client.engine.pause("default")
    async with asyncio.timeout(3):
        await app.run_until_idle()


@pytest.mark.parametrize(
    "options", [{"concurrency": 2.7}, {"concurrency": True}, {"queues": "a b"}, {"queues": ""}], ids=str
)
def test_bad_settings_are_refused(options: Any) -> None:
    with pytest.raises(BadOption):
        Penstock("never-connected", url="redis://127.0.0.1:1", **options)


@pytest.mark.parametrize("table", ["[tool]\npenstock = 5\n", "tool = 5\n"])
def test_a_table_that_is_none_is_refused(tmp_path: Path, table: str) -> None:
    from penstock.model.settings import load

    (tmp_path / "pyproject.toml").write_text(table)
    with pytest.raises(BadOption):
        load({}, tmp_path)


def test_names_and_functions_of_the_wrong_kind_are_refused() -> None:

    wrong: Any = 5
    with pytest.raises(BadOption):
        Penstock(wrong)


def test_a_partial_is_a_task_or_an_error_of_ours() -> None:
    import functools

    app = Penstock("never-connected", url="redis://127.0.0.1:1")
    with contextlib.suppress(BadOption):
        app.task(functools.partial(print, 1))


def test_an_async_generator_is_no_task() -> None:
    app = Penstock("never-connected", url="redis://127.0.0.1:1")

    async def generator() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(BadOption):
        app.task(generator)


async def test_an_idle_worker_sends_less_than_a_command_per_second_in_the_long_run(app: Penstock) -> None:
    from tests.app_helpers import commands

    async with app.worker():
        await asyncio.sleep(11)
        before = await commands(app)
        await asyncio.sleep(30)
        assert (await commands(app) - 1 - before) / 30 < 1


def test_a_loop_that_has_ended_is_not_kept(url: str) -> None:
    app = Penstock(namespace(), url=url)
    loops: list[Any] = []

    @app.task
    async def echo(x: int) -> int:
        return x

    async def once() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await echo.enqueue(1)
        with contextlib.suppress(JobNotFound):
            await echo.job("nobody").result()

    for _ in range(3):
        asyncio.run(once())
    gc.collect()
    app.close()
    assert sum(loop() is not None for loop in loops) <= 1


async def test_arguments_that_a_call_redacts_are_hidden_from_everybody(app: Penstock) -> None:
    @app.task
    async def pay(pin: str) -> None: ...

    job = await pay.using(redact=["pin"]).enqueue("1234")
    async with twin(app) as elsewhere:
        for handle in (await app.get_job(job.id), await elsewhere.get_job(job.id)):
            assert (await handle.status()).arguments == {"pin": "[redacted]"}


async def test_asking_again_and_again_leaves_one_name_to_be_told(app: Penstock) -> None:
    @app.task(delay="1h")
    async def later() -> None: ...

    job = await later.enqueue()

    def ask() -> None:
        for _ in range(50):
            with contextlib.suppress(TimeoutError):
                job.result_sync(timeout=0.001)

    await asyncio.to_thread(ask)
    waiting = await (await raw(app.client.engine)).hget(app.client.engine.keys("waiting"), job.id)
    assert waiting.count(b"\x1f") <= 2
