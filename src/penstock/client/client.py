"""One app's way to its server: engine, views, producer and waiter on one endpoint, opened with the first use."""

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from penstock.client.producer import Producer
from penstock.client.waiter import Waiter
from penstock.engine.answers import Watched
from penstock.engine.engine import Engine
from penstock.engine.keys import EVERYBODY
from penstock.engine.read.views import Views
from penstock.engine.transport.retry_policy import lasting
from penstock.engine.transport.subscriber import ANSWER, QUIET
from penstock.errors import PenstockError
from penstock.model.header import FINISHED
from penstock.server.endpoint import Endpoint
from penstock.server.urls import parse

T = TypeVar("T")


class Client:
    """Everything that tasks, jobs and workers of one app share."""

    def __init__(
        self,
        namespace: str,
        url: str | None,
        deadline: float,
        *,
        search: float | None = None,
        test_clock: Callable[[], int] | None = None,
    ) -> None:
        """`search`: seconds that a server is looked for, if not until the deadline."""
        # One search ends well before the deadline, so that the error says what really went wrong; then comes the next.
        slot_key = f"penstock:{{{namespace}}}:meta".encode()
        self.endpoint = Endpoint(
            parse(url),
            slot_key=slot_key,
            deadline=search or deadline * 0.4,
            socket_timeout=deadline * 0.5,
            searches_once=search is not None,
        )
        self.engine = Engine(self.endpoint, namespace, deadline=deadline, test_clock=test_clock)
        self._token = secrets.token_hex(6)
        self.views = Views(self.engine)
        self.producer = Producer(self.engine, deadline)
        self.waiter = Waiter(self.engine)

    async def aclose(self) -> None:
        await self.waiter.aclose()
        await self.endpoint.aclose()

    def close(self) -> None:
        self.endpoint.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a question that is only written for event loops, from blocking code."""

        async def once() -> T:
            try:
                return await work
            finally:
                await self.waiter.aclose()

        return asyncio.run(once())

    def wait_sync(self, job_id: str, timeout: float | None) -> Watched:
        """How a job ended, from blocking code: told by the server on a connection of its own."""
        until = None if timeout is None else time.monotonic() + timeout
        # One name for all waiting of this process: whoever is told looks whether it was meant.
        name = f"c-{self._token}-{os.getpid()}"
        while True:
            try:
                return self._listen(name, job_id, until)
            except (RedisError, OSError, PenstockError) as error:
                if (hopeless := lasting(error, self.endpoint)) is not None:
                    raise hopeless from None
                self.endpoint.forget_sync()
                if until is not None and time.monotonic() > until:
                    raise TimeoutError(f"job {job_id} has not ended within {timeout} s") from None
                time.sleep(0.1)

    def _listen(self, name: str, job_id: str, until: float | None) -> Watched:
        client: Any = self.endpoint.client_sync(None if until is None else max(until - time.monotonic(), 0))
        listener = client.pubsub()
        try:
            listener.ssubscribe(*(self.engine.keys.mailbox(one) for one in (name, EVERYBODY)))
            while True:
                (watched,) = self.engine.watch(name, [job_id]).sync()
                if watched.state in FINISHED or watched.state == "missing":
                    return watched
                self._letter(listener, job_id, until)
        finally:
            listener.close()

    def _letter(self, listener: Any, job_id: str, until: float | None) -> None:
        """Until a letter comes; after some quiet seconds the connection is tried."""
        pinged = False
        while True:
            quiet = ANSWER if pinged else QUIET
            left = quiet if until is None else min(quiet, until - time.monotonic())
            if left <= 0:
                raise TimeoutError(f"job {job_id} has not ended in time")
            message = listener.get_message(timeout=left)
            if message is not None and message["type"] == "smessage":
                return
            if message is None and pinged and left == quiet:
                raise RedisTimeoutError("the connection on which a result is awaited does not answer")
            if message is None:
                listener.ping()
            pinged = message is None
