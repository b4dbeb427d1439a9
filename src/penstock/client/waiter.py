"""Waits for jobs to end, by messages from the server instead of polling; reconnects lose none."""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from penstock.engine.answers import Watched
from penstock.engine.engine import PAGE, Engine
from penstock.engine.keys import ALL_CLIENTS, SEPARATOR
from penstock.engine.transport.blocking import is_blocking, running_on_loop
from penstock.engine.transport.subscriber import BlockingSubscriber, Subscriber
from penstock.errors import PenstockError, may_pass
from penstock.model.header import FINISHED


class Waiter:
    """Waits for jobs and batches on any event loop of this process, and for jobs in blocking code."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop_waiters: dict[asyncio.AbstractEventLoop, _LoopWaiter] = {}
        self._token = secrets.token_hex(6)

    async def wait(self, job_id: str, timeout: float | None = None) -> Watched:
        """How the job ended, or `missing`; TimeoutError if it has not ended within so many seconds."""
        try:
            if is_blocking():
                return self._wait_blocking(job_id, timeout)
            async with asyncio.timeout(timeout):
                return await self._loop_waiter().wait(job_id)
        except TimeoutError:
            raise TimeoutError(f"job {job_id} has not ended within {timeout} s") from None

    def _wait_blocking(self, job_id: str, timeout: float | None) -> Watched:
        if running_on_loop():
            raise PenstockError("result_sync() would block the event loop that may have to run the job: await result()")
        # All blocking waits of this process share one name: after a message each of them checks its own job.
        client = f"c-{self._token}-{os.getpid()}"

        def check() -> Watched | None:
            (watched,) = self._engine.watch(client, [job_id]).sync()
            return watched if _has_ended(watched) else None

        return BlockingSubscriber(self._engine.script_client, _channels(self._engine, client)).wait_until(
            check, timeout
        )

    def _loop_waiter(self) -> "_LoopWaiter":
        loop = asyncio.get_running_loop()
        waiter = self._loop_waiters.get(loop)
        if waiter is None:
            for known in list(self._loop_waiters):  # a copy: other threads add theirs
                if known.is_closed():
                    self._loop_waiters.pop(known, None)
            waiter = self._loop_waiters[loop] = _LoopWaiter(self._engine, loop)
        return waiter

    @asynccontextmanager
    async def signal(self, key: str) -> AsyncIterator["Signal"]:
        """A signal that is set by every message about a key, and after every reconnect."""
        waiter = self._loop_waiter()
        with waiter.signal(key) as signal:
            await waiter.subscribed(signal)
            yield signal

    async def aclose(self) -> None:
        """Stop listening on this loop; callers that still wait get an error."""
        waiter = self._loop_waiters.pop(asyncio.get_running_loop(), None)
        if waiter is not None:
            await waiter.aclose()


def _channels(engine: Engine, client: str) -> list[str]:
    return [engine.keys.channel(name) for name in (client, ALL_CLIENTS)]


def _has_ended(watched: Watched) -> bool:
    return watched.state in FINISHED or watched.state == "missing"


def _copy(error: PenstockError) -> PenstockError:
    """A copy for each caller, because raising an error adds to its traceback."""
    return type(error)(*error.args)


class Signal:
    """Set when something may have happened: the waiting caller checks, and waits again."""

    def __init__(self, client: str) -> None:
        self.client = client  #: the name under which the server sends messages here
        self._event = asyncio.Event()
        self._error: PenstockError | None = None

    def set(self, error: PenstockError | None = None) -> None:
        self._error = error or self._error
        self._event.set()

    async def wait(self) -> None:
        """Wait until it is set, unless it has been set since the last wait."""
        await self._event.wait()
        self._event.clear()
        if self._error is not None:
            raise _copy(self._error)


class _LoopWaiter:
    """The waiting callers of one event loop, which share one subscription."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._client = "c-" + secrets.token_hex(8)
        self._waiting: dict[str, set[asyncio.Future[Watched]]] = {}
        self._to_watch: set[str] = set()  #: ids that the next call of `watch` takes
        self._signals: dict[str, set[Signal]] = {}
        self._is_scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscriber: Subscriber | None = None

    async def wait(self, job_id: str) -> Watched:
        answer: asyncio.Future[Watched] = self._loop.create_future()
        self._waiting.setdefault(job_id, set()).add(answer)
        try:
            if self._subscribe().open.is_set():
                self._watch_soon(job_id)
            return await answer
        finally:
            self._forget(job_id, answer)

    @contextmanager
    def signal(self, key: str) -> Iterator[Signal]:
        signal = Signal(self._client)
        self._signals.setdefault(key, set()).add(signal)
        try:
            yield signal
        finally:
            self._signals[key].discard(signal)
            if not self._signals[key]:
                del self._signals[key]

    async def subscribed(self, signal: Signal) -> None:
        """Wait until messages arrive here. Every signal is set when the subscription opens."""
        subscriber = self._subscribe()
        while not subscriber.open.is_set():
            await signal.wait()

    async def aclose(self) -> None:
        self._set_all(PenstockError("the app was closed while a batch was awaited"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for answers in list(self._waiting.values()):
            for answer in answers:
                if not answer.done():
                    answer.set_exception(PenstockError("the app was closed while a result was awaited"))

    def _forget(self, job_id: str, answer: "asyncio.Future[Watched]") -> None:
        answers = self._waiting.get(job_id, set())
        answers.discard(answer)
        if not answers:
            self._waiting.pop(job_id, None)

    def _subscribe(self) -> Subscriber:
        if self._subscriber is None:
            self._subscriber = Subscriber(
                self._engine.script_client,
                _channels(self._engine, self._client),
                on_message=self._received,
                on_connect=self._check_all,
                on_lasting_error=self._give_up,
            )
            self._spawn(self._subscriber.run())
        return self._subscriber

    def _received(self, _channel: str, text: bytes) -> None:
        for key in text.decode().split(SEPARATOR)[1:]:
            if key in self._signals:
                for signal in self._signals[key]:
                    signal.set()
            else:
                self._watch_soon(key)

    async def _check_all(self) -> None:
        """Check everything after a connect: messages may have been lost before."""
        self._watch_all_soon(self._waiting)
        self._loop.call_soon(self._set_all)  # after the subscriber has said that it is open

    def _give_up(self, error: PenstockError) -> None:
        """Fail all waiting callers with an error that does not pass by itself."""
        self._fail(list(self._waiting), error)
        self._set_all(error)

    def _set_all(self, error: PenstockError | None = None) -> None:
        for signal in [signal for signals in self._signals.values() for signal in signals]:
            signal.set(error)

    def _watch_all_soon(self, ids: Iterable[str]) -> None:
        for job_id in ids:
            self._watch_soon(job_id)

    def _watch_soon(self, job_id: str) -> None:
        """Watch these at the end of this turn of the loop, in one call."""
        self._to_watch.add(job_id)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._watch_pages)

    def _watch_pages(self) -> None:
        self._is_scheduled = False
        ids = [job_id for job_id in self._to_watch if job_id in self._waiting]
        self._to_watch.clear()
        for start in range(0, len(ids), PAGE):
            self._spawn(self._watch(ids[start : start + PAGE]))

    async def _watch(self, ids: list[str]) -> None:
        try:
            answers = await self._engine.watch(self._client, ids)
        except Exception as error:  # noqa: BLE001  (who waits must get it, whatever it is)
            if isinstance(error, PenstockError) and may_pass(error):
                # The subscription has lost its connection, too, and checks when it is back; else this does in a second.
                self._loop.call_later(1.0, self._watch_all_soon, ids)
            else:
                self._fail(ids, error)
            return
        for job_id, watched in zip(ids, answers, strict=True):
            if _has_ended(watched):
                for answer in self._waiting.pop(job_id, set()):
                    if not answer.done():
                        answer.set_result(watched)

    def _fail(self, ids: list[str], error: Exception) -> None:
        for job_id in ids:
            for answer in self._waiting.pop(job_id, set()):
                if not answer.done():
                    unreadable = PenstockError(f"what is stored of job {job_id} cannot be read: {error}")
                    answer.set_exception(_copy(error) if isinstance(error, PenstockError) else unreadable)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
