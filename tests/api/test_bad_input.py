"""Bad input of every kind: a clear error of ours at the earliest place, nothing lost, and the worker lives."""

import asyncio
import enum
import math
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import penstock
from penstock import (
    Backoff,
    BadArguments,
    BadOption,
    Bury,
    Job,
    JobFailed,
    PayloadTooLarge,
    Penstock,
    PenstockError,
    Retry,
    Snooze,
    UnknownTask,
)
from penstock.engine.record.layout import INLINE
from penstock.engine.record.record import read_payload
from penstock.model.settings import load
from tests.app_helpers import in_state, on_both
from tests.engine.factories import raw, record_of, rewrite, rewrite_payload, spoil

LONG = "x" * 10_000


# Arguments


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


BAD_CALLS: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((), {}, "user"),
    ((1, "a", 3), {}, "too many"),
    ((1,), {"user": 2}, "user"),
    ((1,), {"nobody": 2}, "nobody"),
    ((1,), {"queue": "mail"}, "queue"),
    (("1",), {}, "int"),
    ((1.5,), {}, "int"),
    ((None,), {}, "int"),
    ((2**64,), {}, ""),
    ((1, 2), {}, "str"),
    ((1, b"bytes"), {}, ""),
    ((1, print), {}, ""),
    ((1, 1j), {}, ""),
    ((1, "\ud800"), {}, ""),
    ((1,), {"subject": print}, ""),
]


@pytest.mark.parametrize(("args", "kwargs", "hint"), BAD_CALLS, ids=repr)
async def test_wrong_arguments_are_refused_where_they_are_written(
    app: Penstock, args: tuple[Any, ...], kwargs: dict[str, Any], hint: str
) -> None:
    @app.task(name="send")
    async def send(user: int, subject: str = "hi") -> None: ...

    call: Any = send.call
    with pytest.raises(BadArguments, match=r"send.*user: int") as caught:
        call(*args, **kwargs)
    assert hint in str(caught.value)
    enqueue: Any = send.enqueue
    with pytest.raises(BadArguments):
        await enqueue(*args, **kwargs)
    blocking: Any = send.enqueue_sync
    with pytest.raises(BadArguments):
        blocking(*args, **kwargs)
    assert await app.client.views.counts() == {}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("delay", "'delay' is an option, not an argument: say .using(delay=…).enqueue(…)"),
        ("subjct", "unknown argument 'subjct'; did you mean 'subject'? valid are subject, user"),
        ("xyz", "unknown argument 'xyz'; valid are subject, user"),
    ],
)
async def test_a_strange_name_is_told_with_what_to_do(app: Penstock, name: str, hint: str) -> None:
    @app.task(name="send")
    async def send(user: int, subject: str = "hi") -> None: ...

    @app.task(name="without")
    async def without() -> None: ...

    enqueue: Any = send.enqueue
    for arguments in ((), (7,)):  # the first one lacks an argument, too
        with pytest.raises(BadArguments) as caught:
            await enqueue(*arguments, **{name: "10m"})
        assert hint in str(caught.value)
    bare: Any = without.enqueue
    with pytest.raises(BadArguments, match=r"unknown argument 'user'; it takes none"):
        await bare(user=1)


async def test_a_parameter_named_like_an_option_is_an_argument(app: Penstock) -> None:
    @app.task
    async def plain(delay: int) -> int:
        return delay

    @app.task
    async def many(**kwargs: int) -> dict[str, int]:
        return kwargs

    jobs = await plain.enqueue(delay=1), await many.enqueue(queue=2)
    await app.run_until_idle()
    assert [await job.result() for job in jobs] == [1, {"queue": 2}]


