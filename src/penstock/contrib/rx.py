"""Observables of `reactivex`: events, and the observable queue. It needs the extra `rx`.

    from penstock.contrib import rx

    rx.events(app, kinds=["bury"]).subscribe(on_next=print)
    rx.stream(app.queue("mail"), limit=10).subscribe(on_next=handle)    # handle(lease): async with lease as job: ...

Subscribe on a running event loop; items arrive there. Disposing of a subscription ends it: leases that a stream has
not settled are released at once.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

try:
    import reactivex
    from reactivex import abc
    from reactivex.disposable import Disposable
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{__name__} needs reactivex: pip install 'penstock[rx]'", name=error.name) from None

from penstock.api.events import Event, Since
from penstock.api.queue import QueueControl
from penstock.app import Penstock
from penstock.worker.queue_stream import QueueLease

T = TypeVar("T")


def events(
    app: Penstock, *, queue: str | None = None, since: Since = None, kinds: Iterable[str] | str | None = None
) -> "reactivex.Observable[Event]":
    """The events of `app.events`; each subscription has its own position in the stream."""
    kinds = kinds if kinds is None or isinstance(kinds, str) else tuple(kinds)

    async def emit_all(emit: Callable[[Event], None]) -> None:
        async for event in app.events(queue=queue, since=since, kinds=kinds):
            emit(event)

    return _observable(emit_all)


def stream(queue: QueueControl, limit: int = 1) -> "reactivex.Observable[QueueLease]":
    """The leases of `queue.stream`: at most `limit` are unsettled, however slow the subscriber is."""

    async def emit_all(emit: Callable[[QueueLease], None]) -> None:
        async with queue.stream(limit=limit) as leases:
            async for lease in leases:
                emit(lease)

    return _observable(emit_all)


def from_async(items: Callable[[], AsyncIterator[T]]) -> "reactivex.Observable[T]":
    """An observable of an async iterator, which is created for each subscription."""

    async def emit_all(emit: Callable[[T], None]) -> None:
        async for item in items():
            emit(item)

    return _observable(emit_all)


def _observable(emit_all: Callable[[Callable[[T], None]], Awaitable[None]]) -> "reactivex.Observable[T]":
    def subscribe(observer: abc.ObserverBase[T], _scheduler: Any = None) -> abc.DisposableBase:
        async def run() -> None:
            try:
                await emit_all(observer.on_next)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001  (that is how an Observable says so)
                observer.on_error(error)
            else:
                observer.on_completed()

        loop = asyncio.get_running_loop()
        task = loop.create_task(run())

        def dispose() -> None:
            with suppress(RuntimeError):  # the loop was closed, and the task with it
                loop.call_soon_threadsafe(task.cancel)

        return Disposable(dispose)

    return reactivex.create(subscribe)
