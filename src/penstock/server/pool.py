"""Pools of connections to one server, for event loops and for blocking code, with the same settings everywhere."""

import asyncio
import gc
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from penstock.server.connection import Connection, SharedConnection, SyncConnection
from penstock.server.paired_redis import PairedRedis, PairedSyncRedis
from penstock.server.redis_internals import detach_stream, stream_writer
from penstock.server.urls import Address, Url, show

C = TypeVar("C", bound=Connection)

CONNECT_TIMEOUT = 2.0
# redis-py's own limit of 100 would refuse the 101st task that waits on a blocking read; the server has its maxclients.
MAX_CONNECTIONS = 2**31


@dataclass(frozen=True, slots=True, repr=False)
class Node:
    """One server, and what it takes to connect to it."""

    url: Url
    address: Address | Path
    run_id: str | None = None  #: differs after a restart, which no connection survives

    def __str__(self) -> str:
        return str(self.address) if isinstance(self.address, Path) else show(self.address)

    def __repr__(self) -> str:
        return f"Node({self}, run_id={self.run_id})"


class Pool(redis.asyncio.ConnectionPool):
    """The pool of one event loop: one shared connection for scripts, and redis-py's connections for everything else.

    It keeps its own lists of redis-py's connections, as redis-py's have locks, counters and events on top, for each
    call, and cannot close the idle ones while others are in use.
    """

    on_late: Callable[[], None] | None = None  #: called while an answer on the shared connection is late

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._own: list[Connection] = []  #: all connections that redis-py does not know of
        self._shared: SharedConnection | None = None
        self._opening = asyncio.Lock()
        self._idle: list[Any] = []
        self._busy: set[Any] = set()
        self._is_retired = False

    # The connections that are ours

    @property
    def open_shared(self) -> SharedConnection | None:
        """The shared connection, if there is one and it answers."""
        return self._shared if self._shared is not None and self._shared.is_good else None

    async def shared(self) -> SharedConnection:
        """Return the shared connection; open another one if it does not answer."""
        if (connection := self.open_shared) is not None:
            return connection
        async with self._opening:  # one caller at a time: so they send in the order in which they came
            if self._shared is None or not self._shared.is_good:
                late, self._shared = self._shared, await self.open(SharedConnection)
                self._shared.on_late = self.on_late
                if late is not None:
                    late.retire()  # closes once it has answered everybody who waits there
                if self._is_retired:
                    self._shared.retire(after_use=True)
            return self._shared

    async def open(self, kind: Callable[[Any], C]) -> C:
        """Open a connection of the caller's own."""
        for connection in self._own:
            if connection.is_dead:
                connection.close()
        raw: Any = self.make_connection()  # type: ignore[no-untyped-call]
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):  # a server that hangs may still accept connections
                await raw.connect()
        except BaseException:
            await raw.disconnect(nowait=True)
            raise
        opened = kind(raw)
        self._own = [*(connection for connection in self._own if connection.is_open), opened]
        return opened

    # The connections that redis-py uses

    async def get_connection(self, *_: object, **__: object) -> Any:
        """Called by redis-py. A connection may prove to be closed in use; then the caller sends again."""
        connection = self._idle.pop() if self._idle else self.make_connection()  # type: ignore[no-untyped-call]
        self._busy.add(connection)
        try:
            if connection.is_connected and await _is_stale(connection):
                await connection.disconnect(nowait=True)
            if not connection.is_connected:
                await connection.connect()
        except BaseException:
            await self.release(connection)
            raise
        return connection

    async def release(self, connection: Any) -> None:
        """Called by redis-py."""
        if connection in self._busy:  # listed twice, two tasks would get it
            self._busy.remove(connection)
            self._idle.append(connection)
        if self._is_retired:
            await self.drop_idle()

    # Closing

    async def drop_idle(self) -> None:
        """Close what nobody uses, now or as soon as that is so."""
        # Emptied before the first await: a connection must not be closed while another task takes it.
        idle, self._idle = self._idle, []
        for connection in self._own:
            connection.retire()
        await _close(idle)

    async def retire(self) -> None:
        """Close everything; connections that are opened later close after use."""
        self._is_retired = True
        for connection in self._own:
            connection.close()
        await _close(self._busy)
        await self.drop_idle()

    def abandon(self) -> None:
        """Drop all connections after their loop was closed, when nothing can close them properly."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            self._drop_all()
            gc.collect()

    def _drop_all(self) -> None:
        for connection in (*self._idle, *self._busy):
            detach_stream(connection)  # else it warns that it was not closed
        for own in self._own:
            own.abandon()
        self._idle.clear()
        self._busy.clear()
        self._own.clear()
        self._shared = None


class SyncPool(redis.ConnectionPool):
    """The same for blocking code; all threads use it. A forked process makes another pool."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._own_idle: list[SyncConnection] = []  #: its pop and append are atomic, and need no lock
        self._mutex = threading.Lock()  #: guards the two below
        self._idle: list[Any] = []
        self._busy: set[Any] = set()

    # The connections that are ours

    def take(self) -> SyncConnection:
        """Lend a connection, to be given back or closed."""
        while self._own_idle:
            with suppress(IndexError):  # another thread took it
                connection = self._own_idle.pop()
                if not connection.is_stale():
                    return connection
                connection.close()
        raw: Any = self.make_connection()
        try:
            raw.connect()
        except BaseException:
            raw.disconnect()  # a signal may have interrupted it, with an answer on its way
            raise
        return SyncConnection(raw)

    def give_back(self, connection: SyncConnection) -> None:
        self._own_idle.append(connection)

    # The connections that redis-py uses

    def get_connection(self, *_: object, **__: object) -> Any:
        """Called by redis-py."""
        with self._mutex:
            connection: Any = self._idle.pop() if self._idle else self.make_connection()
            self._busy.add(connection)
        try:
            connection.connect()
            if _is_stale_sync(connection):
                connection.disconnect()
                connection.connect()
        except BaseException:
            connection.disconnect()  # a signal may have interrupted it, with an answer on its way
            self.release(connection)
            raise
        return connection

    def release(self, connection: Any) -> None:
        """Called by redis-py."""
        with self._mutex:
            if connection in self._busy:
                self._busy.remove(connection)
                self._idle.append(connection)

    # Closing

    def drop_idle(self) -> None:
        """Close what no thread uses."""
        while self._own_idle:
            with suppress(IndexError):  # another thread took it
                self._own_idle.pop().close()
        with self._mutex:
            for connection in self._idle:
                connection.disconnect()


