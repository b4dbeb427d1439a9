"""Waiting for jobs to end: told by the server, never polling, across reconnects."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from penstock.engine.answers import Watched
from penstock.engine.engine import PAGE, Engine
from penstock.engine.keys import EVERYBODY, SEPARATOR
from penstock.engine.transport.subscriber import Subscriber
from penstock.errors import PenstockError, may_pass
from penstock.model.header import FINISHED


class Waiter:
    """Everyone who waits for a job on any event loop of this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._desks: dict[asyncio.AbstractEventLoop, _LoopWaiter] = {}

    async def wait(self, job_id: str) -> Watched:
        """How the job ended, or `missing`."""
        return await self._desk().wait(job_id)

    def _desk(self) -> "_LoopWaiter":
        loop = asyncio.get_running_loop()
        desk = self._desks.get(loop)
        if desk is None:
            for ended in [one for one in list(self._desks) if one.is_closed()]:  # copied at once: threads add theirs
                self._desks.pop(ended, None)
            desk = self._desks[loop] = _LoopWaiter(self._engine, loop)
        return desk

    @asynccontextmanager
    async def news(self, key: str) -> AsyncIterator["Signal"]:
        """Hear whenever something is said about a key, and after every reconnect."""
        desk = self._desk()
        with desk.hearing(key) as news:
            await desk.listening(news)
            yield news

    async def aclose(self) -> None:
        """Stop listening on this loop; who still waits gets an error."""
        desk = self._desks.pop(asyncio.get_running_loop(), None)
        if desk is not None:
            await desk.aclose()


def _own(error: PenstockError) -> PenstockError:
    """One for each who waits: who raises it adds its traceback."""
    return type(error)(*error.args)


class Signal:
    """Something may have happened: whoever waits looks, and waits again."""

    def __init__(self, client: str) -> None:
        self.client = client  #: whose mailbox is to be told
        self._told = asyncio.Event()
        self._error: PenstockError | None = None

    def tell(self, error: PenstockError | None = None) -> None:
        self._error = error or self._error
        self._told.set()

    async def wait(self) -> None:
        """Until it is told, or has been since the last time."""
        await self._told.wait()
        self._told.clear()
        if self._error is not None:
            raise _own(self._error)


class _LoopWaiter:
    """The waiting of one event loop: one mailbox, however many wait."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._name = "c-" + secrets.token_hex(8)
        self._waiting: dict[str, set[asyncio.Future[Watched]]] = {}
        self._asking: set[str] = set()
        self._news: dict[str, set[Signal]] = {}
        self._scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._mailbox: Subscriber | None = None

    async def wait(self, job_id: str) -> Watched:
        answer: asyncio.Future[Watched] = self._loop.create_future()
        self._waiting.setdefault(job_id, set()).add(answer)
        try:
            self._listen()
            if self._mailbox is not None and self._mailbox.open.is_set():
                self._ask(job_id)
            return await answer
        finally:
            self._forget(job_id, answer)

    @contextmanager
    def hearing(self, key: str) -> Iterator[Signal]:
        news = Signal(self._name)
        self._news.setdefault(key, set()).add(news)
        try:
            yield news
        finally:
            self._news[key].discard(news)
            if not self._news[key]:
                del self._news[key]

    async def listening(self, news: Signal) -> None:
        """Until letters arrive here: whenever the mailbox is opened, all who want news are told."""
        self._listen()
        assert self._mailbox is not None
        while not self._mailbox.open.is_set():
            await news.wait()

    async def aclose(self) -> None:
        self._tell_all(PenstockError("the app was closed while a batch was awaited"))
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

    def _listen(self) -> None:
        if self._mailbox is None:
            channels = [self._engine.keys.mailbox(name) for name in (self._name, EVERYBODY)]
            self._mailbox = Subscriber(
                self._engine.script_client, channels, letter=self._told, opened=self._look_again, failed=self._give_up
            )
            self._spawn(self._mailbox.run())

    def _told(self, _channel: str, text: bytes) -> None:
        for job_id in text.decode().split(SEPARATOR)[1:]:
            if job_id in self._news:
                for news in self._news[job_id]:
                    news.tell()
            else:
                self._ask(job_id)

    async def _look_again(self) -> None:
        self._ask_all(self._waiting)
        self._loop.call_soon(self._tell_all)  # when the mailbox says that it is open

    def _give_up(self, error: PenstockError) -> None:
        """Waiting cannot heal it: who waits is told."""
        self._fail(list(self._waiting), error)
        self._tell_all(error)

    def _tell_all(self, error: PenstockError | None = None) -> None:
        for news in [one for several in self._news.values() for one in several]:
            news.tell(error)

    def _ask_all(self, ids: Iterable[str]) -> None:
        for job_id in ids:
            self._ask(job_id)

    def _ask(self, job_id: str) -> None:
        """At the end of the tick, together with all others."""
        self._asking.add(job_id)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._scheduled = False
        asked = [job_id for job_id in self._asking if job_id in self._waiting]
        self._asking.clear()
        for start in range(0, len(asked), PAGE):
            self._spawn(self._watch(asked[start : start + PAGE]))

    async def _watch(self, ids: list[str]) -> None:
        try:
            found = await self._engine.watch(self._name, ids)
        except Exception as error:  # noqa: BLE001  (who waits must hear of it, whatever it is)
            if isinstance(error, PenstockError) and may_pass(error):
                # The mailbox has lost its connection, too, and looks again when it is back; if it has not, in a second.
                self._loop.call_later(1.0, self._ask_all, ids)
            else:
                self._fail(ids, error)
            return
        for job_id, watched in zip(ids, found, strict=True):
            if watched.state in FINISHED or watched.state == "missing":
                for answer in self._waiting.pop(job_id, set()):
                    if not answer.done():
                        answer.set_result(watched)

    def _fail(self, ids: list[str], error: Exception) -> None:
        for job_id in ids:
            for answer in self._waiting.pop(job_id, set()):
                if not answer.done():
                    unread = PenstockError(f"what is stored of job {job_id} cannot be read: {error}")
                    answer.set_exception(_own(error) if isinstance(error, PenstockError) else unread)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
