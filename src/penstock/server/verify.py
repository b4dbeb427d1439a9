"""Whether jobs are safe on a server, judged by what it says of itself.

A managed server may hide any of these fields; what it does not say is not held against it.
"""

import logging
import os
from collections.abc import Mapping
from typing import Any

from penstock.errors import UnsuitableServer
from penstock.server.nodes import Node
from penstock.server.urls import show

Info = Mapping[str, Any]
ALLOW_EVICTION = "PENSTOCK_ALLOW_EVICTION"
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
    if not _evicts_nothing(info):
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
    if not _evicts_nothing(info) and os.environ.get(ALLOW_EVICTION) != "1":
        raise UnsuitableServer(
            f"The server {node} evicts keys when it is full (maxmemory-policy {info['maxmemory_policy']}), which loses "
            f"jobs: set maxmemory-policy noeviction there, or ${ALLOW_EVICTION}=1 here to go on nevertheless."
        )


def _evicts_nothing(info: Info) -> bool:
    return str(info.get("maxmemory_policy", "noeviction")) == "noeviction"
