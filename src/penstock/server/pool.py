"""Connections to one server, made the same way everywhere."""

import asyncio
import gc
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import redis
import redis.asyncio
from redis.asyncio.connection import AbstractConnection as AsyncAbstractConnection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from penstock.server.connection import Connection, SharedConnection, SyncConnection
from penstock.server.paired_redis import PairedRedis, PairedSyncRedis
from penstock.server.urls import Address, Url, show

W = TypeVar("W", bound=Connection)

CONNECT_TIMEOUT = 2.0
# redis-py's own limit of 100 would refuse the 101st task that waits on a blocking read; the server has its maxclients.
NO_LIMIT = 2**31


@dataclass(frozen=True, slots=True, repr=False)
class Node:
    """One server, and what it takes to connect to it."""

    url: Url
    place: Address | Path
    # Which run of the server this is: none of the old connections reach a restarted one.
    run: str | None = None

    def __str__(self) -> str:
        return str(self.place) if isinstance(self.place, Path) else show(self.place)

    def __repr__(self) -> str:
        return f"Node({self}, run={self.run})"


class Pool(redis.asyncio.ConnectionPool):
    """redis-py's pool, which can also let go of idle connections while others are in use.

    Taking a connection and giving it back does no more than that: redis-py's own way has locks, counters and events on
    top, for each call.
    """

    _retired = False
    on_late: Callable[[], None] | None = None  #: to be called while an answer on the shared connection is late

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._wires: list[Connection] = []
        self._pipe: SharedConnection | None = None
        self._opening = asyncio.Lock()

    @property
    def at_hand(self) -> SharedConnection | None:
        """The connection that all share, if there is one and it answers."""
        return self._pipe if self._pipe is not None and self._pipe.is_good else None

    async def pipe(self) -> SharedConnection:
        """Give the connection that all share, as long as it answers; then another one."""
        if (pipe := self.at_hand) is not None:
            return pipe
        async with self._opening:  # in turn: so what waits for it is sent in its order
            if self._pipe is None or not self._pipe.is_good:
                late, self._pipe = self._pipe, await self.open(SharedConnection)
                self._pipe.on_late = self.on_late
                if late is not None:
                    late.retire()  # it is closed once it has answered those who wait there
                if self._retired:
                    self._pipe.retire(after_use=True)
            return self._pipe

    async def open(self, kind: Callable[[Any], W]) -> W:
        """Make a connection of one's own."""
        for wire in self._wires:
            if wire.is_dead:
                wire.close()
        connection: Any = self.make_connection()  # type: ignore[no-untyped-call]
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):  # a server that hangs may still be connected to
                await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        made = kind(connection)
        self._wires = [*(wire for wire in self._wires if wire.is_open), made]
        return made

    async def get_connection(self, *_: object, **__: object) -> Any:
        """Give a connection that is open, as far as this side knows; who finds that it is not sends again."""
        connection: Any = self.get_available_connection()  # type: ignore[no-untyped-call]
        try:
            if connection.is_connected and await _is_spent(connection):
                await connection.disconnect(nowait=True)
            if not connection.is_connected:
                await connection.connect()
        except BaseException:
            await self.release(connection)
            raise
        return connection

    async def release(self, connection: AsyncAbstractConnection) -> None:
        if connection in self._in_use_connections:  # twice in the pool, two tasks would get it
            self._in_use_connections.remove(connection)
            self._available_connections.append(connection)
        if self._retired:
            await self.drop_idle()

    async def drop_idle(self) -> None:
        # Taken out of the pool before the first await: a connection must not be closed while another task picks it up.
        idle, self._available_connections = self._available_connections, []
        for wire in self._wires:
            wire.retire()
        await _close(idle)

    async def retire(self) -> None:
        """Close everything; whoever still holds the client makes connections that close after use."""
        self._retired = True
        for wire in self._wires:
            wire.close()
        await _close(self._in_use_connections)
        await self.drop_idle()

    def abandon(self) -> None:
        """Let go of connections whose loop was closed under them, so that nothing can close them properly."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            self._forget_streams()
            gc.collect()

    def _forget_streams(self) -> None:
        for connection in (*self._available_connections, *self._in_use_connections):
            connection._reader = connection._writer = None  # noqa: SLF001 - else it warns of what it cannot change
        for wire in self._wires:
            wire.abandon()
        self._available_connections.clear()
        self._in_use_connections.clear()
        self._wires.clear()
        self._pipe = None


class SyncPool(redis.ConnectionPool):
    """The same for blocking code. Whoever forks makes another pool."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._wires: list[SyncConnection] = []  #: those that nobody uses

    def take(self) -> SyncConnection:
        """Give a connection for trips, to be given back or closed."""
        while self._wires:
            with suppress(IndexError):  # another thread took it
                wire = self._wires.pop()
                if not wire.is_spent():
                    return wire
                wire.close()
        connection: Any = self.make_connection()
        try:
            connection.connect()
        except BaseException:
            connection.disconnect()  # a signal may have stopped it half way, with an answer on its way
            raise
        return SyncConnection(connection)

    def give_back(self, wire: SyncConnection) -> None:
        self._wires.append(wire)

    def get_connection(self, *_: object, **__: object) -> Any:
        """Give one to redis-py itself."""
        with self._lock:
            connection = self._available_connections.pop() if self._available_connections else self.make_connection()
            self._in_use_connections.add(connection)
        try:
            connection.connect()
            if _is_spent_sync(connection):
                connection.disconnect()
                connection.connect()
        except BaseException:
            connection.disconnect()  # a signal may have stopped it half way, with an answer on its way
            self.release(connection)
            raise
        return connection

    def release(self, connection: Any) -> None:
        with self._lock:
            if connection in self._in_use_connections:
                self._in_use_connections.remove(connection)
                self._available_connections.append(connection)

    def drop_idle(self) -> None:
        while self._wires:
            with suppress(IndexError):
                self._wires.pop().close()
        self.disconnect(inuse_connections=False)


