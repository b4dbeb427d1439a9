"""The way from a URL to the one server that has an app's keys, read from top to bottom.

`Search` lets all tasks and threads share one search. `Locator` runs it: choose a candidate (of a cluster, the node that
has the slot), connect, verify, and try again until the deadline. What counts as suitable is in `verify`.
"""

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, cast

import redis
from redis.crc import key_slot

from penstock.errors import PenstockError, UnsuitableServer
from penstock.server.embedded.server import EmbeddedServer
from penstock.server.pool import CONNECT_TIMEOUT, Node, open_sync
from penstock.server.urls import Address, Url
from penstock.server.verify import Info, NotPrimary, StillLoading, advise, lasting_error, unavailable, verify

MIN_PAUSE: Final = 0.02  #: seconds between two attempts; twice as long after each
MAX_PAUSE: Final = 0.5
NODE_TIMEOUT: Final = 1.0  #: seconds that a node of a cluster has for each answer: another one may know better


class SlotNotServed(Exception):
    """No node of the cluster has the slot right now: it is being built, or fails over."""


RETRIED: Final = (redis.RedisError, OSError, StillLoading, NotPrimary, SlotNotServed)


class Search:
    """Runs `locate` in a thread of its own and keeps the node that it found until it is dropped.

    A hundred tasks whose connection broke wait for one search, whatever loop or thread they are on.
    """

    def __init__(self, locate: Callable[[], Node]) -> None:
        self._locate = locate
        self._lock = threading.Lock()
        self._current: Future[Node] | None = None
        self.node: Node | None = None  #: the same object as long as it is the same server; None during a search
        self._last: Node | None = None

    def join(self) -> Future[Node]:
        """Return the search that runs or has succeeded; start one if there is none."""
        with self._lock:
            if self._current is None or _has_failed(self._current):
                self._current = self._start()
            elif self._current.done():
                self.node = self._current.result()
            return self._current

    def is_current(self, search: Future[Node]) -> bool:
        return search is self._current

    def drop(self) -> None:
        """Forget the node. A search that still runs is as good as a new one."""
        with self._lock:
            if self._current is not None and self._current.done():
                self._current = self.node = None

    def _start(self) -> Future[Node]:
        # Not in the loop's own executor: users' blocking calls may fill that, and its shutdown would wait for us.
        search: Future[Node] = Future()
        search.set_running_or_notify_cancel()
        threading.Thread(target=self._run, args=(search,), name="penstock-search", daemon=True).start()
        return search

    def _run(self, search: Future[Node]) -> None:
        try:
            search.set_result(self._same_object(self._locate()))
        except BaseException as error:  # noqa: BLE001 - whatever it is, everybody who waits must get it
            search.set_exception(error)

    def _same_object(self, node: Node) -> Node:
        with self._lock:
            self._last = self._last if node == self._last else node
            return self._last


async def result(search: Future[Node]) -> Node:
    try:
        # Mostly the search was done long ago, which should not cost a turn of the loop.
        return search.result() if search.done() else await asyncio.wrap_future(search)
    except PenstockError as error:
        raise _copy(error) from error


def result_sync(search: Future[Node], timeout: float | None = None) -> Node:
    """The same from blocking code; TimeoutError if the search takes longer than so many seconds."""
    try:
        return search.result(timeout)
    except PenstockError as error:
        raise _copy(error) from error


def _copy(error: PenstockError) -> PenstockError:
    """Give each waiter an error of its own: one raised in many tasks collects all their tracebacks."""
    return type(error)(*error.args)


def _has_failed(search: Future[Node]) -> bool:
    return search.done() and search.exception() is not None


