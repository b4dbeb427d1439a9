"""Async methods for blocking code: `status_sync = blocking(status)`.

A coroutine that awaits only calls to the server needs no event loop: while `run_blocking` drives it, each of them
blocks this thread instead. What needs a loop (tasks, timers) goes through `Client.run`, which starts one.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from threading import get_ident
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

from penstock.errors import PenstockError

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")


#: Thread that drives a coroutine → the event loop that it ran already, if any. Not a context variable: a task that is
#: created meanwhile would inherit that. Mostly empty, so that async code pays 30 ns for asking.
_driving: Final[dict[int, asyncio.AbstractEventLoop | None]] = {}
_NOT_DRIVING: Final = object()


def is_blocking() -> bool:
    """Whether this thread drives a coroutine without an event loop, so that calls to the server must block.

    A loop that such a coroutine starts inside itself, as `asyncio.run` in a user's generator does, works as usual.
    """
    return bool(_driving) and _driving.get(get_ident(), _NOT_DRIVING) is _running_loop()


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in this thread; an error if it awaits anything but calls to the server."""
    thread = get_ident()
    before = _driving.get(thread, _NOT_DRIVING)
    _driving[thread] = _running_loop()
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    except RuntimeError as error:
        if str(error) == "no running event loop":
            raise _needs_loop(coroutine) from error
        raise
    else:
        coroutine.close()
        raise _needs_loop(coroutine)
    finally:
        if before is _NOT_DRIVING:
            del _driving[thread]
        else:
            _driving[thread] = cast("asyncio.AbstractEventLoop | None", before)


def blocking(method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[S, P], T]:
    """The `_sync` twin of an async method, with its signature."""

    @wraps(method)
    def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_blocking(method(self, *args, **kwargs))

    twin.__name__ += "_sync"
    twin.__qualname__ += "_sync"
    twin.__doc__ = "The same from blocking code."
    return twin


def running_on_loop() -> bool:
    """Whether this thread is running an event loop."""
    return _running_loop() is not None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    return asyncio._get_running_loop()  # noqa: SLF001  (documented; the public one raises where there is none)


def _needs_loop(coroutine: Coroutine[Any, Any, Any]) -> PenstockError:
    name = getattr(coroutine, "__qualname__", repr(coroutine))
    return PenstockError(f"{name} awaits something that needs an event loop: await it in async code")