async def _is_spent(connection: Any) -> bool:
    """It was closed from the other side, or holds an answer that nobody waits for."""
    try:
        return bool(await connection.can_read())
    except (redis.RedisError, OSError):
        return True


def _is_spent_sync(connection: Any) -> bool:
    try:
        return bool(connection.can_read())
    except (redis.RedisError, OSError):
        return True


async def _close(connections: Iterable[AsyncAbstractConnection]) -> None:
    """Close at once: a TLS connection that waits for the server's goodbye may outlive its loop."""
    connections = list(connections)
    writers = [connection._writer for connection in connections]  # noqa: SLF001 - disconnecting forgets it
    await asyncio.gather(*(connection.disconnect(nowait=True) for connection in connections), return_exceptions=True)
    for writer in writers:
        if writer is not None:
            writer.transport.abort()
    await asyncio.sleep(0)


def open_async(node: Node) -> tuple[redis.asyncio.Redis, Pool]:
    kinds = (
        redis.asyncio.Connection,
        redis.asyncio.SSLConnection,
        redis.asyncio.UnixDomainSocketConnection,
    )
    # No socket timeout here: redis-py would send through asyncio.wait_for, which on Python 3.11 can swallow a
    # cancellation. Whoever sends sets a deadline around the whole call.
    settings = _settings(node, None) | {"retry": AsyncRetry(NoBackoff(), 0)}
    pool = Pool(connection_class=_kind(node, kinds), **settings)
    return PairedRedis(connection_pool=pool), pool


def open_sync(
    node: Node, timeout: float, connect_timeout: float = CONNECT_TIMEOUT, *, paired: bool = True
) -> tuple[redis.Redis, SyncPool]:
    """`paired`: not needed by one who asks a question or two on a new connection."""
    kinds = (redis.Connection, redis.SSLConnection, redis.UnixDomainSocketConnection)
    settings = _settings(node, timeout, connect_timeout) | {"retry": Retry(NoBackoff(), 0)}
    pool = SyncPool(connection_class=_kind(node, kinds), **settings)
    return PairedSyncRedis(pool, timeout) if paired else redis.Redis(connection_pool=pool), pool


def _kind(node: Node, kinds: tuple[Any, Any, Any]) -> Any:
    plain, tls, unix = kinds
    return unix if isinstance(node.place, Path) else tls if node.url.tls else plain


def _settings(node: Node, timeout: float | None, connect_timeout: float = CONNECT_TIMEOUT) -> dict[str, Any]:
    """Set explicitly whatever redis-py might decide: its defaults resend commands and cut blocking reads."""
    return {
        "db": node.url.db,
        "username": node.url.username,
        "password": node.url.password,
        "socket_timeout": timeout,
        "socket_connect_timeout": connect_timeout,
        "health_check_interval": 0,
        "max_connections": NO_LIMIT,
        "client_name": "penstock",
        "decode_responses": False,
        # RESP2 also turns redis-py's maintenance notifications off, which move connections behind our back.
        "protocol": 2,
        **_place(node),
    }


def _place(node: Node) -> Mapping[str, Any]:
    if isinstance(node.place, Path):
        return {"path": str(node.place)}
    host, port = node.place
    return {"host": host, "port": port, "socket_keepalive": True, **(_tls(node.url) if node.url.tls else {})}


def _tls(url: Url) -> dict[str, Any]:
    given: dict[str, Any] = dict(url.ssl)
    if "ssl_check_hostname" in given:
        given["ssl_check_hostname"] = given["ssl_check_hostname"] == "true"
    # A certificate that nobody verifies has no name to check either; redis-py refuses the combination.
    named = given.get("ssl_cert_reqs", "required") != "none"
    return {"ssl_cert_reqs": "required", "ssl_check_hostname": named} | given
