"""Parsing server URLs. A password is never shown again, not even in an error about it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Literal
from urllib.parse import parse_qsl, quote, unquote

from penstock.errors import BadOption
from penstock.model.ownership import resolved
from penstock.model.settings import project_folder

URL_VARIABLE = "PENSTOCK_URL"
DEFAULT_PORT = 6379
MAX_SOCKET_PATH_BYTES = 107  # in a socket address on Linux

Kind = Literal["embedded", "tcp", "unix", "cluster", "sentinel"]
Address = tuple[str, int]

SCHEMES: Mapping[str, tuple[Kind, bool]] = MappingProxyType(
    {
        "embedded": ("embedded", False),
        "unix": ("unix", False),
        "redis": ("tcp", False),
        "rediss": ("tcp", True),
        "redis+cluster": ("cluster", False),
        "rediss+cluster": ("cluster", True),
        "redis+sentinel": ("sentinel", False),
        "rediss+sentinel": ("sentinel", True),
    }
)
TLS_KEYS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
EXAMPLES = "embedded://, redis://host:6379/0, rediss://…, unix:///path.sock?db=0 or redis+cluster://host:6379,host:6380"


@dataclass(frozen=True, slots=True, repr=False)
class Url:
    """A parsed URL; ``str()`` is the URL again, without its password."""

    kind: Kind
    hosts: tuple[Address, ...] = ()
    path: Path = Path()  # the data directory of an embedded server, or the socket of a unix:// one
    tls: bool = False
    username: str | None = None
    password: str | None = None
    db: int = 0
    ssl: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        scheme = next(name for name, meaning in SCHEMES.items() if meaning == (self.kind, self.tls))
        location = ",".join(show(address) for address in self.hosts) or quote(str(self.path))
        db = "" if not self.db else f"?db={self.db}" if self.kind == "unix" else f"/{self.db}"
        return f"{scheme}://{self._credentials()}{location}{db}"

    def __repr__(self) -> str:
        return f"Url({str(self)!r})"

    def _credentials(self) -> str:
        hidden = "" if self.password is None else ":***"
        name = quote(self.username or "", safe="")
        return f"{name}{hidden}@" if name or hidden else ""


@dataclass(frozen=True, slots=True, repr=False)
class _Parts:
    scheme: str
    kind: Kind
    tls: bool
    credentials: str
    hosts: str
    path: str
    settings: Mapping[str, str]


def show(address: Address) -> str:
    """Write an address as host:port, an IPv6 host in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse(text: str | None = None) -> Url:
    """Parse a URL; without one ``$PENSTOCK_URL``, and without that the URL of the embedded server."""
    parts = _split(os.environ.get(URL_VARIABLE) or "embedded://" if text is None else text)
    match parts.kind:
        case "embedded":
            return _embedded(parts)
        case "unix":
            return _unix(parts)
        case "sentinel":
            raise BadOption(f"Sentinel is not supported yet: use the master's own URL, like {EXAMPLES}.")
        case "cluster" | "tcp":
            return _network(parts)


def _split(text: str) -> _Parts:
    scheme, kind, tls, rest = _scheme(text)
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    if "@" in path + query and "@" not in authority and kind != "embedded":
        raise BadOption(f"A password in a {scheme}:// URL must be percent-encoded: write %2F for / and %3F for ?.")
    credentials, _, hosts = authority.rpartition("@")
    return _Parts(scheme, kind, tls, credentials, hosts, slash + path, _settings(scheme, query, tls=tls))


def _scheme(text: str) -> tuple[str, Kind, bool, str]:
    scheme, separator, rest = text.partition("://")
    if not separator:
        shown = "The text" if "@" in text else repr(text)
        raise BadOption(f"{shown} is no URL: write {EXAMPLES}.")
    # Valkey is the same everywhere; `valkeys` is to `valkey` what `rediss` is to `redis`.
    name = scheme.lower().replace("valkey", "redis", 1)
    if name not in SCHEMES:
        similar = get_close_matches(name, SCHEMES, n=1)
        hint = f" Did you mean {similar[0]}://?" if similar else ""
        raise BadOption(f"The URL's scheme {scheme!r} is unknown.{hint} Valid: {EXAMPLES}; valkey… is the same.")
    return scheme, *SCHEMES[name], rest


