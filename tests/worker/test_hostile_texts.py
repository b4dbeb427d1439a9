"""Texts that cannot be shown or stored, in logs, errors, results and names: the worker goes on and ends cleanly."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from penstock import Bury, JobContext, Penstock, Retry, Snooze, current_job
from penstock.engine.repair.audit import audit
from tests.app_helpers import eventually, in_state
from tests.worker.harness import Crew

SURROGATE = "undecodable \udc80 name"
HUGE = "x" * 3_000_000


class Silent:
    """It has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class OddText(str):
    """A text whose methods do not work."""

    __slots__ = ()

    def __getitem__(self, _: Any) -> str:
        raise RuntimeError("no part")

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def encode(self, *_: Any) -> bytes:
        raise RuntimeError("no bytes")


class Odd(type):
    """A class without a name."""

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")


class Nameless(Exception, metaclass=Odd):
    pass


class Faceless(Exception):
    """It does not say what it is, or where it is from."""

    __module__ = SURROGATE
    __qualname__ = SURROGATE

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("no class")


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit(SURROGATE)


class Shy(Bury):
    @property
    def reason(self) -> str:
        raise RuntimeError("no reason")

    @reason.setter
    def reason(self, _: str) -> None:
        pass


TEXTS: dict[str, Any] = {
    "surrogate": SURROGATE,
    "nul": "a\0b\x1fc",
    "huge": HUGE,
    "odd": OddText("odd"),
    "silent": Silent(),
    "bytes": b"\x80",
    "number": 5_000_000,
    "none": None,
}


def _changed(error: Any, **changes: Any) -> Exception:
    for name, value in changes.items():
        setattr(error, name, value)
    assert isinstance(error, Exception)
    return error


def _noted(note: Any) -> Exception:
    error = ValueError("noted")
    error.__notes__ = [note]
    return error


# What is made of each text.
_MADE: dict[str, Callable[[Any], BaseException]] = {
    "error": ValueError,
    "note": _noted,
    "bury": Bury,
    "bury later": lambda text: _changed(Bury(), reason=text),
    "retry": lambda text: _changed(Retry(1), delay=text),
    "snooze": lambda text: _changed(Snooze(1), delay=text),
}
ERRORS: dict[str, Callable[[], BaseException]] = {
    **{f"{kind} {name}": partial(make, text) for kind, make in _MADE.items() for name, text in TEXTS.items()},
    "snooze back": partial(_changed, Snooze(1), delay=-5),
    "class name": type("x" * 100_000, (Exception,), {}),
    "nameless": Nameless,
    "faceless": Faceless,
    "mute": Mute,
    "shy": Shy,
    "group": partial(BaseExceptionGroup, SURROGATE, [Mute(), Nameless(), KeyError(SURROGATE)]),
}


def _raise(how: str) -> None:
    error = ERRORS[how]()
    raise error


def _log(job: JobContext, text: Any) -> None:
    job.log(text)


def _log_at_a_level(_: JobContext, text: Any) -> None:
    logging.addLevelName(35, text)
    logging.getLogger("shop").log(35, "level")


WAYS: dict[str, Callable[[JobContext, Any], None]] = {
    "job.log": _log,
    "message": lambda _, text: logging.getLogger("shop").warning(text),
    "argument": lambda _, text: logging.getLogger("shop").warning("%s", text),
    "too many": lambda _, text: logging.getLogger("shop").warning(text, text),
    "logger": lambda _, text: logging.getLogger(str(text)[:9]).warning("named"),
    "level": _log_at_a_level,
    "exception": lambda _, text: logging.getLogger("shop").warning("failed", exc_info=ValueError(text)),
    "progress": lambda job, text: job.progress_sync(1, 2, text),
}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No handler writes these records: pytest-xdist ends with its report of a test that logged a lone surrogate.

    The lines of a job are kept where records are made, not by a handler.
    """
    monkeypatch.setattr(logging.Logger, "callHandlers", lambda _logger, _record: None)


async def test_every_job_ends_whatever_it_raises(app: Penstock) -> None:
    @app.task(name="bad", retries=0)
    async def bad(how: str) -> None:
        _raise(how)

    @app.task(name="good")
    async def good(number: int) -> int:
        return number

    async with asyncio.timeout(60), app.worker(concurrency=10):
        jobs = await app.enqueue_many(bad.call(how) for how in ERRORS)
        others = await app.enqueue_many(good.call(number) for number in range(20))
        assert [await job.result() for job in others] == list(range(20))
        for job in jobs:
            await in_state(job, "dead", "scheduled", within=30)
        for how, job in zip(ERRORS, jobs, strict=True):
            for attempt in (await job.status()).attempts:
                text = f"{attempt.type} {attempt.message} {attempt.traceback}"
                assert len(text.encode()) < 120_000, how  # as UTF-8 can hold it
        await _nothing_held(app)
    assert await app.client.views.workers() == []


async def test_every_stream_goes_on_whatever_its_handler_raises(app: Penstock) -> None:
    @app.task(name="bad", retries=0)
    async def bad(how: str) -> None: ...

    jobs = await app.enqueue_many(bad.call(how) for how in ERRORS)
    async with asyncio.timeout(60), app.queue("default").stream(limit=1) as leases:
        for how in ERRORS:
            lease = await anext(leases)
            with contextlib.suppress(Exception):  # it goes on, unless it steers
                async with lease:
                    _raise(how)
        await _nothing_held(app)
    for job in jobs:
        await in_state(job, "dead", "scheduled")


async def test_lines_beside_a_hostile_one_are_kept_and_the_worker_retires(app: Penstock) -> None:
    @app.task(name="say", retries=0, timeout=30)
    def say(way: str, text: str) -> None:
        job = current_job()
        job.log("before")
        try:
            WAYS[way](job, TEXTS[text])
        except Exception:  # noqa: BLE001  (some are refused at once, which is the job's own affair)
            job.log("refused")
        job.log("after")

    calls = [say.call(way, text) for way in WAYS for text in TEXTS]
    async with asyncio.timeout(60):
        async with app.worker(concurrency=len(calls)):
            jobs = await app.enqueue_many(calls)
            for job in jobs:
                await job.result()
        assert await app.client.views.workers() == []
    for call, job in zip(calls, jobs, strict=True):
        texts = [line.text for line in await job.log()]
        assert (texts[0], texts[-1]) == ("before", "after"), call
        assert all(text.encode() for text in texts)
    logging.addLevelName(35, "Level 35")


IN_PROCESSES = """

