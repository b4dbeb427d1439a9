"""Whether jobs are safe on a server, judged by what it says of itself.

A managed server may hide any of these fields; what it does not say is not held against it.
"""

import logging
import os
from collections.abc import Mapping
from typing import Any

from penstock.errors import UnsuitableServer
from penstock.server.pool import Node
from penstock.server.urls import show

Info = Mapping[str, Any]
ALLOW_EVICTION = "PENSTOCK_ALLOW_EVICTION"
NO_EVICTION = "noeviction"
log = logging.getLogger("penstock")


class StillLoading(Exception):
    """The server reads its data from disk and will answer soon."""


class NotMaster(Exception):
    """The server is a replica, which during a fail-over passes."""


def verify(node: Node, info: Info) -> None:
    """Raise what speaks against storing jobs here."""
    _version(node, info)
    _mode(node, info)
    _role(node, info)
    _loading(info)
    _eviction(node, info)


def advise(node: Node, info: Info) -> None:
    """Log what is allowed but will surprise."""
    if _policy_of(info) != NO_EVICTION:
        log.warning("The server %s evicts keys (maxmemory-policy): jobs may vanish when it is full.", node)
    if str(info.get("aof_enabled", "1")) == "0":
        log.warning("The server %s keeps no AOF: jobs are lost when it restarts; set appendonly yes.", node)


def _version(node: Node, info: Info) -> None:
    is_valkey = "valkey_version" in info
    name, least = ("Valkey", (7, 2)) if is_valkey else ("Redis", (7, 0))
    text = str(info.get("valkey_version" if is_valkey else "redis_version", ""))
    numbers = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    if numbers and numbers < least:
        raise UnsuitableServer(
            f"The server {node} is {name} {text}, which is too old: upgrade it to Valkey 7.2 or Redis 7.0, or newer."
        )


def _mode(node: Node, info: Info) -> None:
    in_cluster = str(info.get("cluster_enabled", "0")) == "1" or info.get("redis_mode") == "cluster"
    if in_cluster and node.url.kind != "cluster":
        scheme = "rediss+cluster" if node.url.tls else "redis+cluster"
        raise UnsuitableServer(f"The server {node} belongs to a cluster: use the URL {scheme}://{_place(node)}.")


def _place(node: Node) -> str:
    return show(node.place) if isinstance(node.place, tuple) else "host:port"


def _role(node: Node, info: Info) -> None:
    if info.get("role") == "slave":
        master = show((str(info.get("master_host", "?")), int(info.get("master_port", 0))))
        raise NotMaster(f"The server {node} is a read-only replica of {master}: use the URL of its master, {master}.")


def _loading(info: Info) -> None:
    if str(info.get("loading", "0")) == "1":
        percent = info.get("loading_loaded_perc", "?")
        eta = info.get("loading_eta_seconds", "?")
        raise StillLoading(f"{percent} % are loaded, about {eta} s remain")


def _eviction(node: Node, info: Info) -> None:
    policy = _policy_of(info)
    if is_refused(policy):
        raise UnsuitableServer(f"{danger_of(node, policy)}, or ${ALLOW_EVICTION}=1 here to go on nevertheless.")


def is_refused(policy: str) -> bool:
    """Whether a server with this maxmemory-policy may lose jobs, and nobody has allowed that."""
    return policy != NO_EVICTION and os.environ.get(ALLOW_EVICTION) != "1"


def danger_of(server: object, policy: str) -> str:
    """What this maxmemory-policy does to jobs, and what to set instead."""
    return (
        f"The server {server} evicts keys when it is full (maxmemory-policy {policy}), which loses "
        f"jobs: set maxmemory-policy {NO_EVICTION} there"
    )


def _policy_of(info: Info) -> str:
    return str(info.get("maxmemory_policy", NO_EVICTION))
