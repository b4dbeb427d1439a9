"""Tokens and passwords: what each allows, found by its digest. The file of tokens is read again when it changes."""

import hashlib
import logging
import re
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime
from datetime import time as clock_time
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from penstock.errors import BadOption
from penstock.http.principal import Principal, Role, check_role
from penstock.http.sessions import session_id
from penstock.model.options import unknown

log = logging.getLogger("penstock.http")

MIN_SECRET: Final = 8  #: characters
CHECK_INTERVAL: Final = 1.0  #: seconds between two looks at the file
_SHA256: Final = re.compile(r"[0-9a-f]{64}\Z")
_KEYS: Final = ("sha256", "expires", *(field.name for field in fields(Principal) if field.name != "name"))


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token or a password allows, and until when."""

    principal: Principal
    expires: datetime | None = None

    @property
    def has_expired(self) -> bool:
        return self.expires is not None and self.expires <= datetime.now(UTC)


@dataclass(frozen=True)
class Grants:
    """Grants by the digest of the token, or of name and password.

    They are looked up, not compared one by one: what the time of that tells about a digest is of no use to anybody who
    cannot choose a token by its SHA-256.
    """

    by_digest: Mapping[bytes, Grant]

    @cached_property
    def by_session(self) -> Mapping[str, bytes]:
        """Session id → digest of its token."""
        return {session_id(digest): digest for digest in self.by_digest}


def token_digest(token: str) -> bytes:
    """SHA-256 of the token, as `printf %s TOKEN | sha256sum` prints it in hexadecimal."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def user_digest(name: str, password: str) -> bytes:
    return token_digest(f"user\0{name}\0{password}")  # no header can hold a NUL, so no token has this digest


def grants_of(
    tokens: Mapping[str, Role | Principal], users: Mapping[str, tuple[str, Role | Principal]]
) -> dict[bytes, Grant]:
    """The grants of tokens and users; BadOption for a short secret, which the error does not show."""
    grants: dict[bytes, Grant] = {}
    for token, allowed in tokens.items():
        digest = token_digest(_check_secret(token, "a token"))
        grants[digest] = Grant(_principal(allowed, f"token {digest.hex()[:8]}"))
    for name, (password, allowed) in users.items():
        if not name or ":" in name:
            raise BadOption(f"user {name!r}: use a name without a colon")
        grants[user_digest(name, _check_secret(password, "a password"))] = Grant(_principal(allowed, name))
    return grants


def _principal(allowed: Role | Principal, name: str) -> Principal:
    return allowed if isinstance(allowed, Principal) else Principal(name, check_role(allowed))


def _check_secret(secret: Any, kind: str) -> str:
    if not isinstance(secret, str) or len(secret) < MIN_SECRET:
        raise BadOption(f"{kind} needs at least {MIN_SECRET} characters, such as: openssl rand -hex 16")
    return secret


# The file


class TokenFile:
    """A TOML file of named tokens. A change counts within a second; one that cannot be read is logged, and ignored."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path).absolute()
        self._state = _state(self._path)
        self._grants = read_tokens(self._path)
        self._checked = time.monotonic()

    @property
    def grants(self) -> Grants:
        """Those of the file as it is now."""
        if time.monotonic() - self._checked >= CHECK_INTERVAL:
            self._checked = time.monotonic()
            self._read_again()
        return self._grants

    def _read_again(self) -> None:
        state = _state(self._path)
        if state == self._state:
            return
        self._state = state
        try:
            self._grants = read_tokens(self._path)
        except BadOption as error:
            log.error("%s; the tokens that were read before still count", error)  # noqa: TRY400  (it says all)
        else:
            log.info("%s was read again: %d tokens", self._path, len(self._grants.by_digest))


def read_tokens(path: Path) -> Grants:
    """The tokens of a file; BadOption says what is wrong, and where."""
    try:
        may_be_written_by_all = path.stat().st_mode & 0o002
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadOption(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if may_be_written_by_all:
        raise BadOption(f"{path}: everybody may write to it, so anybody could add a token: chmod o-w {path}")
    try:
        return grants_in(document)
    except BadOption as error:
        raise BadOption(f"{path}: {error}") from None


def grants_in(document: Mapping[str, Any]) -> Grants:
    """The tokens in such a document."""
    for name in document.keys() - {"tokens"}:
        raise BadOption(f"unknown section {name!r}: a token is written as [tokens.its-name]")
    by_digest: dict[bytes, Grant] = {}
    for digest, grant in _entries(document.get("tokens", {})):
        if digest in by_digest:
            raise BadOption(f"{grant.principal.name} and {by_digest[digest].principal.name} are the same token")
        by_digest[digest] = grant
    return Grants(by_digest)


def _entries(tokens: Mapping[str, Any]) -> Iterator[tuple[bytes, Grant]]:
    for name, entry in tokens.items():
        if not isinstance(entry, dict):
            raise BadOption(f"tokens.{name}: a token is written as [tokens.its-name]")
        for key in entry.keys() - set(_KEYS):
            raise BadOption(f"tokens.{name}: {unknown('key', key, _KEYS)}")
        sha256, expires = str(entry.pop("sha256", "")).lower(), entry.pop("expires", None)
        if not _SHA256.match(sha256):
            raise BadOption(f"tokens.{name}: sha256 is the SHA-256 of the token in hexadecimal: penstock token new")
        if "role" not in entry:
            raise BadOption(f'tokens.{name}: it has no role: role = "viewer"')
        yield bytes.fromhex(sha256), Grant(Principal(name, **entry), _expiry(expires, name))


def _expiry(value: Any, name: str) -> datetime | None:
    """An instant; a date is its beginning in UTC."""
    if value is None or (isinstance(value, datetime) and value.tzinfo is not None):
        return value
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime.combine(value, clock_time(), UTC)
    raise BadOption(f"tokens.{name}: expires={value!r}: use a date, or a time with its zone: 2030-01-31T08:00:00Z")


def _state(path: Path) -> tuple[int, int, int] | None:
    """What differs when a file was changed or replaced; None if it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