@pytest.mark.parametrize(
    "value",
    [object(), {1j}, nested(10_000), endless(), (number for number in range(3)), threading.Lock(), 10**100, type],
    ids=lambda value: type(value).__name__,
)
async def test_a_value_that_cannot_be_stored_is_refused(app: Penstock, value: Any) -> None:
    @app.task
    async def anything(x: Any, *rest: Any, **more: Any) -> None: ...

    for args, kwargs in (((value,), {}), ((1, value), {}), ((1,), {"a": value})):
        with pytest.raises(BadArguments, match="anything"):
            anything.call(*args, **kwargs)


async def test_values_that_do_not_fit_their_annotations_are_refused(app: Penstock) -> None:
    @app.task
    async def typed(
        point: Point | None = None,
        colour: Colour = Colour.RED,
        when: datetime | None = None,
        names: dict[str, int] | None = None,
        *numbers: int,
    ) -> None: ...

    call: Any = typed.call
    for bad in (
        {"point": {"x": "1"}},
        {"point": Colour.RED},
        {"colour": "green"},
        {"when": "yesterday"},
        {"names": {"a": "b"}},
        {"names": [1]},
    ):
        with pytest.raises(BadArguments):
            call(**bad)
    with pytest.raises(BadArguments):
        call(None, Colour.RED, None, None, 1, "2")
    assert call(point={"x": 1}, colour="red")  # plain data that fits is as good


async def test_an_annotation_that_cannot_be_resolved_is_named(app: Penstock) -> None:
    async def function(x: Any) -> None: ...

    function.__annotations__ = {"x": "SomethingElse"}
    task = app.task(function)
    with pytest.raises(BadArguments, match="SomethingElse"):
        task.call(1)


async def test_a_payload_over_the_limit_is_refused_and_one_just_under_is_not(app: Penstock) -> None:
    @app.task
    async def weigh(data: bytes) -> int:
        return len(data)

    with pytest.raises(PayloadTooLarge, match="1,048,576"):
        await weigh.enqueue(b"x" * 2**20)
    with pytest.raises(PayloadTooLarge):
        weigh.enqueue_sync(b"x" * 2**20)
    with pytest.raises(PayloadTooLarge):
        await app.enqueue_many(weigh.call(b"x" * size) for size in (1, 2**20))
    job = await weigh.enqueue(b"x" * (2**20 - 100))
    await app.run_until_idle()
    assert await job.result() == 2**20 - 100


async def test_the_limit_of_a_payload_can_be_set(url: str) -> None:
    app = Penstock("never-connected", url=url, payload_limit=100)

    @app.task
    async def weigh(data: bytes) -> None: ...

    weigh.call(b"x" * 80)
    with pytest.raises(PayloadTooLarge, match="limit is 100"):
        weigh.call(b"x" * 101)


# Options and names

BAD_OPTIONS: list[tuple[str, Any]] = [
    *(("queue", value) for value in ("", "a b", "a{b}", "a\nb", "ä", LONG, 5, None, "*", "a\x1fb")),
    *(("priority", value) for value in (-1, 100, 1.0, "5", True, None)),
    *(
        ("delay", value)
        for value in (-1, "1 week", "soon", "", None, True, math.nan, math.inf, "99999d", timedelta(-1))
    ),
    *(("at", value) for value in (datetime(2026, 1, 1), "tomorrow", 5, None)),  # noqa: DTZ001  (naive)
    *(("expires", value) for value in (-1, "never", None)),
    *(("retries", value) for value in (-1, 1.5, "3", True, None, 10**9)),
    *(("backoff", value) for value in ([], "1s", 5, None, ["x"], [-1])),
    *(("retry_on", value) for value in (ValueError(), "ValueError", [ValueError, "x"], 5, None)),
    *(("give_up_on", value) for value in (int, [int])),
    *(("timeout", value) for value in (0, -1, "soon", "0s")),
    *(("unique", value) for value in ("", "a\nb", LONG, 5, None)),
    *(("id", value) for value in ("", "a b", "{a}", "a\nb", LONG, 5, None, "a\x1fb", "a\x00b")),
    *(("tags", value) for value in ("red", [""], ["a\nb"], [LONG], ["x"] * 21, 5, None, [5])),
    *(("keep_result", value) for value in (-1, "for ever", None)),
    *(("executor", value) for value in ("fibre", None, 5)),
    *(("redact", value) for value in ("x", 5)),
]


