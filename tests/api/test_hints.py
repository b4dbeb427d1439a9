"""Hints: a name from another library, or a misspelt one, is refused with the name that it has here."""

import importlib
import sys
from typing import Any

import pytest

from penstock import BadArguments, BadOption, Penstock, PenstockError

app = Penstock("hints")


@app.task
async def send(user: int, subject: Any = "hi") -> None: ...


@pytest.mark.parametrize("name", ["delay", "send", "apply_async", "send_with_options"])
def test_a_name_from_another_library_raises_an_error_with_ours(name: str) -> None:
    with pytest.raises(AttributeError, match=r"enqueue_sync\(…\) from blocking code"):
        getattr(send, name)
    assert not hasattr(send, name)
    assert name not in dir(send)


def test_an_unknown_attribute_is_an_ordinary_error() -> None:
    with pytest.raises(AttributeError, match=r"'Task' object has no attribute 'nothing'$"):
        getattr(send, "nothing")  # noqa: B009  (a type checker would see it)
    assert not hasattr(send, "nothing")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("retry", "retries"), ("countdown", "delay"), ("eta", "at"), ("time_limit", "timeout"), ("prioriti", "priority")],
)
def test_an_option_of_another_library_is_refused_with_its_name_here(theirs: str, ours: str) -> None:
    using: Any = send.using
    with pytest.raises(BadOption, match=f"unknown option '{theirs}'; did you mean '{ours}'"):
        using(**{theirs: 1})


def test_a_task_is_guessed_without_its_module() -> None:
    with pytest.raises(PenstockError, match=f"did you mean '{send.name}'"):
        app.find_task("sent")


def test_an_argument_that_does_not_fit_is_named() -> None:
    with pytest.raises(BadArguments, match="user: Expected `int`, got `str`"):
        send.call("x")  # type: ignore[arg-type]
    with pytest.raises(BadArguments, match="object cannot be stored: pass plain data"):
        send.call(7, object())


def test_a_url_that_is_none_is_refused_where_it_is_written() -> None:
    with pytest.raises(BadOption, match="is no URL: write embedded://"):
        Penstock("hints", url="localhost:6379")


@pytest.mark.parametrize("function", [7, lambda job, call_next: None])
def test_a_middleware_that_is_no_async_function_is_refused(function: Any) -> None:
    with pytest.raises(BadOption, match=r"async def \(job, call_next\)"):
        app.middleware(function)


async def test_blocking_methods_are_refused_on_an_event_loop() -> None:
    with pytest.raises(PenstockError, match=r"await run_until_idle\(\)"):
        app.run_until_idle_sync()


def test_an_extra_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("penstock.http", "penstock.contrib.rx"))]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("starlette", "starlette.requests", "reactivex"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(PenstockError, match=r"pip install 'penstock\[http\]'"):
        app.asgi()
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'penstock\[rx\]'"):
        importlib.import_module("penstock.contrib.rx")