def _settings(scheme: str, query: str, *, tls: bool) -> dict[str, str]:
    settings = dict(parse_qsl(query, keep_blank_values=True))
    valid = () if scheme == "embedded" else ("db", *TLS_KEYS) if tls else ("db",)
    unknown = sorted(settings.keys() - set(valid))
    if unknown:
        names = ", ".join(valid) or "none"
        raise BadOption(f"A {scheme}:// URL has no setting {unknown[0]!r} after its question mark. Valid: {names}.")
    return settings


def _embedded(parts: _Parts) -> Url:
    if parts.hosts or parts.credentials:
        raise BadOption("An embedded:// URL has no host: write embedded:///some/directory with three slashes.")
    folder = Path(unquote(parts.path)) if parts.path.strip("/") else _project() / ".penstock"
    return Url("embedded", path=resolved(folder))


def _project() -> Path:
    here = Path.cwd()
    return project_folder(here) or here


def _unix(parts: _Parts) -> Url:
    socket = Path(unquote(parts.path))
    if parts.hosts or not parts.path.strip("/"):
        raise BadOption("A unix:// URL needs the absolute path of a socket: write unix:///run/valkey.sock.")
    if len(os.fsencode(socket)) > MAX_SOCKET_PATH_BYTES:
        raise BadOption(f"The socket's path is longer than {MAX_SOCKET_PATH_BYTES} bytes: move it to a shorter one.")
    username, password = _userinfo(parts.credentials)
    return Url("unix", path=socket, username=username, password=password, db=_db(parts.settings.get("db", "")))


def _network(parts: _Parts) -> Url:
    username, password = _userinfo(parts.credentials)
    hosts = tuple(_address(text) for text in parts.hosts.split(","))
    if parts.kind == "tcp" and len(hosts) > 1:
        raise BadOption(f"A {parts.scheme}:// URL has one host; a cluster's is {parts.scheme}+cluster://host,host.")
    db = _db(parts.settings.get("db") or parts.path)
    if parts.kind == "cluster" and db:
        raise BadOption("A cluster has no database but 0: leave the number out of the URL.")
    return Url(parts.kind, hosts, Path(), parts.tls, username, password, db, _tls(parts.settings))


def _userinfo(text: str) -> tuple[str | None, str | None]:
    if not text:
        return None, None
    username, colon, password = text.partition(":")
    if not colon:
        # Most likely a password alone; taken as a user's name it would be shown in messages.
        raise BadOption("Before the @ of a URL stands user:password, or :password for the default user.")
    return unquote(username) or None, unquote(password)


def _address(text: str) -> Address:
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise BadOption("An IPv6 host stands in brackets: write redis://[::1]:6379.")
        port = port[1:]
    else:
        host, _, port = text.partition(":")
        if ":" in port:
            raise BadOption("The URL's host has several colons: write an IPv6 host in brackets, redis://[::1]:6379.")
    return unquote(host) or "localhost", _port(port)


def _port(text: str) -> int:
    if not text:
        return DEFAULT_PORT
    if text.isascii() and text.isdigit() and 0 < int(text) < 65536:
        return int(text)
    raise BadOption(f"The URL's port {text!r} is no number from 1 to 65535.")


def _db(text: str) -> int:
    text = text.strip("/") or "0"
    if text.isascii() and text.isdigit():
        return int(text)
    raise BadOption(f"The URL's database {text!r} is no number: write 0, or leave it out.")


def _tls(settings: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    valid = {"ssl_cert_reqs": ("required", "optional", "none"), "ssl_check_hostname": ("true", "false")}
    for name, value in settings.items():
        if value not in valid.get(name, (value,)):
            raise BadOption(f"The URL's {name} is {value!r}. Valid: {', '.join(valid[name])}.")
    return tuple((name, value) for name, value in settings.items() if name in TLS_KEYS)