async def _is_stale(connection: Any) -> bool:
    """Whether the server closed it, or it holds an answer that nobody waits for."""
    try:
        return bool(await connection.can_read())
    except (redis.RedisError, OSError):
        return True


def _is_stale_sync(connection: Any) -> bool:
    try:
        return bool(connection.can_read())
    except (redis.RedisError, OSError):
        return True


async def _close(connections: Iterable[Any]) -> None:
    """Close them at once: a TLS connection that waits for the server's goodbye may outlive its loop."""
    connections = list(connections)
    writers = [stream_writer(connection) for connection in connections]
    await asyncio.gather(*(connection.disconnect(nowait=True) for connection in connections), return_exceptions=True)
    for writer in writers:
        if writer is not None:
            writer.transport.abort()
    await asyncio.sleep(0)


# Clients


def open_async(node: Node) -> tuple[redis.asyncio.Redis, Pool]:
    kinds = (
        redis.asyncio.Connection,
        redis.asyncio.SSLConnection,
        redis.asyncio.UnixDomainSocketConnection,
    )
    # No socket timeout: redis-py would send through asyncio.wait_for, which on Python 3.11 can swallow a cancellation.
    # The caller sets a deadline around the whole call.
    settings = _settings(node, None) | {"retry": AsyncRetry(NoBackoff(), 0)}
    pool = Pool(connection_class=_connection_class(node, kinds), **settings)
    return PairedRedis(connection_pool=pool), pool


def open_sync(
    node: Node, timeout: float, connect_timeout: float = CONNECT_TIMEOUT, *, paired: bool = True
) -> tuple[redis.Redis, SyncPool]:
    """`paired`: not needed for a question or two on a new connection."""
    kinds = (redis.Connection, redis.SSLConnection, redis.UnixDomainSocketConnection)
    settings = _settings(node, timeout, connect_timeout) | {"retry": Retry(NoBackoff(), 0)}
    pool = SyncPool(connection_class=_connection_class(node, kinds), **settings)
    return PairedSyncRedis(pool, timeout) if paired else redis.Redis(connection_pool=pool), pool


def _connection_class(node: Node, kinds: tuple[Any, Any, Any]) -> Any:
    plain, tls, unix = kinds
    return unix if isinstance(node.address, Path) else tls if node.url.tls else plain


def _settings(node: Node, timeout: float | None, connect_timeout: float = CONNECT_TIMEOUT) -> dict[str, Any]:
    """Set whatever redis-py might choose: its defaults send commands again and end blocking reads early."""
    return {
        "db": node.url.db,
        "username": node.url.username,
        "password": node.url.password,
        "socket_timeout": timeout,
        "socket_connect_timeout": connect_timeout,
        "health_check_interval": 0,
        "max_connections": MAX_CONNECTIONS,
        "client_name": "penstock",
        "decode_responses": False,
        # RESP2 also turns off redis-py's maintenance notifications, which would move connections to another node.
        "protocol": 2,
        **_address_settings(node),
    }


def _address_settings(node: Node) -> Mapping[str, Any]:
    if isinstance(node.address, Path):
        return {"path": str(node.address)}
    host, port = node.address
    return {"host": host, "port": port, "socket_keepalive": True, **(_tls_settings(node.url) if node.url.tls else {})}


def _tls_settings(url: Url) -> dict[str, Any]:
    from_url: dict[str, Any] = dict(url.ssl)
    if "ssl_check_hostname" in from_url:
        from_url["ssl_check_hostname"] = from_url["ssl_check_hostname"] == "true"
    # redis-py refuses to check the name of a certificate that is not verified.
    is_verified = from_url.get("ssl_cert_reqs", "required") != "none"
    return {"ssl_cert_reqs": "required", "ssl_check_hostname": is_verified} | from_url