@pytest.mark.parametrize(("name", "value"), BAD_OPTIONS, ids=lambda value: repr(value)[:30])
def test_a_bad_option_is_an_error_that_names_it_and_what_is_valid(name: str, value: Any) -> None:
    app = Penstock("never-connected", url="redis://127.0.0.1:1")
    options: Any = {name: value}
    with pytest.raises(BadOption, match=name) as caught:
        app.task(**options)
    assert len(str(caught.value)) < 500

    @app.task
    async def fine() -> None: ...

    with pytest.raises(BadOption, match=name):
        fine.using(**options)
    assert issubclass(BadOption, ValueError)


def test_an_unknown_option_is_an_error_with_a_guess() -> None:
    app = Penstock("never-connected", url="redis://127.0.0.1:1")
    wrong: Any = {"retrys": 3}
    with pytest.raises(BadOption, match=r"retrys.*did you mean 'retries'.*valid are.*queue"):
        app.task(**wrong)

    @app.task
    async def fine() -> None: ...

    with pytest.raises(BadOption, match="did you mean 'retries'"):
        fine.using(**wrong)
    both: Any = {"delay": 1, "at": datetime.now(UTC)}
    with pytest.raises(BadOption, match="delay and at"):
        fine.using(**both)


@pytest.mark.parametrize("name", ["", "a b", "a{b}", "a\nb", "shop\n", LONG, "ä"])
def test_a_bad_name_of_an_app_is_refused(name: str) -> None:
    with pytest.raises(BadOption, match="namespace"):
        Penstock(name)


@pytest.mark.parametrize("name", ["a b", "a{b}", "a\nb", LONG, "*", 5, "a\x1fb"])
def test_a_bad_name_of_a_task_is_refused(name: Any) -> None:
    app = Penstock("never-connected", url="redis://127.0.0.1:1")

    async def function() -> None: ...

    with pytest.raises(BadOption, match="name="):
        app.task(name=name)(function)
    assert app.tasks == {}


def test_a_task_that_is_registered_twice_or_is_no_function_is_refused() -> None:
    app = Penstock("never-connected", url="redis://127.0.0.1:1")

    async def function() -> None: ...

    app.task(function)
    with pytest.raises(BadOption, match="twice"):
        app.task(function)
    app.task(name="another")(function)
    nothing: Any = 5
    with pytest.raises(BadOption, match="function"):
        app.task()(nothing)
    with pytest.raises(UnknownTask, match="did you mean 'another'"):
        app.find_task("anothr")


@pytest.mark.parametrize("unique", ["{nobody}", "{}", "{0}", "{user", "user}", "{user.name}{who}", LONG])
def test_a_bad_template_is_refused_when_the_task_is_made(unique: str) -> None:
    app = Penstock("never-connected", url="redis://127.0.0.1:1")

    async def function(user: int) -> None: ...

    with pytest.raises(BadOption):
        app.task(unique=unique)(function)


async def test_a_unique_key_that_a_template_makes_too_long_or_empty_is_refused(app: Penstock) -> None:
    @app.task(unique="{text}")
    async def note(text: str) -> None: ...

    for text in ("", LONG, "a\nb"):
        with pytest.raises(BadOption, match="unique"):
            note.call(text)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Backoff("quadratic"),  # type: ignore[arg-type]
        lambda: Backoff(base="x"),
        lambda: Backoff(base=-1),
        lambda: Backoff(cap="1y"),
        lambda: Backoff(jitter="yes"),  # type: ignore[arg-type]
        lambda: Retry("soon"),
        lambda: Retry(-1),
        lambda: Snooze("soon"),
        lambda: Snooze(timedelta(seconds=-1)),
    ],
)
def test_bad_times_of_backoffs_and_steering_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(BadOption):
        make()


