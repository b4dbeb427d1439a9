"""The header in which a proxy names the user, believed only from proxies that are named by their addresses."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Final

from penstock.errors import BadOption
from penstock.http.principal import Principal, Role, check_role
from penstock.model.hosts import host_name, is_expected_host

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

LOOPBACK: Final = ("127.0.0.0/8", "::1/128")
_HEADER: Final = re.compile(r"[A-Za-z0-9-]+\Z")
_MAX_NAME: Final = 100  #: characters of a user's name that are kept


@dataclass(frozen=True, slots=True)
class Trust:
    """A header in which a proxy names the user, and what these users may do; other senders' headers are ignored.

    The proxy has to replace this header in what its clients send. Everybody at these addresses can be any user: with
    127.0.0.1, everybody who has an account on this machine.
    """

    header: str
    role: Role | Principal = "operator"  #: of a principal all but the name counts
    proxies: Sequence[str] = ()  #: addresses or networks
    hosts: Sequence[str] = ()  #: names under which the service may be asked, beside localhost and addresses

    def __post_init__(self) -> None:
        if not _HEADER.match(self.header):
            raise BadOption(f"trust header {self.header!r}: use the name of a header, such as X-Remote-User")
        if not isinstance(self.role, Principal):
            check_role(self.role)
        if not self.proxies:
            raise BadOption(
                f"trust header {self.header}: name the proxies that are believed by their addresses, with"
                " $PENSTOCK_HTTP_PROXIES, --proxy or Trust(proxies=[…]); 127.0.0.1 is one on this machine"
            )
        check_networks(self.proxies)
        object.__setattr__(self, "hosts", tuple(map(host_name, self.hosts)))

    def principal_of(self, name: str) -> Principal:
        """The principal of a user of this name."""
        shown = "".join(char for char in name if char.isprintable())[:_MAX_NAME] or "?"
        return replace(self.role, name=shown) if isinstance(self.role, Principal) else Principal(shown, self.role)

    def expects(self, host: str) -> bool:
        return is_expected_host(host, self.hosts)


def comes_from(request: "HTTPConnection", networks: Sequence[str]) -> bool:
    """Whether the peer's address is in one of these networks; a Unix socket counts as this machine."""
    client, server = request.scope.get("client"), request.scope.get("server")
    if client is None:
        return server is not None and server[1] is None and _is_within("127.0.0.1", tuple(networks))
    return _is_within(client[0], tuple(networks))


def client_address(request: "HTTPConnection", proxies: Sequence[str]) -> str:
    """The address that a request came from; behind one of these proxies, the one that it names."""
    client = request.scope.get("client")
    forwarded = request.headers.getlist("x-forwarded-for")
    if forwarded and comes_from(request, proxies):
        return forwarded[-1].rpartition(",")[2].strip()[:_MAX_NAME]
    return client[0] if client else "this machine"


def check_networks(texts: Sequence[str]) -> None:
    for network in _networks(tuple(texts)):
        if network.prefixlen == 0:
            raise BadOption(f"proxies: {network} is everybody: name the proxies by their addresses")


@lru_cache(maxsize=1024)
def _is_within(host: str, networks: tuple[str, ...]) -> bool:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in _networks(networks))


def _networks(texts: tuple[str, ...]) -> list[IPv4Network | IPv6Network]:
    try:
        return [ip_network(text) for text in texts]
    except ValueError as error:
        raise BadOption(f"proxies: {error}") from None
