"""Which node of a cluster has a slot. All keys of an app are in one slot, so one plain connection serves it."""

from collections.abc import Iterable, Iterator
from typing import Any

import redis
from redis.crc import key_slot

from penstock.server.urls import Address


class SlotNotServed(Exception):
    """No node has the slot right now: the cluster is being built, or fails over."""


def find_master(client: redis.Redis, asked: Address, key: bytes) -> tuple[Address, tuple[Address, ...]]:
    """Ask one node which one has the key's slot; give that and all known nodes."""
    # Asked in a form that no version of redis-py parses for us in its own way.
    ranges: list[Any] = client.execute_command("CLUSTER", b"SLOTS")  # type: ignore[no-untyped-call]
    slot = key_slot(key)
    nodes = tuple(dict.fromkeys(_nodes(ranges, asked)))
    for first, last, master, *_ in ranges:
        if first <= slot <= last:
            return _address(master, asked), nodes
    raise SlotNotServed(f"no node of the cluster has slot {slot}")


def _nodes(ranges: Iterable[Any], asked: Address) -> Iterator[Address]:
    for _, _, *nodes in ranges:
        yield from (_address(node, asked) for node in nodes)


def _address(node: Any, asked: Address) -> Address:
    host, port = node[0], int(node[1])
    # A node that does not know its own host says nothing, or "?": it is where we just asked.
    name = host.decode() if isinstance(host, bytes) else host
    return (name if name and name != "?" else asked[0]), port