import logging
from typing import Any


class Silent:
    def __str__(self) -> str:
        raise RuntimeError("no text")


ODD = "undecodable \\udc80 name"
EXTRAS: dict[str, dict[str, Any]] = {
    "odd": {"job": ODD, "task": ODD, "attempt": ODD},
    "huge": {"job": "x" * 1_000_000, "task": 10**40, "attempt": float("nan")},
    "objects": {"job": b"\\x80", "task": [ODD], "attempt": {ODD: ODD}},
    "silent": {"job": Silent(), "task": Silent(), "attempt": Silent()},
}


def say(way: str) -> str:
    log, text = logging.getLogger("shop"), f"said by {way}."
    match way.split():
        case ["message"]:
            log.warning(f"{text} {ODD}")
        case ["argument"]:
            log.warning("%s %s", text, ODD)
        case ["logger"]:
            logging.getLogger(ODD).warning(text)
        case ["level"]:
            logging.addLevelName(35, ODD)
            log.log(35, text)
        case ["exception"]:
            log.warning(text, exc_info=ValueError(ODD))
        case ["extra", which]:
            log.warning(text, extra=EXTRAS[which])
    return "went on"


said_in_thread = app.task(name="say-thread", retries=0)(say)
said_in_process = app.task(name="say-process", retries=0, executor="process")(say)
"""
RECORDS = ("message", "argument", "logger", "level", "exception", "extra odd", "extra huge", "extra objects")


@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize("form", ["table", "json"])
async def test_a_worker_process_goes_on_whatever_a_job_logs(crew: Crew, executor: str, form: str) -> None:
    file = crew.folder / "tasks.py"
    file.write_text(file.read_text() + IN_PROCESSES)

    @crew.app.task(name=f"say-{executor}")
    def say(way: str) -> str:
        raise NotImplementedError

    await crew.started("-c", "4", "-o", form)
    jobs = await crew.app.enqueue_many(say.call(way) for way in (*RECORDS, "extra silent"))
    assert [await job.result(timeout=60) for job in jobs] == ["went on"] * len(jobs)
    await eventually(lambda: all(f"said by {way}." in crew.log() for way in RECORDS), within=20)
    for job in jobs:
        assert all(line.text.encode() for line in await job.log())
    assert (await crew.header(jobs[0])).crashes == 0
    assert await crew.stop(crew.workers[0]) == 0


RESULTS: dict[str, Any] = {**TEXTS, "key": {SURROGATE: 1}, "error": Nameless(), "class": Odd, "deep": []}
for _ in range(5_000):
    RESULTS["deep"] = [RESULTS["deep"]]


async def test_a_result_that_cannot_be_stored_ends_its_job_alone(app: Penstock) -> None:
    @app.task(name="give", retries=0)
    async def give(what: str) -> Any:
        return RESULTS[what]

    async with asyncio.timeout(30):
        async with app.worker():
            jobs = await app.enqueue_many(give.call(what) for what in RESULTS)
            for job in jobs:
                await in_state(job, "dead", "done")
        await app.enqueue_many(give.call(what) for what in RESULTS)
        async with app.queue("default").stream(limit=1) as leases:
            for result in RESULTS.values():
                lease = await anext(leases)
                async with lease:
                    lease.result = result
            await _nothing_held(app)


async def test_a_worker_that_is_cancelled_while_it_stops_still_retires(app: Penstock) -> None:
    began, held = asyncio.Event(), asyncio.Event()

    @app.task(name="wait")
    async def wait() -> None:
        began.set()
        await held.wait()

    async def work() -> None:
        async with app.worker():
            job.append(await wait.enqueue())
            await began.wait()

    job: list[Any] = []
    working = asyncio.create_task(work())
    async with asyncio.timeout(30):
        await began.wait()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await eventually(lambda: _is_empty(app))
    assert (await job[0].status()).state == "ready"


async def _is_empty(app: Penstock) -> bool:
    return await app.client.views.workers() == []


async def _nothing_held(app: Penstock) -> None:
    async def running() -> bool:
        counts = await app.client.views.counts()
        return not counts.get("default", {}).get("running")

    await eventually(running, within=30)
    assert await audit(app.client.engine) == []
