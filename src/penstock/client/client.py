"""One app's connection to its server: engine, views, producer and waiter on one endpoint, opened with the first use."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from penstock.client.producer import Producer
from penstock.client.waiter import Waiter
from penstock.engine.engine import Engine
from penstock.engine.read.views import Views
from penstock.engine.transport.blocking import running_on_loop
from penstock.errors import PenstockError
from penstock.model.payload_codec import PayloadCodec
from penstock.server.endpoint import Endpoint
from penstock.server.urls import parse

T = TypeVar("T")


class Client:
    """What the tasks, jobs and workers of one app share."""

    def __init__(
        self,
        namespace: str,
        url: str | None,
        deadline: float,
        *,
        search: float | None = None,
        test_clock: Callable[[], int] | None = None,
        codecs: Sequence[PayloadCodec] = (),
    ) -> None:
        """`search`: seconds to look for a server, if not until the deadline."""
        # One search ends well before the deadline, so that the error says what really went wrong; then comes the next.
        slot_key = f"penstock:{{{namespace}}}:meta".encode()
        self.endpoint = Endpoint(
            parse(url),
            slot_key=slot_key,
            deadline=search or deadline * 0.4,
            socket_timeout=deadline * 0.5,
            searches_once=search is not None,
        )
        self.engine = Engine(self.endpoint, namespace, deadline=deadline, test_clock=test_clock, codecs=codecs)
        self.views = Views(self.engine)
        self.producer = Producer(self.engine, deadline)
        self.waiter = Waiter(self.engine)

    async def aclose(self) -> None:
        await self.waiter.aclose()
        await self.endpoint.aclose()

    def close(self) -> None:
        self.endpoint.close()

    # Blocking code needs an event loop for tasks, timers and subscriptions. `blocking` is the way for all else.

    def run(self, work: Coroutine[Any, Any, T], *, blocks: str = "this event loop") -> T:
        """Run an async method on an event loop of its own; an error where a loop runs already, which it would block."""
        if running_on_loop():
            work.close()
            name = getattr(work, "__name__", "this")
            raise PenstockError(f"{name}_sync() would block {blocks}: await {name}()")

        async def run_and_close() -> T:
            try:
                return await work
            finally:
                await self.waiter.aclose()

        return asyncio.run(run_and_close())

    def iterate(self, items: AsyncIterator[T], name: str) -> Iterator[T]:
        """The same for an async iterator: its loop runs while the next item is awaited."""
        if running_on_loop():
            raise PenstockError(f"{name}_sync() would block this event loop: use {name}()")
        with asyncio.Runner() as runner:
            try:
                while True:
                    try:
                        yield runner.run(anext(items))  # type: ignore[arg-type]  # an awaitable; it is a coroutine
                    except StopAsyncIteration:
                        return
            finally:
                runner.run(self.waiter.aclose())
