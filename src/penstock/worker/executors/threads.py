"""Threads for jobs that block the one they run in.

Most of them are short, and to wake a thread takes longer than such a job does. So one thread at a time is on its way:
when it has taken a job and finds more, it wakes the next. What waits for something lets that one run at once; what is
done before takes the next job itself. Results come back together as well: the loop is woken once for all that are
there.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Work(Generic[T]):
    """A call that a thread makes. It cannot be stopped, so whoever waits for it and is cancelled may wait again."""

    __slots__ = ("_loop", "_result", "_waiter", "call")

    def __init__(self, call: Callable[[], T]) -> None:
        self.call = call
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._result: tuple[T] | None = None

    async def result(self) -> T:
        while self._result is None:
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._result[0]

    def end(self, result: T) -> None:
        """On the loop: it is done."""
        self._result = (result,)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Threads:
    """As many threads as work needs, up to a number; they are there until `close`."""

    def __init__(self, most: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._most = most
        self._lock = threading.Lock()
        self._waiting: deque[Work[Any]] = deque()
        self._idle: list[threading.Lock] = []  #: each idle thread waits until its own is released
        self._threads: list[threading.Thread] = []
        self._is_one_coming = False
        self._closed = False
        self._ended: deque[tuple[Work[Any], Any]] = deque()
        self._is_told = False  #: will the loop look at what ended?

    def run(self, call: Callable[[], T]) -> Work[T]:
        """Have a thread call this, which must not raise; a RuntimeError if there is none and none can be started."""
        work = Work(call)
        with self._lock:
            if self._closed:
                raise RuntimeError("the worker has ended: nothing more runs in its threads")
            self._waiting.append(work)
            self._wake()
            if not self._threads:
                self._waiting.remove(work)
                raise RuntimeError("the system starts no thread")
        return work

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self, *, wait: bool = False) -> None:
        """Threads end when they have nothing to do."""
        with self._lock:
            self._closed = True
            for turn in self._idle:
                turn.release()
            self._idle.clear()
        if wait:
            for thread in self._threads:
                thread.join()

    def _wake(self) -> None:
        if self._is_one_coming or not self._waiting:
            return
        if self._idle:
            self._idle.pop().release()
        elif len(self._threads) == self._most or not self._add_thread():
            return
        self._is_one_coming = True

    def _add_thread(self) -> bool:
        thread = threading.Thread(target=self._serve, name=f"penstock_{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system gives no more: those that are there go on
            return False
        self._threads.append(thread)
        return True

    def _serve(self) -> None:
        turn, came = threading.Lock(), True
        turn.acquire()
        while True:
            work, closed = self._take(turn, came=came)
            if work is not None:
                came = False
                self._end(work, work.call())
            elif closed:
                return
            else:
                turn.acquire()
                came = True

    def _take(self, turn: threading.Lock, *, came: bool) -> tuple[Work[Any] | None, bool]:
        """What is next, and whether there will be nothing any more."""
        with self._lock:
            if came:
                self._is_one_coming = False
            if self._waiting:
                work = self._waiting.popleft()
                self._wake()
                return work, False
            if not self._closed:
                self._idle.append(turn)
            return None, self._closed

    def _end(self, work: Work[T], result: T) -> None:
        self._ended.append((work, result))
        if not self._is_told:
            self._is_told = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self._is_told = False  # first: what ends from now on is found below, or tells again
        while self._ended:
            work, result = self._ended.popleft()
            work.end(result)
