"""Where the server of one namespace is right now, and verified connections to it."""

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import redis
import redis.asyncio

from penstock.errors import PenstockError
from penstock.server.connection import LATE, SharedConnection
from penstock.server.locate import Locator
from penstock.server.pool import Node, Pool, SyncPool, open_async, open_sync
from penstock.server.search import Search, result, result_sync
from penstock.server.urls import Url


@dataclass(frozen=True, slots=True)
class _Async:
    """The client of one event loop; finishing its life closes it."""

    node: Node
    client: redis.asyncio.Redis
    pool: Pool
    life: AsyncGenerator[None, None]


@dataclass(frozen=True, slots=True)
class _Sync:
    node: Node
    client: redis.Redis
    pool: SyncPool


class Endpoint:
    """Where the server of one namespace is right now, and verified connections to it.

    Whoever fails calls ``forget`` and asks for a client again. Many may do so at once: they share one search, and when
    it finds the same server as before, the client stays, so that nobody's call is cut off by another's failure.
    """

    def __init__(
        self,
        url: Url,
        *,
        slot_key: bytes,
        deadline: float = 5.0,
        socket_timeout: float = 5.0,
        searches_once: bool = False,
    ) -> None:
        """`deadline`: seconds of one search; `searches_once`: whoever needs a client is told if that fails."""
        self.searches_once = searches_once
        self._locator = Locator(url, slot_key, deadline)
        self._timeout = socket_timeout
        self._search = Search(self._locator.locate)
        self._asyncs: dict[asyncio.AbstractEventLoop, _Async] = {}
        self._looking: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}
        self._inherited: list[_Async] = []
        self._sync: _Sync | None = None
        self._lock = threading.Lock()
        _tell_after_fork(self)

    def __repr__(self) -> str:
        return f"Endpoint({str(self)!r})"

    def __str__(self) -> str:
        return str(self._locator.url)

    async def client(self) -> redis.asyncio.Redis:
        """Give this loop's client of the server, which has been found and verified."""
        current = self._asyncs.get(asyncio.get_running_loop())
        if current is not None and current.node is self._search.found:
            return current.client
        while True:
            search = self._search.join()
            node = await result(search)
            # While this task slept another may have forgotten that server and found the next.
            if self._search.is_current(search):
                return await self._client_of(node)

    @property
    def is_open(self) -> bool:
        """Whether this loop has a client of a verified server."""
        current = self._asyncs.get(asyncio.get_running_loop())
        return current is not None and current.node is self._search.found

    def pipe(self) -> SharedConnection | None:
        """Give the connection that all of this loop share, if there is one to a verified server, and it answers."""
        current = self._asyncs.get(asyncio.get_running_loop())
        return current.pool.at_hand if current is not None and current.node is self._search.found else None

    def at_hand_sync(self) -> redis.Redis | None:
        """Give this process' blocking client of the server, if that has been found and verified."""
        current = self._sync
        return current.client if current is not None and current.node is self._search.found else None

    def client_sync(self, within: float | None = None) -> redis.Redis:
        """The same, after a search if need be; TimeoutError if it is not found within so many seconds."""
        if (found := self.at_hand_sync()) is not None:
            return found
        node = result_sync(self._search.join(), within)
        with self._lock:
            if self._sync is None or self._sync.node != node:
                self._drop_sync()
                self._sync = _Sync(node, *open_sync(node, self._timeout))
                self._tell_loops(node)
            return self._sync.client

    # A server that hangs: another one may have taken its place

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look for the right server as long as this takes, from the time on when it is late.

        If there is another one, the connections to the old one end, and so does whatever waits for it.
        """
        loop, timers = asyncio.get_running_loop(), list[asyncio.TimerHandle]()

        def wait() -> None:
            timers[:] = [loop.call_later(LATE, look)]

        def look() -> None:
            self._look_again()
            wait()

        wait()
        try:
            yield
        finally:
            timers[0].cancel()

    def _look_again(self) -> None:
        """On this loop, in the background, unless that is done already."""
        loop = asyncio.get_running_loop()
        if loop in self._asyncs and loop not in self._looking:
            self._looking[loop] = loop.create_task(self._follow())
            self._looking[loop].add_done_callback(lambda _: self._looking.pop(loop, None))

    async def _follow(self) -> None:
        self._search.drop()
        with suppress(PenstockError):
            await self.client()

    def is_right_sync(self, client: redis.Redis, within: float) -> bool:
        """Whether this client's server still is the one to ask, as far as can be found out."""
        current = self._sync
        if current is None or current.client is not client:
            return False
        self._search.drop()
        try:
            return result_sync(self._search.join(), max(within, 0)) == current.node
        except (PenstockError, TimeoutError):
            return True

    def _tell_loops(self, node: Node) -> None:
        """Those who only listen there would not notice that the server is another one."""
        for loop, current in list(self._asyncs.items()):
            if current.node != node:
                with suppress(RuntimeError):  # it has been closed
                    loop.call_soon_threadsafe(self._look_again)

    async def forget(self) -> None:
        """Have the server searched and verified anew; idle connections are dropped, those in use are left alone."""
        self._search.drop()
        current = self._asyncs.get(asyncio.get_running_loop())
        if current is not None:
            await current.pool.drop_idle()

    def forget_sync(self) -> None:
        self._search.drop()
        with self._lock:
            if self._sync is not None:
                self._sync.pool.drop_idle()  # those in use belong to other threads

    async def aclose(self) -> None:
        """Close this loop's client and the blocking one."""
        current = self._asyncs.get(asyncio.get_running_loop())
        if (looking := self._looking.pop(asyncio.get_running_loop(), None)) is not None:
            looking.cancel()
        if current is not None:
            await current.life.aclose()
        self.close()

    def close(self) -> None:
        """Close the blocking client; when no loop has one either, stop being a user of the embedded server."""
        self._search.drop()
        self._abandon_closed_loops()
        with self._lock:
            self._drop_sync()
        if not self._asyncs:
            self._locator.release()

    async def _client_of(self, node: Node) -> redis.asyncio.Redis:
        loop = asyncio.get_running_loop()
        current = self._asyncs.get(loop)
        if current is not None and current.node == node:
            return current.client
        # No other task runs before the new client is in place: starting its life does not suspend.
        self._abandon_closed_loops()
        fresh = self._asyncs[loop] = self._open(node, loop)
        await anext(fresh.life)
        if current is not None:
            await current.life.aclose()
        return fresh.client

    def _open(self, node: Node, loop: asyncio.AbstractEventLoop) -> _Async:
        client, pool = open_async(node)
        pool.on_late = self._look_again
        return _Async(node, client, pool, self._life(pool, loop))

    async def _life(self, pool: Pool, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None, None]:
        """Close the pool at the latest with its loop: `asyncio.run` finishes open generators before it closes."""
        try:
            yield
        finally:
            if loop in self._asyncs and self._asyncs[loop].pool is pool:
                del self._asyncs[loop]
            await pool.retire()

    def _abandon_closed_loops(self) -> None:
        for loop in [
            loop for loop in list(self._asyncs) if loop.is_closed()
        ]:  # copied at once: other threads add theirs
            if (ended := self._asyncs.pop(loop, None)) is not None:
                ended.pool.abandon()

    def _drop_sync(self) -> None:
        if self._sync is not None:
            self._sync.pool.drop_idle()  # those in use belong to other threads
        self._sync = None

    def after_fork(self) -> None:
        """Begin anew in a forked child: connections, and threads that search, belong to the parent."""
        # Kept, not dropped: closing an inherited stream would take it out of the parent's epoll as well.
        self._inherited += self._asyncs.values()
        self._asyncs = {}
        self._looking = {}
        self._sync = None
        self._lock = threading.Lock()
        self._search = Search(self._locator.locate)


def _tell_after_fork(endpoint: Endpoint) -> None:
    alive = weakref.ref(endpoint)

    def tell() -> None:
        if (endpoint := alive()) is not None:
            endpoint.after_fork()

    os.register_at_fork(after_in_child=tell)
