"""Wrong credentials: an address that has tried a few has to wait until it may try others."""

import time
from collections import OrderedDict
from ipaddress import ip_address
from typing import Final

from penstock.http.problems import Refused

MAX_GUESSES: Final = 5  #: different wrong credentials from one address in one WINDOW
WINDOW: Final = 60.0  #: seconds
MAX_ADDRESSES: Final = 10_000  #: that are remembered; the one that guessed first is forgotten first
_MAX_RIGHT: Final = 10_000  #: right credentials that are remembered


class Guesses:
    """Counts wrong credentials per address.

    Credentials that were right before are always let through, so that nobody locks out those who come from the same
    address or through the same proxy. The same wrong ones count once: a program with an old token is no attack.
    """

    def __init__(self) -> None:
        self._wrong: OrderedDict[str, dict[bytes, float]] = OrderedDict()  #: address → credentials → when
        self._right: OrderedDict[bytes, None] = OrderedDict()

    def were_right(self, digest: bytes) -> bool:
        """Whether these credentials were right before, from whatever address."""
        return digest in self._right

    def check(self, address: str, digest: bytes) -> None:
        """429 if this address has guessed too often to try these credentials now."""
        recent = self._recent(_network(address))
        if len(recent) >= MAX_GUESSES and digest not in recent and not self.were_right(digest):
            seconds = max(1, round(WINDOW - (time.monotonic() - min(recent.values()))))
            text = f"{len(recent)} wrong credentials came from this address: try again in {seconds} s"
            raise Refused("guesses", text, 429, {"Retry-After": str(seconds)})

    def was_right(self, digest: bytes) -> None:
        self._right[digest] = None
        if len(self._right) > _MAX_RIGHT:
            self._right.popitem(last=False)

    def was_wrong(self, address: str, digest: bytes) -> None:
        self._right.pop(digest, None)
        network = _network(address)
        recent = self._recent(network)
        if len(recent) < MAX_GUESSES:
            recent[digest] = time.monotonic()
        self._wrong[network] = recent
        if len(self._wrong) > MAX_ADDRESSES:
            self._wrong.popitem(last=False)

    def _recent(self, network: str) -> dict[bytes, float]:
        begin = time.monotonic() - WINDOW
        return {digest: at for digest, at in self._wrong.get(network, {}).items() if at > begin}


def _network(address: str) -> str:
    """One machine: an IPv4 address, or the 64 bits of an IPv6 address that one is usually given."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4 or parsed.ipv4_mapped is not None:
        return address
    return parsed.exploded[:19]