@pytest.mark.parametrize(
    "queues", ["", "a,,b", "a b", "a:0", "a:1,b", "*,a", "a,a", "a{b}", ["a\nb"], [LONG], "a:-1,b c"]
)
def test_bad_queues_of_a_worker_are_refused(queues: Any) -> None:
    app = Penstock("never-connected", url="redis://127.0.0.1:1")
    with pytest.raises(BadOption, match="queue"):
        app.worker(queues=queues)


@pytest.mark.parametrize("options", [{"lease": "soon"}, {"lease": -1}, {"grace": "soon"}, {"grace": -1}])
def test_bad_times_of_a_worker_are_refused(options: Any) -> None:
    app = Penstock("never-connected", url="redis://127.0.0.1:1")
    with pytest.raises(BadOption):
        app.worker(**options)


# Settings


def project(folder: Path, text: str) -> Path:
    (folder / "pyproject.toml").write_text(text, "utf-8")
    return folder


def test_an_unknown_setting_is_an_error_that_says_where_and_guesses(tmp_path: Path) -> None:
    folder = project(tmp_path, "[tool.penstock]\nconcurency = 5\n")
    with pytest.raises(BadOption, match=r"tool\.penstock.*pyproject\.toml.*did you mean 'concurrency'.*payload_limit"):
        load({}, folder)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("concurrency", "0"),
        ("concurrency", '"many"'),
        ("concurrency", "[1]"),
        ("deadline", '"soon"'),
        ("deadline", "0"),
        ("deadline", "-1"),
        ("lease", '"1 week"'),
        ("payload_limit", "-5"),
        ("payload-limit", '"1 MB"'),
        ("queues", "5"),
    ],
)
def test_a_bad_setting_is_an_error_that_says_where(tmp_path: Path, name: str, value: str) -> None:
    folder = project(tmp_path, f"[tool.penstock]\n{name} = {value}\n")
    with pytest.raises(BadOption, match=rf"pyproject\.toml.*{name.replace('-', '_')}"):
        load({}, folder)


