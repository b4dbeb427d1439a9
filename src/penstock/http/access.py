"""Authentication and roles: tokens, users, or the header of a trusted proxy; without any, only this machine."""

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
ROLES: Final[tuple[Role, ...]] = get_args(Role)  #: each may do what those before it may
_LOOPBACK: Final = ("127.0.0.0/8", "::1/128")
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sent a request, as the credentials prove."""

    name: str
    role: Role
    by_token: bool = False  #: browsers never send a token by themselves, so another site cannot misuse it

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


@dataclass(frozen=True, slots=True)
class Trust:
    """A header in which a proxy names the user, and the role of these users; other senders' headers are ignored."""

    header: str
    role: Role = "operator"
    proxies: Sequence[str] = _LOOPBACK

    def __post_init__(self) -> None:
        check_role(self.role)
        _networks(self.proxies)


_THIS_MACHINE: Final = Principal("this machine", "admin")


class Access:
    """The credentials that are accepted. A request's are compared with all of them, in constant time."""

    def __init__(
        self,
        tokens: Mapping[str, Role] | None = None,
        users: Mapping[str, tuple[str, Role]] | None = None,
        trust: Trust | None = None,
    ) -> None:
        self._accepted: list[tuple[bytes, Principal]] = []
        for token, role in (tokens or {}).items():
            digest = _digest("token", _check_secret(token, "a token"))
            self._accepted.append((digest, Principal(f"token {digest.hex()[:8]}", check_role(role), by_token=True)))
        for name, (password, role) in (users or {}).items():
            if not name or ":" in name:
                raise BadOption(f"user {name!r}: use a name without a colon")
            self._accepted.append(
                (_digest("user", name, _check_secret(password, "a password")), Principal(name, check_role(role)))
            )
        self._has_users, self._trust = bool(users), trust
        self._proxies = tuple(trust.proxies) if trust else ()

    @property
    def is_open(self) -> bool:
        """Whether no credentials are set, so that only this machine has access."""
        return not self._accepted and self._trust is None

    def identify(self, request: HTTPConnection) -> Principal:
        """The sender of a request; 401 if the credentials do not prove one."""
        if self.is_open:
            return _identify_local(request)
        principal = self._by_credentials(request.headers.get("authorization", "")) or self._by_proxy(request)
        if principal is None:
            raise HttpError(401, "give a token (Authorization: Bearer …) or other credentials", self._challenge())
        return principal

    def _by_credentials(self, header: str) -> Principal | None:
        scheme, _, value = header.partition(" ")
        presented = _digest("token", value) if scheme.lower() == "bearer" else _basic_digest(scheme, value)
        matching = None
        for digest, principal in self._accepted:  # all of them: the time must not tell which one matched
            if hmac.compare_digest(digest, presented):
                matching = principal
        return matching

    def _by_proxy(self, request: HTTPConnection) -> Principal | None:
        name = request.headers.get(self._trust.header, "") if self._trust else ""
        if self._trust is None or not name or not _comes_from(request, self._proxies):
            return None
        return Principal("".join(char for char in name if char.isprintable())[:100], self._trust.role)

    def _challenge(self) -> dict[str, str]:
        return {"WWW-Authenticate": 'Basic realm="penstock", charset="UTF-8"' if self._has_users else "Bearer"}


def check_origin(request: HTTPConnection, method: str, principal: Principal) -> None:
    """Refuse a change that another site makes a browser send with the user's credentials (CSRF)."""
    if method in _SAFE_METHODS or principal.by_token:
        return
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        is_same_site = site in {"same-origin", "none"}
    else:
        is_same_site = origin is None or origin.partition("://")[2] == request.headers.get("host")
    if not is_same_site:
        raise HttpError(403, "another site asked for this (Origin, Sec-Fetch-Site): it is refused")


def check_role(role: Any) -> Role:
    if role not in ROLES:
        raise BadOption(f"role {role!r}: use one of {', '.join(ROLES)}")
    checked: Role = role
    return checked


def _identify_local(request: HTTPConnection) -> Principal:
    """Without credentials: loopback only, and with a loopback Host, so that no web page gets in by DNS rebinding."""
    if not _is_loopback(request.headers.get("host", "")) or not _comes_from(request, _LOOPBACK):
        raise HttpError(
            401, "no credentials are set, so only this machine may ask: set a token, users or a proxy's header"
        )
    return _THIS_MACHINE


@lru_cache(maxsize=256)
def _is_loopback(host: str) -> bool:
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        return name == "localhost" or name.endswith(".localhost") or ip_address(name).is_loopback
    except ValueError:
        return False


def _comes_from(request: HTTPConnection, networks: tuple[str, ...]) -> bool:
    """Whether the peer's address is in one of these networks; a Unix socket counts as local."""
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


def _check_secret(secret: Any, kind: str) -> str:
    if not isinstance(secret, str) or len(secret) < 8:
        raise BadOption(f"{kind} needs at least 8 characters, such as: openssl rand -hex 16")
    return secret


def _digest(*parts: str) -> bytes:
    """A hash, so that all compared values have one length."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).digest()


def _basic_digest(scheme: str, value: str) -> bytes:
    try:
        name, _, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return b""
    return _digest("user", name, password) if scheme.lower() == "basic" else b""
