"""The host names under which a service may be asked, so that a web page cannot get at it by a name of its own.

Anybody can have a name of theirs lead to 127.0.0.1 (DNS rebinding). A browser then lets their page read the answers,
but it still sends that name as Host. Nobody can rebind an IP address.
"""

from collections.abc import Collection
from ipaddress import ip_address

from penstock.errors import BadOption


def is_expected_host(host: str, allowed: Collection[str] = ()) -> bool:
    """Whether this Host is localhost, an IP address, or one of the allowed names; `*.example.com` allows all below."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    name = name.lower().removesuffix(".")
    return is_local_name(name) or _is_address(name) or any(_matches(name, pattern) for pattern in allowed)


def is_local_name(name: str) -> bool:
    return name == "localhost" or name.endswith(".localhost")


def _matches(name: str, pattern: str) -> bool:
    return name.endswith(pattern[1:]) if pattern.startswith("*") else name == pattern


def host_name(value: str) -> str:
    """A name as `is_expected_host` takes it; BadOption if it is a URL, or has a port."""
    name = value.strip().lower().removesuffix(".")
    if not name or any(char in name for char in "/:@ ") or "*" in name.removeprefix("*."):
        raise BadOption(f"allowed host {value!r}: use a name such as jobs.example.com or *.example.com, without a port")
    return name


def _is_address(name: str) -> bool:
    try:
        ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True
