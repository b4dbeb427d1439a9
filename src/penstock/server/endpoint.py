"""Where the server of one namespace is right now, and clients that are connected to it."""

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
from penstock.server.connection import LATE_SECONDS, SharedConnection
from penstock.server.pool import Node, Pool, SyncPool, open_async, open_sync
from penstock.server.topology import Locator, Search, result, result_sync
from penstock.server.urls import Url


@dataclass(frozen=True, slots=True)
class _LoopClient:
    """The client of one event loop; finishing its lifespan closes it."""

    node: Node
    client: redis.asyncio.Redis
    pool: Pool
    lifespan: AsyncGenerator[None, None]


@dataclass(frozen=True, slots=True)
class _SyncClient:
    node: Node
    client: redis.Redis
    pool: SyncPool


class Endpoint:
    """Clients of the verified server of one namespace: one for each event loop, and one for blocking code.

    A caller whose call failed calls `forget` and asks for a client again. Many may do so at once: they share one
    search, and when it finds the same server, the client stays, so that one failure does not end the calls of others.
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
        """`deadline`: seconds of one search; `searches_once`: if that fails, calls fail, too, and search no more."""
        self.searches_once = searches_once
        self._locator = Locator(url, slot_key, deadline)
        self._timeout = socket_timeout
        self._search = Search(self._locator.locate)
        self._loops: dict[asyncio.AbstractEventLoop, _LoopClient] = {}
        self._checks: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}
        self._inherited: list[_LoopClient] = []
        self._sync: _SyncClient | None = None
        self._lock = threading.Lock()
        _call_after_fork(self)

    def __repr__(self) -> str:
        return f"Endpoint({str(self)!r})"

    def __str__(self) -> str:
        return str(self.url)

    @property
    def url(self) -> Url:
        return self._locator.url

    # Clients

    async def client(self) -> redis.asyncio.Redis:
        """The client that this loop has of the verified server, after a search if need be."""
        if (current := self._current()) is not None:
            return current.client
        while True:
            search = self._search.join()
            node = await result(search)
            # Meanwhile another task may have forgotten that server and found the next.
            if self._search.is_current(search):
                return await self._client_of(node)

    @property
    def is_open(self) -> bool:
        """Whether this loop has a client of the verified server."""
        return self._current() is not None

    def shared_connection(self) -> SharedConnection | None:
        """The connection that all calls of this loop share, if there is one to the verified server and it answers."""
        current = self._current()
        return current.pool.open_shared if current is not None else None

    def _current(self) -> _LoopClient | None:
        current = self._loops.get(asyncio.get_running_loop())
        return current if current is not None and current.node is self._search.node else None

    def open_client_sync(self) -> redis.Redis | None:
        """The blocking client of the verified server, if there is one."""
        current = self._sync
        return current.client if current is not None and current.node is self._search.node else None

    def client_sync(self, timeout: float | None = None) -> redis.Redis:
        """The same, after a search if need be; TimeoutError if that takes longer than so many seconds."""
        if (client := self.open_client_sync()) is not None:
            return client
        node = result_sync(self._search.join(), timeout)
        with self._lock:
            if self._sync is None or self._sync.node != node:
                self._drop_sync()
                self._sync = _SyncClient(node, *open_sync(node, self._timeout))
                self._check_on_loops(node)
            return self._sync.client

    # A server that hangs: another one may have taken its place

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While the block takes longer than it should, check every second whether there is another server.

        If there is, the connections to the old one are closed, and whatever waits for it fails.
        """
        loop, timers = asyncio.get_running_loop(), list[asyncio.TimerHandle]()

        def start_timer() -> None:
            timers[:] = [loop.call_later(LATE_SECONDS, check)]

        def check() -> None:
            self._check()
            start_timer()

        start_timer()
        try:
            yield
        finally:
            timers[0].cancel()

    def _check(self) -> None:
        """Search the server in a task of this loop, unless one does so already."""
        loop = asyncio.get_running_loop()
        if loop in self._loops and loop not in self._checks:
            self._checks[loop] = loop.create_task(self._follow())
            self._checks[loop].add_done_callback(lambda _: self._checks.pop(loop, None))

    async def _follow(self) -> None:
        self._search.drop()
        with suppress(PenstockError):
            await self.client()

    def is_current_sync(self, client: redis.Redis, timeout: float) -> bool:
        """Search the server; False if it is not the one of this client any more."""
        current = self._sync
        if current is None or current.client is not client:
            return False
        self._search.drop()
        try:
            return result_sync(self._search.join(), max(timeout, 0)) == current.node
        except (PenstockError, TimeoutError):
            return True

    def _check_on_loops(self, node: Node) -> None:
        """Have the loops follow to another server: subscriptions would not notice that theirs was replaced."""
        for loop, current in list(self._loops.items()):
            if current.node != node:
                with suppress(RuntimeError):  # it has been closed
                    loop.call_soon_threadsafe(self._check)

    # Forgetting and closing

    async def forget(self) -> None:
        """Have the server searched and verified again; connections in use are left alone."""
        self._search.drop()
        current = self._loops.get(asyncio.get_running_loop())
        if current is not None:
            await current.pool.drop_idle()

    def forget_sync(self) -> None:
        self._search.drop()
        with self._lock:
            if self._sync is not None:
                self._sync.pool.drop_idle()  # those in use belong to other threads

    async def aclose(self) -> None:
        """Close this loop's client and the blocking one."""
        loop = asyncio.get_running_loop()
        current = self._loops.get(loop)
        if (check := self._checks.pop(loop, None)) is not None:
            check.cancel()
        if current is not None:
            await current.lifespan.aclose()
        self.close()

    def close(self) -> None:
        """Close the blocking client; when no loop has one either, stop being a user of the embedded server."""
        self._search.drop()
        self._abandon_closed_loops()
        with self._lock:
            self._drop_sync()
        if not self._loops:
            self._locator.release()

    async def _client_of(self, node: Node) -> redis.asyncio.Redis:
        loop = asyncio.get_running_loop()
        current = self._loops.get(loop)
        if current is not None and current.node == node:
            return current.client
        # No other task runs before the new client is in place: starting its lifespan does not suspend.
        self._abandon_closed_loops()
        opened = self._loops[loop] = self._open(node, loop)
        await anext(opened.lifespan)
        if current is not None:
            await current.lifespan.aclose()
        return opened.client

    def _open(self, node: Node, loop: asyncio.AbstractEventLoop) -> _LoopClient:
        client, pool = open_async(node)
        pool.on_late = self._check
        return _LoopClient(node, client, pool, self._lifespan(pool, loop))

    async def _lifespan(self, pool: Pool, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None, None]:
        """Close the pool with its loop at the latest: `asyncio.run` finishes open generators before it closes."""
        try:
            yield
        finally:
            if loop in self._loops and self._loops[loop].pool is pool:
                del self._loops[loop]
            await pool.retire()

    def _abandon_closed_loops(self) -> None:
        closed = [loop for loop in list(self._loops) if loop.is_closed()]  # copied at once: other threads add theirs
        for loop in closed:
            if (current := self._loops.pop(loop, None)) is not None:
                current.pool.abandon()

    def _drop_sync(self) -> None:
        if self._sync is not None:
            self._sync.pool.drop_idle()  # those in use belong to other threads
        self._sync = None

    def after_fork(self) -> None:
        """Start empty in a forked child: connections, and threads that search, belong to the parent."""
        # Kept, because closing an inherited stream would take it out of the parent's epoll as well.
        self._inherited += self._loops.values()
        self._loops = {}
        self._checks = {}
        self._sync = None
        self._lock = threading.Lock()
        self._search = Search(self._locator.locate)


def _call_after_fork(endpoint: Endpoint) -> None:
    reference = weakref.ref(endpoint)

    def after_fork() -> None:
        if (endpoint := reference()) is not None:
            endpoint.after_fork()

    os.register_at_fork(after_in_child=after_fork)
