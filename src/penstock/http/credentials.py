"""Credentials as they are written in the environment or on the command line."""

import os
from collections.abc import Iterable, Mapping
from typing import Final

from penstock.errors import BadOption
from penstock.http.access import ROLES, Access, Role, Trust, check_role

TOKENS: Final = "PENSTOCK_HTTP_TOKENS"
USERS: Final = "PENSTOCK_HTTP_USERS"
TRUST: Final = "PENSTOCK_HTTP_TRUST"
PROXIES: Final = "PENSTOCK_HTTP_PROXIES"


def access(
    tokens: Mapping[str, Role] | None = None,
    users: Mapping[str, tuple[str, Role]] | None = None,
    trust: Trust | None = None,
) -> Access:
    """Access by these credentials, or if there are none by those of the environment."""
    if tokens or users or trust:
        return Access(tokens, users, trust)
    return Access(
        parse_tokens(_list_from(TOKENS)),
        parse_users(_list_from(USERS)),
        parse_trust(os.environ.get(TRUST, ""), _list_from(PROXIES)),
    )


def parse_tokens(texts: Iterable[str]) -> dict[str, Role]:
    """Parse `TOKEN` or `ROLE:TOKEN`; without a role it is an admin's."""
    tokens: dict[str, Role] = {}
    for text in texts:
        role, colon, token = text.partition(":")
        if colon and role in ROLES:
            tokens[token] = check_role(role)
        else:
            tokens[text] = "admin"
    return tokens


def parse_users(texts: Iterable[str]) -> dict[str, tuple[str, Role]]:
    """Parse `NAME:PASSWORD:ROLE`."""
    users: dict[str, tuple[str, Role]] = {}
    for text in texts:
        name, _, rest = text.partition(":")
        password, _, role = rest.rpartition(":")
        if not password:
            raise BadOption("a user is written as name:password:role")
        users[name] = (password, check_role(role))
    return users


def parse_trust(text: str, proxies: Iterable[str]) -> Trust | None:
    """Parse `HEADER` or `HEADER:ROLE`; the proxies are addresses or networks, this machine if there are none."""
    if not text:
        return None
    header, _, role = text.partition(":")
    checked_role, networks = check_role(role or "operator"), tuple(proxies)
    return Trust(header, checked_role, networks) if networks else Trust(header, checked_role)


def _list_from(variable: str) -> list[str]:
    return [part.strip() for part in os.environ.get(variable, "").split(",") if part.strip()]
