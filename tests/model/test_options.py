"""Options of tasks and calls: what each accepts, and an error that names what is valid."""

import asyncio
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import (
    Backoff,
    BadOption,
    Penstock,
    PenstockError,
    Retry,
    Snooze,
)

LONG = "x" * 10_000
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
def test_bad_times_of_backoffs_retries_and_snoozes_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(BadOption):
        make()


@pytest.mark.parametrize("options", [{"id": "\ud800"}, {"unique": "\ud800"}, {"tags": ["\ud800"]}], ids=str)
async def test_a_text_that_is_no_unicode_is_refused_and_affects_no_other_job(app: Penstock, options: Any) -> None:
    @app.task
    async def echo(x: int) -> int:
        return x

    async def bad() -> None:
        with pytest.raises(PenstockError):
            await echo.using(**options).enqueue(1)

    async with asyncio.timeout(3):
        _, good = await asyncio.gather(bad(), echo.enqueue(2))
    assert good.created


@pytest.mark.parametrize("unique", ["{x.y}", "{x[0]}", "{x:{y}}", "{x!z}", "{x:q}"])
async def test_a_template_that_cannot_be_filled_is_an_error_of_ours(app: Penstock, unique: str) -> None:
    with pytest.raises(PenstockError):  # noqa: PT012

        @app.task(unique=unique)
        async def remind(x: int) -> None: ...

        remind.call(1)
