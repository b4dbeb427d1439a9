"""Access without credentials: for programs on this machine only, as far as that can be told from a request.

A proxy on this machine cannot be told apart for certain: its requests come from here, and it may send any Host. What
proxies usually add is refused, and HTTP/1.0, in which nginx asks unless it is told otherwise.
"""

from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import Final

from starlette.requests import HTTPConnection

from penstock.http.principal import Principal
from penstock.http.problems import Refused
from penstock.http.trusted_header import LOOPBACK, comes_from
from penstock.model.hosts import is_local_name

NAME: Final = "this machine"
_OF_PROXIES: Final = frozenset({"forwarded", "via", "x-real-ip"})


@dataclass(frozen=True, slots=True)
class ThisMachine:
    """What programs on this machine may do without credentials, and what to do to be allowed more."""

    principal: Principal
    hint: str

    def identify(self, request: HTTPConnection) -> Principal:
        if sign := _sign_of_a_proxy(request):
            raise Refused("proxy", f"{sign}: a proxy seems to have sent this, and no credentials are set: {self.hint}")
        if not comes_from(request, LOOPBACK):
            raise Refused("none", f"no credentials are set, so only this machine may ask: {self.hint}")
        if not _is_loopback(request.headers.get("host", "")):
            raise Refused("host", f"no credentials are set, so Host can only be localhost: {self.hint}")
        return self.principal


#: `penstock serve --open`: everything is allowed.
OPEN: Final = ThisMachine(Principal(NAME, "admin"), "leave out --open, and give the proxy's users credentials")
#: `app.asgi()` without any credentials: nothing can be changed, and nobody's data is shown.
READ_ONLY: Final = ThisMachine(
    Principal(NAME, "viewer"),
    "give app.asgi() tokens=, users=, trust=, token_file= or access=, or set $PENSTOCK_HTTP_TOKENS",
)


def _sign_of_a_proxy(request: HTTPConnection) -> str:
    for name in request.headers:
        if name in _OF_PROXIES or name.startswith("x-forwarded-"):
            return f"the header {name}"
    return "HTTP/1.0" if request.scope.get("http_version") == "1.0" else ""


@lru_cache(maxsize=256)
def _is_loopback(host: str) -> bool:
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        return is_local_name(name) or ip_address(name).is_loopback
    except ValueError:
        return False
