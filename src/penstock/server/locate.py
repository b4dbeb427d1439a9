"""Finding the one server that has an app's keys, and making sure that jobs are safe there."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import redis

from penstock.errors import PenstockError, UnsuitableServer
from penstock.server import cluster, connection_errors
from penstock.server.cluster import SlotNotServed
from penstock.server.embedded.server import EmbeddedServer
from penstock.server.pool import CONNECT_TIMEOUT, Node, open_sync
from penstock.server.urls import Address, Url
from penstock.server.verify import Info, NotMaster, StillLoading, advise, verify

FIRST_PAUSE = 0.02
NODE_TIMEOUT = 1.0  #: seconds that a node of a cluster has for each answer: another one may know better
LONGEST_PAUSE = 0.5
PASSING = (redis.RedisError, OSError, StillLoading, NotMaster, SlotNotServed)


class Locator:
    """Resolves one URL again and again; blocking, and used by one thread at a time."""

    def __init__(self, url: Url, slot_key: bytes, deadline: float) -> None:
        self.url = url
        self._slot_key = slot_key
        self._deadline = deadline
        self._nodes: tuple[Address, ...] = ()
        self._silent: set[Address] = set()  #: nodes that did not answer when they were last asked
        self._asked = 0
        self._advised = False
        self._found_before = False
        self._missed = False
        self._embedded = EmbeddedServer(url.path) if url.kind == "embedded" else None

    def locate(self) -> Node:
        """Find the server and verify it, trying until the deadline what may pass."""
        end = time.monotonic() + self._deadline
        # What was not there a moment ago is hardly there now: no flurry of attempts with each new search.
        pause = LONGEST_PAUSE if self._missed else FIRST_PAUSE
        while True:
            try:
                return self._attempt(end)
            except PASSING as error:
                remaining = end - time.monotonic()
                final = self._final(error, late=remaining <= 0)
                if final is not None:
                    self._missed = True
                    raise final from error
            time.sleep(min(pause, remaining))
            pause = min(2 * pause, LONGEST_PAUSE)

    def release(self) -> None:
        """Stop being a user of the embedded server, if it is one."""
        if self._embedded is not None:
            self._embedded.release()

    def _final(self, error: Exception, *, late: bool) -> PenstockError | None:
        if not late:
            return None
        # A plain URL that never led to a primary is the wrong one; any other replica is a failover under way.
        if isinstance(error, NotMaster) and self.url.kind != "cluster" and not self._found_before:
            return UnsuitableServer(str(error))
        return connection_errors.unavailable(self.url, error, self._deadline)

    def _attempt(self, end: float) -> Node:
        node = self._candidate(end)
        with self._listening_to(node.place), _asking(node, end) as client:
            info = _info(client)
        verify(node, info)
        self._advise(node, info)
        self._found_before, self._missed = True, False
        return dataclasses.replace(node, run=info.get("run_id"))

    def _advise(self, node: Node, info: Info) -> None:
        if not self._advised:
            advise(node, info)
        self._advised = True

    def _candidate(self, end: float) -> Node:
        if self._embedded is not None:
            return Node(self.url, self._embedded.ensure())
        if self.url.kind == "cluster":
            return Node(self.url, self._master(end))
        return Node(self.url, self.url.hosts[0] if self.url.hosts else self.url.path)

    def _master(self, end: float) -> Address:
        # Each attempt asks another node: one that is cut off from the cluster must not have the only word.
        known = tuple(dict.fromkeys((*self.url.hosts, *self._nodes)))
        seeds = [address for address in known if address not in self._silent] or known
        seed = seeds[self._asked % len(seeds)]
        self._asked += 1
        with self._listening_to(seed), _asking(Node(self.url, seed), end) as client:
            master, self._nodes = cluster.find_master(client, seed, self._slot_key)
        return master

    @contextlib.contextmanager
    def _listening_to(self, place: Address | Path) -> Iterator[None]:
        """Note whether a node of a cluster answers: as long as others do, they are asked for the way."""
        try:
            yield
        except (redis.ConnectionError, redis.TimeoutError, OSError):
            if isinstance(place, tuple):
                self._silent.add(place)
            raise
        if isinstance(place, tuple):
            self._silent.discard(place)


def _info(client: redis.Redis) -> Info:
    try:
        return cast("Info", client.info())
    except redis.ResponseError as error:
        if "unknown command" in str(error):
            return {}
        raise


@contextlib.contextmanager
def _asking(node: Node, end: float) -> Iterator[redis.Redis]:
    """Lend a connection that is used once; its failures come out explained."""
    remaining = max(end - time.monotonic(), 0.1)
    if node.url.kind == "cluster":
        remaining = min(remaining, NODE_TIMEOUT)
    client, _ = open_sync(node, remaining, min(CONNECT_TIMEOUT, remaining), paired=False)
    try:
        yield client
    except redis.RedisError as error:
        known = connection_errors.explain(node, error)
        if known is not None:
            raise known from error
        raise
    finally:
        client.connection_pool.disconnect()
