"""Whether a server can be used: what it says of itself, and what its errors mean.

A managed server may hide any field of INFO; what is missing counts as right.
"""

import logging
import os
import ssl
from collections.abc import Iterator, Mapping
from typing import Any

import redis

from penstock.errors import CannotConnect, PenstockError, Unavailable, UnsuitableServer
from penstock.server import acl
from penstock.server.pool import Node
from penstock.server.urls import Url, show

Info = Mapping[str, Any]
ALLOW_EVICTION = "PENSTOCK_ALLOW_EVICTION"
NO_EVICTION = "noeviction"
log = logging.getLogger("penstock")


class StillLoading(Exception):
    """The server reads its data from disk and will answer soon."""


class NotPrimary(Exception):
    """The server is a replica, which passes during a failover."""


# What the server says of itself


def verify(node: Node, info: Info) -> None:
    """Raise the first reason not to store jobs here."""
    _version(node, info)
    _mode(node, info)
    _role(node, info)
    _loading(info)
    _eviction(node, info)


def advise(node: Node, info: Info) -> None:
    """Log what is allowed but may surprise."""
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
        address = show(node.address) if isinstance(node.address, tuple) else "host:port"
        raise UnsuitableServer(f"The server {node} belongs to a cluster: use the URL {scheme}://{address}.")


def _role(node: Node, info: Info) -> None:
    if info.get("role") == "slave":
        master = show((str(info.get("master_host", "?")), int(info.get("master_port", 0))))
        raise NotPrimary(f"The server {node} is a read-only replica of {master}: use the URL of its master, {master}.")


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
    """Whether a server with this maxmemory-policy may lose jobs, and the user has not allowed that."""
    return policy != NO_EVICTION and os.environ.get(ALLOW_EVICTION) != "1"


def danger_of(server: object, policy: str) -> str:
    """What this maxmemory-policy does to jobs, and what to set instead."""
    return (
        f"The server {server} evicts keys when it is full (maxmemory-policy {policy}), which loses "
        f"jobs: set maxmemory-policy {NO_EVICTION} there"
    )


def _policy_of(info: Info) -> str:
    return str(info.get("maxmemory_policy", NO_EVICTION))


# What its errors mean


def lasting_error(node: Node, error: Exception) -> PenstockError | None:
    """Our error for one that trying again cannot change, or None where it may pass."""
    tls = next((cause for cause in _causes(error) if isinstance(cause, ssl.SSLError)), None)
    return _answer_error(node, error) if tls is None else _tls_error(node, tls)


def _tls_error(node: Node, error: ssl.SSLError) -> PenstockError | None:
    reason = str(error.reason).upper()
    if isinstance(error, ssl.SSLCertVerificationError):
        return CannotConnect(
            f"The certificate of {node} could not be verified: add your authority to the URL with "
            "?ssl_ca_certs=/path/ca.pem, and use the host's name as the certificate has it."
        )
    if "ALERT" in reason:
        return CannotConnect(
            f"The server {node} refuses to begin TLS ({reason}): if it wants a certificate of yours, add "
            "?ssl_certfile=/path/cert.pem&ssl_keyfile=/path/key.pem to the URL."
        )
    if any(sign in reason for sign in ("WRONG_VERSION", "RECORD_LAYER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST")):
        return UnsuitableServer(f"The server {node} does not speak TLS: use redis:// instead of rediss://.")
    return None


def _answer_error(node: Node, error: Exception) -> PenstockError | None:
    match error:
        case redis.InvalidResponse():
            return UnsuitableServer(
                f"What answers at {node} is no Redis or Valkey server: check host and port; if it expects TLS, use "
                "rediss://."
            )
        case redis.exceptions.NoPermissionError():
            return CannotConnect(
                f"The server {node} does not permit its user what Penstock needs ({error}). "
                f"What a user needs: ACL SETUSER USER {acl.rule('NAMESPACE')}"
            )
        case redis.AuthenticationError() | redis.exceptions.AuthorizationError():
            return _login_error(node, str(error))
        case redis.ResponseError():
            return _response_error(node, str(error))
    return None


def _login_error(node: Node, text: str) -> PenstockError:
    if "without any password" in text:
        return CannotConnect(f"The server {node} has no password set, but the URL has one: take it out of the URL.")
    if "required" in text:
        return CannotConnect(f"The server {node} wants a password: put it into the URL, redis://user:password@host.")
    return CannotConnect(f"The server {node} refuses the URL's user or password: correct them.")


def _response_error(node: Node, text: str) -> PenstockError | None:
    if text.startswith("BUSY"):
        return None  # a long script runs there
    if "DB index" in text:
        return UnsuitableServer(f"The server {node} has no database {node.url.db}: use a lower number in the URL.")
    if "cluster support disabled" in text:
        scheme = "rediss" if node.url.tls else "redis"
        return UnsuitableServer(f"The server {node} belongs to no cluster: use the URL {scheme}://{node}.")
    return UnsuitableServer(f"The server {node} answers with an error: {text}")


def unavailable(url: Url, error: Exception, seconds: float) -> Unavailable:
    """The error for a deadline that is over, with the reason."""
    match error:
        case NotPrimary():
            return Unavailable(f"No primary takes writes at {url}, after {seconds:g} s ({error}).")
        case StillLoading() | redis.BusyLoadingError():
            return Unavailable(
                f"The server {url} is still loading its data after {seconds:g} s ({error}): wait for it."
            )
        case redis.TimeoutError():
            # A plain server takes the start of TLS for half a command and waits for the rest.
            hint = "; if it does not use TLS, write redis://" if url.tls else ""
            return Unavailable(
                f"The server {url} does not answer within {seconds:g} s: check host, port and firewall, and that it "
                f"is not overloaded{hint}."
            )
    hint = "; if it expects TLS, write rediss://" if "closed by server" in str(error) and not url.tls else ""
    return Unavailable(f"The server {url} cannot be reached ({error}): check that it runs there, and the URL{hint}.")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