class Locator:
    """Finds the verified server of one URL, again and again; blocking, and used by one thread at a time."""

    def __init__(self, url: Url, slot_key: bytes, deadline: float) -> None:
        """`slot_key`: any key of the app, all of which are in one slot; `deadline`: seconds of one search."""
        self.url = url
        self._slot_key = slot_key
        self._deadline = deadline
        self._nodes: tuple[Address, ...] = ()
        self._silent: set[Address] = set()  #: nodes that did not answer when they were last asked
        self._questions = 0
        self._has_advised = False
        self._has_succeeded = False
        self._last_failed = False
        self._embedded = EmbeddedServer(url.path) if url.kind == "embedded" else None

    def locate(self) -> Node:
        """Find the server and verify it; errors that may pass are retried until the deadline."""
        end = time.monotonic() + self._deadline
        # A server that was not there a moment ago is hardly there now: new searches begin with long pauses.
        pause = MAX_PAUSE if self._last_failed else MIN_PAUSE
        while True:
            try:
                return self._attempt(end)
            except RETRIED as error:
                remaining = end - time.monotonic()
                if remaining <= 0:
                    self._last_failed = True
                    raise self._final_error(error) from error
            time.sleep(min(pause, remaining))
            pause = min(2 * pause, MAX_PAUSE)

    def release(self) -> None:
        """Stop being a user of the embedded server, if it is one."""
        if self._embedded is not None:
            self._embedded.release()

    def _attempt(self, end: float) -> Node:
        node = self._candidate(end)
        with self._noting_silence(node.address), _connected(node, end) as client:
            info = _info(client)
        verify(node, info)
        self._advise(node, info)
        self._has_succeeded, self._last_failed = True, False
        return dataclasses.replace(node, run_id=info.get("run_id"))

    def _candidate(self, end: float) -> Node:
        if self._embedded is not None:
            return Node(self.url, self._embedded.ensure())
        if self.url.kind == "cluster":
            return Node(self.url, self._primary(end))
        return Node(self.url, self.url.hosts[0] if self.url.hosts else self.url.path)

    def _primary(self, end: float) -> Address:
        """Ask a node of the cluster, another one in each attempt: one that is cut off must not have the only word."""
        known = tuple(dict.fromkeys((*self.url.hosts, *self._nodes)))
        seeds = [address for address in known if address not in self._silent] or known
        seed = seeds[self._questions % len(seeds)]
        self._questions += 1
        with self._noting_silence(seed), _connected(Node(self.url, seed), end) as client:
            primary, self._nodes = find_primary(client, seed, self._slot_key)
        return primary

    def _advise(self, node: Node, info: Info) -> None:
        if not self._has_advised:
            advise(node, info)
        self._has_advised = True

    def _final_error(self, error: Exception) -> PenstockError:
        # A plain URL that never led to a primary is the wrong one; any other replica is a failover under way.
        if isinstance(error, NotPrimary) and self.url.kind != "cluster" and not self._has_succeeded:
            return UnsuitableServer(str(error))
        return unavailable(self.url, error, self._deadline)

    @contextlib.contextmanager
    def _noting_silence(self, address: Address | Path) -> Iterator[None]:
        """Remember which nodes of a cluster do not answer; others are asked for the way as long as there are any."""
        try:
            yield
        except (redis.ConnectionError, redis.TimeoutError, OSError):
            if isinstance(address, tuple):
                self._silent.add(address)
            raise
        if isinstance(address, tuple):
            self._silent.discard(address)


@contextlib.contextmanager
def _connected(node: Node, end: float) -> Iterator[redis.Redis]:
    """Lend a client for a few commands; an error that lasts is raised as one of ours."""
    remaining = max(end - time.monotonic(), 0.1)
    if node.url.kind == "cluster":
        remaining = min(remaining, NODE_TIMEOUT)
    client, pool = open_sync(node, remaining, min(CONNECT_TIMEOUT, remaining), paired=False)
    try:
        yield client
    except redis.RedisError as error:
        if (lasting := lasting_error(node, error)) is not None:
            raise lasting from error
        raise
    finally:
        pool.drop_idle()


def _info(client: redis.Redis) -> Info:
    try:
        return cast("Info", client.info())
    except redis.ResponseError as error:
        if "unknown command" in str(error):
            return {}
        raise


# Clusters. All keys of an app are in one slot, so a plain connection to the node that has it serves the app.


def find_primary(client: redis.Redis, asked: Address, key: bytes) -> tuple[Address, tuple[Address, ...]]:
    """Ask one node for the primary that has the key's slot; return that and all known nodes."""
    # Sent as two words, because some versions of redis-py parse the answer to "CLUSTER SLOTS" in their own way.
    ranges: list[Any] = client.execute_command("CLUSTER", b"SLOTS")  # type: ignore[no-untyped-call]
    slot = key_slot(key)
    nodes = tuple(dict.fromkeys(_addresses(ranges, asked)))
    for first, last, primary, *_ in ranges:
        if first <= slot <= last:
            return _address(primary, asked), nodes
    raise SlotNotServed(f"no node of the cluster has slot {slot}")


def primaries(url: Url, seconds: float) -> Iterator[tuple[Node, redis.Redis]]:
    """Each server that takes writes, with a client that is lent until the next one: all primaries of a cluster."""
    end = time.monotonic() + seconds
    for address in _primary_addresses(url, end):
        node = Node(url, address)
        with _connected(node, end) as client:
            yield node, client


def _primary_addresses(url: Url, end: float) -> tuple[Address | Path, ...]:
    if url.kind != "cluster":
        return (url.hosts[0] if url.hosts else url.path,)
    error: Exception | None = None
    for seed in url.hosts:
        try:
            with _connected(Node(url, seed), end) as client:
                ranges: list[Any] = client.execute_command("CLUSTER", b"SLOTS")  # type: ignore[no-untyped-call]
                return tuple(dict.fromkeys(_address(primary, seed) for _, _, primary, *_ in ranges))
        except (redis.RedisError, OSError) as seed_error:
            error = seed_error
    raise unavailable(url, error or SlotNotServed("it names no node"), 0)


def _addresses(ranges: Iterable[Any], asked: Address) -> Iterator[Address]:
    for _, _, *nodes in ranges:
        yield from (_address(node, asked) for node in nodes)


def _address(node: Any, asked: Address) -> Address:
    host, port = node[0], int(node[1])
    # A node that does not know its own host sends nothing, or "?": it is the one that was asked.
    name = host.decode() if isinstance(host, bytes) else host
    return (name if name and name != "?" else asked[0]), port
