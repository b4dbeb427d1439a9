"""Who sent a request: by a token, a password, a session, the header of a trusted proxy, or the program's own login."""

import base64
import binascii
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from starlette.requests import HTTPConnection, Request

from penstock.http import credentials
from penstock.http.guesses import Guesses
from penstock.http.principal import Principal, Role
from penstock.http.problems import Cause, HttpError, Refused
from penstock.http.sessions import Sessions
from penstock.http.this_machine import NAME, READ_ONLY, ThisMachine
from penstock.http.tokens import Grant, Grants, TokenFile, grants_of, token_digest, user_digest
from penstock.http.trusted_header import Trust, client_address, comes_from

#: A login of the program: who sent this request, or None.
Login = Callable[[Request], Awaitable[Principal | None]]
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True)
class Access:
    """The ways in which a sender proves who they are; the first that proves somebody counts."""

    secrets: Grants = field(default_factory=lambda: Grants({}))  #: of tokens and users
    token_file: TokenFile | None = None
    trust: Trust | None = None
    login: Login | None = None
    this_machine: ThisMachine | None = None  #: if there are no other ways
    proxies: Sequence[str] = ()  #: of which X-Forwarded-For is believed
    asks_for_password: bool = False  #: whether a browser should ask its user for name and password
    link_token: str = ""  #: the token that was made for a link: `/?token=…` is answered with a session
    sessions: Sessions = field(default_factory=Sessions)
    guesses: Guesses = field(default_factory=Guesses)

    async def identify(self, request: Request) -> Principal:
        """The sender of a request; 401 if nothing proves one."""
        if self.this_machine is not None:
            return self.this_machine.identify(request)
        digest, refused = self._presented(request), None
        try:
            principal = self._by_session(request) if digest is None else self._by_secret(request, digest)
        except Refused as error:
            principal, refused = None, error
        principal = principal or self._by_proxy(request) or await self._by_login(request)
        if principal is not None:
            return principal
        if digest is None or refused is None:
            raise refused or self._unauthorized("none", "")
        self._count(request, digest, refused)
        raise refused

    def address_of(self, request: HTTPConnection) -> str:
        return client_address(request, self.proxies)

    def with_hint(self, refused: Refused) -> Refused:
        """The same, with what to do to be allowed more if nobody has credentials."""
        if self.this_machine is None:
            return refused
        return Refused(refused.cause, f"{refused}: {self.this_machine.hint}", refused.status, refused.headers)

    def token_of_session(self, request: HTTPConnection) -> tuple[bytes, Grant] | None:
        """The token, by its digest, that the request's session was opened with, and what that allows."""
        name = self.sessions.named(request)
        for grants in self._all_grants() if name else ():
            digest = grants.by_session.get(name)
            if digest is not None and self.sessions.is_valid(request, digest):
                return digest, grants.by_digest[digest]
        return None

    def principal_of_token(self, request: HTTPConnection, token: str) -> Principal:
        """Who has this token; 401 if nobody has."""
        digest = token_digest(token)
        try:
            return self._by_secret(request, digest)
        except Refused as refused:
            self._count(request, digest, refused)
            raise

    def _presented(self, request: HTTPConnection) -> bytes | None:
        """The digest of the token or password in a request."""
        header = request.headers.get("authorization")
        if header is None:
            token = request.query_params.get("token") if self.link_token else None
            return None if token is None else token_digest(token)
        scheme, _, value = header.partition(" ")
        return _basic_digest(value) if scheme.lower() == "basic" else token_digest(value)

    def _by_secret(self, request: HTTPConnection, digest: bytes) -> Principal:
        if not self.guesses.were_right(digest):
            self.guesses.check(self.address_of(request), digest)
        for grants in self._all_grants():
            if (grant := grants.by_digest.get(digest)) is not None:
                self.guesses.was_right(digest)
                return self._unexpired(grant)
        raise self._unauthorized("wrong", "these credentials are wrong: ")

    def _count(self, request: HTTPConnection, digest: bytes, refused: Refused) -> None:
        if refused.cause == "wrong":
            self.guesses.was_wrong(self.address_of(request), digest)

    def _by_session(self, request: HTTPConnection) -> Principal | None:
        found = self.token_of_session(request)
        return None if found is None else self._unexpired(found[1])

    def _by_proxy(self, request: HTTPConnection) -> Principal | None:
        trust = self.trust
        names = request.headers.getlist(trust.header) if trust else []
        if trust is None or not any(names) or not comes_from(request, trust.proxies):
            return None
        if len(names) > 1:
            raise Refused("proxy", f"{trust.header} came {len(names)} times: the proxy must replace what clients send")
        if not trust.expects(request.headers.get("host", "")):
            raise Refused("host", "this host name is not expected: name it with --allowed-host or Trust(hosts=[…])")
        return trust.principal_of(names[0])

    async def _by_login(self, request: Request) -> Principal | None:
        principal = await self.login(request) if self.login is not None else None
        if principal is not None and not isinstance(principal, Principal):
            raise TypeError(f"access= returned {principal!r}: return a penstock.Principal or None")
        return principal

    def _all_grants(self) -> Sequence[Grants]:
        return (self.secrets,) if self.token_file is None else (self.secrets, self.token_file.grants)

    def _unexpired(self, grant: Grant) -> Principal:
        if grant.has_expired:
            text = f"this token has expired on {grant.expires:%Y-%m-%d}: ask for another one (penstock token new)"
            raise Refused("expired", text, 401, self._challenge())
        return grant.principal

    def _unauthorized(self, cause: Cause, why: str) -> Refused:
        todo = "give a token (Authorization: Bearer …) or other credentials"
        if self.link_token:
            todo = "open the link that was printed at the start, or give its token (Authorization: Bearer …)"
        return Refused(cause, f"{why}{todo}", 401, self._challenge())

    def _challenge(self) -> dict[str, str]:
        return {"WWW-Authenticate": 'Basic realm="penstock", charset="UTF-8"' if self.asks_for_password else "Bearer"}


