"""What a failed connection means, and what to do about it."""

import ssl
from collections.abc import Iterator

import redis

from penstock.errors import CannotConnect, PenstockError, Unavailable, UnsuitableServer
from penstock.server.pool import Node
from penstock.server.urls import Url
from penstock.server.verify import NotMaster, StillLoading


def explain(node: Node, error: Exception) -> PenstockError | None:
    """Give the error that trying again cannot change, or None where it may."""
    tls = next((cause for cause in _causes(error) if isinstance(cause, ssl.SSLError)), None)
    return _answered(node, error) if tls is None else _tls(node, tls)


def _tls(node: Node, error: ssl.SSLError) -> PenstockError | None:
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


def _answered(node: Node, error: Exception) -> PenstockError | None:
    match error:
        case redis.InvalidResponse():
            return UnsuitableServer(
                f"What answers at {node} is no Redis or Valkey server: check host and port; if it expects TLS, use "
                "rediss://."
            )
        case redis.exceptions.NoPermissionError():
            return CannotConnect(
                f"The server {node} does not permit its user what Penstock needs: give the user ~penstock:* "
                "&penstock:* +@all -@dangerous +info +cluster (ACL SETUSER)."
            )
        case redis.AuthenticationError() | redis.exceptions.AuthorizationError():
            return _unauthorised(node, str(error))
        case redis.ResponseError():
            return _refused(node, str(error))
    return None


def _unauthorised(node: Node, text: str) -> PenstockError:
    if "without any password" in text:
        return CannotConnect(f"The server {node} has no password set, but the URL has one: take it out of the URL.")
    if "required" in text:
        return CannotConnect(f"The server {node} wants a password: put it into the URL, redis://user:password@host.")
    return CannotConnect(f"The server {node} refuses the URL's user or password: correct them.")


def _refused(node: Node, text: str) -> PenstockError | None:
    if text.startswith("BUSY"):
        return None  # somebody's script takes its time
    if "DB index" in text:
        return UnsuitableServer(f"The server {node} has no database {node.url.db}: use a lower number in the URL.")
    if "cluster support disabled" in text:
        scheme = "rediss" if node.url.tls else "redis"
        return UnsuitableServer(f"The server {node} belongs to no cluster: use the URL {scheme}://{node}.")
    return UnsuitableServer(f"The server {node} answers with an error: {text}")


def unavailable(url: Url, error: Exception, seconds: float) -> Unavailable:
    """Say that the deadline is over, and why."""
    match error:
        case NotMaster():
            return Unavailable(f"No primary takes writes at {url}, after {seconds:g} s ({error}).")
        case StillLoading() | redis.BusyLoadingError():
            return Unavailable(
                f"The server {url} is still loading its data after {seconds:g} s ({error}): wait for it."
            )
        case redis.TimeoutError():
            # A plain server takes the beginning of TLS for half a command, and waits for the rest of it.
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
