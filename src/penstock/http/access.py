"""Who asks, and what they may do: tokens, users, or the header of a trusted proxy; without any, this machine only."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Final, Literal, get_args

from starlette.requests import HTTPConnection

from penstock.errors import BadOption
from penstock.http.problems import HttpError

Role = Literal["viewer", "operator", "admin"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)  #: each may do all that those before it may
_LOCAL: Final = ("127.0.0.0/8", "::1/128")
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody whose credentials were right."""

    name: str
    role: Role
    by_token: bool = False  #: no browser sends it by itself, so no other site can have it sent

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


@dataclass(frozen=True, slots=True)
class Trust:
    """A header in which a proxy names the user, who has this role; only proxies at these addresses are believed."""

    header: str
    role: Role = "operator"
    proxies: Sequence[str] = _LOCAL

    def __post_init__(self) -> None:
        check_role(self.role)
        _networks(self.proxies)


_NEIGHBOUR: Final = Principal("this machine", "admin")


class Access:
    """The credentials that are known. Those that come are compared with all of them, in constant time."""

    def __init__(
        self,
        tokens: Mapping[str, Role] | None = None,
        users: Mapping[str, tuple[str, Role]] | None = None,
        trust: Trust | None = None,
    ) -> None:
        self._known: list[tuple[bytes, Principal]] = []
        for token, role in (tokens or {}).items():
            digest = _digest("token", _worthy(token, "a token"))
            self._known.append((digest, Principal(f"token {digest.hex()[:8]}", check_role(role), by_token=True)))
        for name, (password, role) in (users or {}).items():
            if not name or ":" in name:
                raise BadOption(f"user {name!r}: use a name without a colon")
            self._known.append(
                (_digest("user", name, _worthy(password, "a password")), Principal(name, check_role(role)))
            )
        self._basic, self._trust = bool(users), trust
        self._proxies = tuple(trust.proxies) if trust else ()

    @property
    def is_open(self) -> bool:
        """Whether no credentials are set, so that only this machine may ask."""
        return not self._known and self._trust is None

    def identify(self, request: HTTPConnection) -> Principal:
        """Who asks; a refusal if that cannot be told."""
        if self.is_open:
            return _neighbour(request)
        who = self._by_credentials(request.headers.get("authorization", "")) or self._by_proxy(request)
        if who is None:
            raise HttpError(401, "give a token (Authorization: Bearer …) or other credentials", self._challenge())
        return who

    def _by_credentials(self, header: str) -> Principal | None:
        kind, _, value = header.partition(" ")
        presented = _digest("token", value) if kind.lower() == "bearer" else _basic_digest(kind, value)
        found = None
        for digest, who in self._known:
            if hmac.compare_digest(digest, presented):
                found = who
        return found

    def _by_proxy(self, request: HTTPConnection) -> Principal | None:
        name = request.headers.get(self._trust.header, "") if self._trust else ""
        if self._trust is None or not name or not _is_at(request, self._proxies):
            return None
        return Principal("".join(char for char in name if char.isprintable())[:100], self._trust.role)

    def _challenge(self) -> dict[str, str]:
        return {"WWW-Authenticate": 'Basic realm="penstock", charset="UTF-8"' if self._basic else "Bearer"}


def check_origin(request: HTTPConnection, method: str, who: Principal) -> None:
    """Another site may not have a browser change anything with credentials that it sends by itself."""
    if method in _SAFE or who.by_token:
        return
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        fine = site in {"same-origin", "none"}
    else:
        fine = origin is None or origin.partition("://")[2] == request.headers.get("host")
    if not fine:
        raise HttpError(403, "another site asked for this (Origin, Sec-Fetch-Site): it is refused")


def check_role(role: Any) -> Role:
    if role not in ROLES:
        raise BadOption(f"role {role!r}: use one of {', '.join(ROLES)}")
    found: Role = role
    return found


def _neighbour(request: HTTPConnection) -> Principal:
    """Without credentials: whoever is on this machine, and calls us by its name, so that no web page can."""
    if not _is_local(request.headers.get("host", "")) or not _is_at(request, _LOCAL):
        raise HttpError(
            401, "no credentials are set, so only this machine may ask: set a token, users or a proxy's header"
        )
    return _NEIGHBOUR


@lru_cache(maxsize=256)
def _is_local(host: str) -> bool:
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        return name == "localhost" or name.endswith(".localhost") or ip_address(name).is_loopback
    except ValueError:
        return False


def _is_at(request: HTTPConnection, networks: tuple[str, ...]) -> bool:
    """Whether whoever connected to us has such an address; through a socket in the file system, it has."""
    client, server = request.scope.get("client"), request.scope.get("server")
    if client is None:
        return server is not None and server[1] is None
    return _is_within(client[0], networks)


@lru_cache(maxsize=1024)
def _is_within(host: str, networks: tuple[str, ...]) -> bool:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in _networks(networks))


def _networks(texts: Sequence[str]) -> list[IPv4Network | IPv6Network]:
    try:
        return [ip_network(text) for text in texts]
    except ValueError as error:
        raise BadOption(f"proxies: {error}") from None


def _worthy(secret: Any, what: str) -> str:
    if not isinstance(secret, str) or len(secret) < 8:
        raise BadOption(f"{what} needs at least 8 characters, such as: openssl rand -hex 16")
    return secret


def _digest(*parts: str) -> bytes:
    """Of one length, whatever is compared."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).digest()


def _basic_digest(kind: str, value: str) -> bytes:
    try:
        name, _, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return b""
    return _digest("user", name, password) if kind.lower() == "basic" else b""