def access_by(
    *,
    tokens: Mapping[str, Role | Principal] | None = None,
    users: Mapping[str, tuple[str, Role | Principal]] | None = None,
    trust: Trust | None = None,
    token_file: str | Path | None = None,
    login: Login | None = None,
    proxies: Sequence[str] = (),
) -> Access:
    """Access by these credentials, or if there are none by those of the environment; without any, read-only."""
    if not (tokens or users or trust or token_file or login):
        tokens = credentials.parse_tokens(credentials.list_from(credentials.TOKENS))
        users = credentials.parse_users(credentials.list_from(credentials.USERS))
        trust = _trust_of_environment(proxies)
        token_file = credentials.path_from(credentials.TOKEN_FILE)
    if not (tokens or users or trust or token_file or login):
        return Access(this_machine=READ_ONLY)
    return Access(
        secrets=Grants(grants_of(tokens or {}, users or {})),
        token_file=None if token_file is None else TokenFile(token_file),
        trust=trust,
        login=login,
        proxies=tuple(proxies) or (trust.proxies if trust else credentials.list_from(credentials.PROXIES)),
        asks_for_password=bool(users),
        sessions=Sessions(os.environ.get(credentials.SESSION_KEY, "")),
    )


def access_by_link(token: str) -> Access:
    """Access by one token that is an admin's, for a link that has it."""
    principal = Principal(NAME, "admin")
    return Access(secrets=Grants(grants_of({token: principal}, {})), link_token=token)


def _trust_of_environment(proxies: Sequence[str]) -> Trust | None:
    return credentials.parse_trust(
        os.environ.get(credentials.TRUST, ""),
        proxies or credentials.list_from(credentials.PROXIES),
        credentials.list_from(credentials.ALLOWED_HOSTS),
    )


def check_origin(request: HTTPConnection, method: str) -> None:
    """Refuse a change that another site makes a browser send with the user's credentials (CSRF).

    Browsers never send a token by themselves, so what comes with one was meant.
    """
    if method in _SAFE_METHODS or request.headers.get("authorization", "").lower().startswith("bearer "):
        return
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        is_same_site = site in {"same-origin", "none"}
    else:
        is_same_site = origin is None or origin.partition("://")[2] == request.headers.get("host")
    if not is_same_site:
        raise Refused("site", "another site asked for this (Origin, Sec-Fetch-Site): it is refused")
    if "cookie" in request.headers and not request.headers.get("content-type", "").startswith("application/json"):
        raise HttpError(415, "with a cookie every change is sent as JSON: Content-Type: application/json")


def _basic_digest(value: str) -> bytes:
    try:
        name, _, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return token_digest(value)
    return user_digest(name, password)