def test_a_pyproject_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match=r"pyproject\.toml"):
        load({}, project(tmp_path, "[tool.penstock\n"))
    (tmp_path / "pyproject.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadOption, match=r"pyproject\.toml"):
        load({}, tmp_path)


def test_arguments_win_over_the_environment_and_that_over_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = '[tool.penstock]\nconcurrency = 1\nlease = "1m"\ndeadline = 7\npayload-limit = 9\n'
    below = project(tmp_path, table) / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    monkeypatch.setenv("PENSTOCK_CONCURRENCY", "2")
    monkeypatch.setenv("PENSTOCK_DEADLINE", "2s")
    monkeypatch.setenv("PENSTOCK_QUEUES", "a,b")
    settings = Penstock("never-connected", url="redis://127.0.0.1:1", concurrency=3).settings
    assert (settings.concurrency, settings.deadline, settings.lease, settings.payload_limit) == (3, 2_000, 60_000, 9)
    assert settings.queues == ("a", "b")
    monkeypatch.setenv("PENSTOCK_DEADLINE", "never")
    with pytest.raises(BadOption, match=r"environment.*deadline.*never"):
        Penstock("never-connected")


def test_the_app_is_what_the_project_says_and_only_else_what_the_environment_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_APP", "environment:app")
    assert load({}, tmp_path).app == "environment:app"
    assert load({}, project(tmp_path, '[tool.penstock]\napp = "project:app"\n')).app == "project:app"


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("PENSTOCK_CONCURENCY", "PENSTOCK_CONCURRENCY"),
        ("PENSTOCK_ULR", "PENSTOCK_URL"),
        ("PENSTOCK_ENVV", "PENSTOCK_ENV"),
    ],
)
def test_a_misspelt_variable_is_an_error_with_a_suggestion(
    misspelt: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(misspelt, "2")
    with pytest.raises(BadOption, match=rf"environment: unknown variable '{misspelt}'; did you mean '{meant}'\?"):
        Penstock("never-connected")


def test_variables_that_are_no_settings_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [file.read_text("utf-8") for file in Path(penstock.__file__).parent.rglob("*.py")]
    used = {name for text in sources for name in re.findall(r'"(PENSTOCK_[A-Z_]*[A-Z])"', text)}
    of_a_service = ("PENSTOCK_SERVICE_HOST", "PENSTOCK_SERVICE_PORT_HTTP", "PENSTOCK_PORT", "PENSTOCK_PORT_80_TCP_ADDR")
    assert used >= {"PENSTOCK_ENV", "PENSTOCK_SERVER_BIN"}
    for name in (*used, *of_a_service, "PENSTOCK_LONG"):
        monkeypatch.setenv(name, "1")
    load({})


# Records that somebody spoiled


@on_both
async def test_a_payload_that_cannot_be_decoded_goes_to_the_dead_letter_as_it_is(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    garbage: list[bytes] = [
        b"",
        b"\xc1",
        b"garbage",
        b"\x93",
        msgspec.msgpack.encode(5),
        msgspec.msgpack.encode([]),
        msgspec.msgpack.encode([{}]),
        msgspec.msgpack.encode([{"x": "one"}]),
        msgspec.msgpack.encode([{"x": 1, "y": 2}]),
        msgspec.msgpack.encode([[1]]),
        msgspec.msgpack.encode([{"x": 1}, "tags"]),
        msgspec.msgpack.encode([{"x": 1}, [5]]),
        msgspec.msgpack.encode([{"x": 1}, [], "timeout"]),
        msgspec.msgpack.encode([{"x": 1}])[:-1],
    ]
    jobs = [await echo.using(id=f"with-a-header-{n}").enqueue(1) for n in range(len(garbage))]
    client, keys = await raw(app.client.engine), app.client.engine.keys
    for job, payload in zip(jobs, garbage, strict=True):
        await rewrite_payload(app.client.engine, job.id, payload)
    good = await echo.enqueue(7)
    async with app.worker():
        assert await good.result(timeout=5) == 7
        for job in jobs:
            with pytest.raises(JobFailed, match="undecodable"):
                await job.result(timeout=5)
    for job, payload in zip(jobs, garbage, strict=True):
        assert await client.zscore(keys("dead"), job.id)
        assert read_payload(await record_of(app.client.engine, job.id)) == payload
        assert (await job.status()).attempts[0].message


async def test_a_payload_that_is_gone_buries_its_job(app: Penstock) -> None:
    @app.task
    async def echo(x: int, more: str = "") -> int:
        return x

    job, good = await echo.using(id="with-a-header").enqueue(1, "." * INLINE), await echo.enqueue(2)
    client, keys = await raw(app.client.engine), app.client.engine.keys
    await client.hdel(keys("payloads"), job.id)
    async with app.worker():
        assert await good.result(timeout=5) == 2
        with pytest.raises(JobFailed, match="payload_lost"):
            await job.result(timeout=5)
    await client.hset(keys("payloads"), job.id, b"for the audit: a dead job has its payload")


async def test_a_garbled_header_stops_nobody_else_and_its_payload_is_kept_in_the_dead_letter(
    app: Penstock,
) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    job, engine = await echo.using(id="with-a-header").enqueue(1), app.client.engine
    client, keys = await raw(engine), engine.keys
    payload = await client.hget(keys("payloads"), job.id)
    await spoil(engine, job.id)
    async with app.worker():
        jobs = [await echo.enqueue(number) for number in range(10)]
        assert [await one.result(timeout=5) for one in jobs] == list(range(10))
    with pytest.raises(JobFailed, match="unreadable_header"):
        await job.result(timeout=5)
    assert await client.hget(keys("payloads"), job.id) == payload


async def test_a_result_that_was_garbled_hurts_only_who_reads_it(app: Penstock) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    job, good = await echo.enqueue(1), await echo.enqueue(2)
    await app.run_until_idle()
    client, keys = await raw(app.client.engine), app.client.engine.keys
    await client.hset(keys("results"), job.id, b"\xc1")
    found = await asyncio.gather(job.result(timeout=5), good.result(timeout=5), return_exceptions=True)
    assert isinstance(found[0], Exception)
    assert not isinstance(found[0], TimeoutError)
    assert found[1] == 2


async def test_an_error_that_was_garbled_is_shown_as_it_is(app: Penstock) -> None:
    @app.task(retries=0)
    async def fail() -> None:
        raise ValueError

    job = await fail.enqueue()
    await app.run_until_idle()
    client, keys = await raw(app.client.engine), app.client.engine.keys
    history = msgspec.msgpack.encode([[1, 5, 6, "worker", "bury", "not json"]])
    await client.hset(keys("attempts"), job.id, history)
    with pytest.raises(JobFailed, match="not json"):
        await job.result(timeout=5)
    assert (await job.status()).attempts[0].message == "not json"


async def test_an_unknown_task_in_a_record_is_put_off_and_charges_nothing(app: Penstock) -> None:
    @app.task(name="here", retries=0)
    async def here() -> int:
        return 1

    job, good = await here.using(id="with-a-header").enqueue(), await here.enqueue()
    engine = app.client.engine
    await rewrite(engine, job.id, task="not here")
    async with app.worker():
        await in_state(job, "scheduled")
        assert await good.result(timeout=5) == 1
    status = await job.status()
    assert (status.reason, status.attempt) == ("unknown_task", 0)


# What a task does to its worker


class Unshowable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class TalksRubbish(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # noqa: PLE0307  (that is the point)


class Exits(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


def group() -> BaseException:
    return ExceptionGroup("several", [ValueError("one"), ExceptionGroup("more", [KeyError("two")])])


RAISED: list[tuple[Callable[[], BaseException], str]] = [
    (Unshowable, "Unshowable"),
    (TalksRubbish, "TalksRubbish"),
    (Exits, "Exits"),
    (lambda: SystemExit(1), "SystemExit"),
    (KeyboardInterrupt, "KeyboardInterrupt"),
    (lambda: StopIteration(5), "StopIteration"),
    (StopAsyncIteration, "StopAsyncIteration"),
    (GeneratorExit, "GeneratorExit"),
    (asyncio.CancelledError, "CancelledError"),
    (lambda: asyncio.CancelledError("by myself"), "by myself"),
    (TimeoutError, "TimeoutError"),
    (RecursionError, "RecursionError"),
    (MemoryError, "MemoryError"),
    (group, "several"),
    (lambda: BaseExceptionGroup("worse", [KeyboardInterrupt()]), "worse"),
    (lambda: ValueError("\ud800 and \x00"), "ValueError"),
    (lambda: ValueError(*range(1000)), "ValueError"),
    (lambda: type("Näme", (Exception,), {})("ünï"), "ünï"),
    (lambda: PenstockError("ours"), "ours"),
    (lambda: JobFailed("of a child"), "of a child"),
]


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize(("make", "text"), RAISED, ids=[text for _, text in RAISED])
async def test_whatever_a_task_raises_fails_that_attempt_alone(
    app: Penstock, make: Callable[[], BaseException], text: str, kind: str
) -> None:
    @app.task(name="async", retries=1, backoff=[0])
    async def on_loop() -> None:
        raise make()

    @app.task(name="thread", retries=1, backoff=[0])
    def in_thread() -> None:
        raise make()

    @app.task
    async def fine() -> int:
        return 1

    async with app.worker(concurrency=1):
        job: Job[None] = await (on_loop if kind == "async" else in_thread).enqueue()
        with pytest.raises(JobFailed, match=text):
            await job.result(timeout=5)
        assert await (await fine.enqueue()).result(timeout=5) == 1
    status = await job.status()
    assert (status.reason, status.attempt, len(status.attempts)) == ("retries_exhausted", 2, 2)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_huge_message_and_traceback_are_cut_and_shown_at_both_ends(app: Penstock, kind: str) -> None:
    text = "begin" + "x" * 50_000_000 + "end"

    def deep(n: int) -> None:
        if n:
            deep(n - 1)
        raise ValueError(text)

    @app.task(name="async", retries=0)
    async def on_loop() -> None:
        deep(200)

    @app.task(name="thread", retries=0)
    def in_thread() -> None:
        deep(200)

    job: Job[None] = await (on_loop if kind == "async" else in_thread).enqueue()
    await app.run_until_idle()
    failure = (await job.status()).attempts[0]
    assert failure.message.startswith("beginx")
    assert failure.message.endswith("xend")
    assert len(failure.message) + len(failure.traceback) < 20_000
    assert failure.traceback.startswith("Traceback")


UNSTORABLE: list[Any] = [object(), lambda: None, {1j}, endless(), nested(10_000), 10**100, threading.Lock(), "\ud800"]


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("value", UNSTORABLE, ids=lambda value: type(value).__name__)
async def test_a_result_that_cannot_be_stored_goes_to_the_dead_letter_and_is_not_tried_again(
    app: Penstock, value: Any, kind: str
) -> None:
    ran: list[int] = []

    @app.task(name="async")
    async def on_loop() -> Any:
        ran.append(1)
        return value

    @app.task(name="thread")
    def in_thread() -> Any:
        ran.append(1)
        return value

    job: Job[Any] = await (on_loop if kind == "async" else in_thread).enqueue()
    await app.run_until_idle()
    with pytest.raises(JobFailed, match="result_not_storable"):
        await job.result(timeout=5)
    assert ran == [1]


async def test_a_result_over_the_limit_is_not_stored(app: Penstock) -> None:
    @app.task
    async def heavy(size: int) -> bytes:
        return b"x" * size

    job, fine = await heavy.enqueue(2**20 + 1), await heavy.enqueue(2**20 - 100)
    await app.run_until_idle()
    with pytest.raises(JobFailed, match=r"PayloadTooLarge.*1,048,57"):
        await job.result(timeout=5)
    assert len(await fine.result(timeout=5)) == 2**20 - 100


async def test_a_task_that_cancels_itself_or_its_thread_pool_hurts_only_itself(app: Penstock) -> None:
    @app.task(retries=0)
    async def itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(60)

    @app.task(retries=0)
    async def itself_before_returning() -> int:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return 1

    @app.task
    async def fine() -> int:
        return 1

    async with app.worker(concurrency=1):
        jobs: list[Job[Any]] = [await itself.enqueue(), await itself_before_returning.enqueue()]
        with pytest.raises(JobFailed, match="CancelledError"):
            await jobs[0].result(timeout=5)
        assert await jobs[1].result(timeout=5) == 1
        assert await (await fine.enqueue()).result(timeout=5) == 1


async def test_bad_steering_inside_a_task_fails_the_attempt_with_its_text(app: Penstock) -> None:
    @app.task(retries=0)
    async def wrong(how: str) -> None:
        if how == "snooze":
            raise Snooze("soon")
        if how == "class":
            raise Snooze  # type: ignore[call-arg]
        raise Bury("a\nb" + LONG)

    async with app.worker():
        for how, text in (("snooze", "soon"), ("class", "TypeError"), ("bury", "a b")):
            with pytest.raises(JobFailed, match=text):
                await (await wrong.enqueue(how)).result(timeout=5)


async def test_a_deep_recursion_in_a_task_fails_the_attempt(app: Penstock) -> None:
    @app.task(retries=0)
    async def deep() -> None:
        def down() -> None:
            down()

        down()

    job = await deep.enqueue()
    began = time.monotonic()
    await app.run_until_idle()
    with pytest.raises(JobFailed, match="RecursionError"):
        await job.result()
    assert time.monotonic() - began < 3
