"""One search for the server, shared by all who need it at the same time."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future

from penstock.errors import PenstockError
from penstock.server.pool import Node


class Search:
    """Runs ``locate`` in a thread of its own; what it found is kept until it is dropped.

    A hundred tasks whose connection broke wait for one search, whatever loop or thread they are on.
    """

    def __init__(self, locate: Callable[[], Node]) -> None:
        self._locate = locate
        self._lock = threading.Lock()
        self._current: Future[Node] | None = None
        self.found: Node | None = None  #: the same object as long as it is the same server; none while that is open
        self._last: Node | None = None

    def join(self) -> Future[Node]:
        """Give the search that runs or has succeeded; start one if there is none."""
        with self._lock:
            if self._current is None or _failed(self._current):
                self._current = self._start()
            elif self._current.done():
                self.found = self._current.result()
            return self._current

    def is_current(self, search: Future[Node]) -> bool:
        return search is self._current

    def drop(self) -> None:
        """Forget what was found. A search that still runs is as good as a new one."""
        with self._lock:
            if self._current is not None and self._current.done():
                self._current = self.found = None

    def _start(self) -> Future[Node]:
        # Not in the loop's own executor: users' blocking calls may fill that, and its shutdown would wait for us.
        search: Future[Node] = Future()
        search.set_running_or_notify_cancel()
        threading.Thread(target=self._run, args=(search,), name="penstock-search", daemon=True).start()
        return search

    def _run(self, search: Future[Node]) -> None:
        try:
            search.set_result(self._known(self._locate()))
        except BaseException as error:  # noqa: BLE001 - whoever waits must hear of it, whatever it is
            search.set_exception(error)

    def _known(self, node: Node) -> Node:
        with self._lock:
            self._last = self._last if node == self._last else node
            return self._last


async def result(search: Future[Node]) -> Node:
    try:
        # Almost every call finds the search done long ago and should not make a turn through the loop for that.
        return search.result() if search.done() else await asyncio.wrap_future(search)
    except PenstockError as error:
        raise _own(error) from error


def result_sync(search: Future[Node], within: float | None = None) -> Node:
    """The same from blocking code; TimeoutError if it is not found within so many seconds."""
    try:
        return search.result(within)
    except PenstockError as error:
        raise _own(error) from error


def _own(error: PenstockError) -> PenstockError:
    """Give each waiter an error of its own: one raised in many tasks collects all their tracebacks."""
    return type(error)(*error.args)


def _failed(search: Future[Node]) -> bool:
    return search.done() and search.exception() is not None
