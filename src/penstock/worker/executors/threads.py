"""Threads for jobs that block.

Most such jobs are short, and waking a thread takes longer than they do. So one thread is woken at a time: when it has
taken a job and more wait, it wakes the next. If its job blocks, the next thread runs at once; if its job ends first, it
takes the next job itself. Results are batched as well: the loop is woken once for all results that are there.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Work(Generic[T]):
    """A call that a thread makes. It cannot be stopped, so a waiter that is cancelled may wait again."""

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

    def set_result(self, result: T) -> None:
        """Set the result, on the loop."""
        self._result = (result,)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Threads:
    """As many threads as the work needs, up to a maximum; they stay until `close`."""

    def __init__(self, max_threads: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._max_threads = max_threads
        self._lock = threading.Lock()
        self._waiting: deque[Work[Any]] = deque()
        self._idle: list[threading.Lock] = []  #: each idle thread waits until its own is released
        self._threads: list[threading.Thread] = []
        self._is_waking = False
        self._closed = False
        self._ended: deque[tuple[Work[Any], Any]] = deque()
        self._is_loop_woken = False  #: the loop will deliver what has ended

    def run(self, call: Callable[[], T]) -> Work[T]:
        """Call this in a thread; it must not raise. RuntimeError if there is no thread and none can be started."""
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
        """Have threads end when nothing waits."""
        with self._lock:
            self._closed = True
            for wake in self._idle:
                wake.release()
            self._idle.clear()
        if wait:
            for thread in self._threads:
                thread.join()

    def _wake(self) -> None:
        if self._is_waking or not self._waiting:
            return
        if self._idle:
            self._idle.pop().release()
        elif len(self._threads) == self._max_threads or not self._add_thread():
            return
        self._is_waking = True

    def _add_thread(self) -> bool:
        thread = threading.Thread(target=self._serve, name=f"penstock_{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system starts no more threads: the existing ones do the work
            return False
        self._threads.append(thread)
        return True

    def _serve(self) -> None:
        wake, was_woken = threading.Lock(), True
        wake.acquire()
        while True:
            work, closed = self._take(wake, was_woken=was_woken)
            if work is not None:
                was_woken = False
                self._deliver_soon(work, work.call())
            elif closed:
                return
            else:
                wake.acquire()
                was_woken = True

    def _take(self, wake: threading.Lock, *, was_woken: bool) -> tuple[Work[Any] | None, bool]:
        """The next work, and whether the thread should end."""
        with self._lock:
            if was_woken:
                self._is_waking = False
            if self._waiting:
                work = self._waiting.popleft()
                self._wake()
                return work, False
            if not self._closed:
                self._idle.append(wake)
            return None, self._closed

    def _deliver_soon(self, work: Work[T], result: T) -> None:
        self._ended.append((work, result))
        if not self._is_loop_woken:
            self._is_loop_woken = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_loop_woken = False  # first: a result that comes now is delivered below, or wakes the loop again
        while self._ended:
            work, result = self._ended.popleft()
            work.set_result(result)
