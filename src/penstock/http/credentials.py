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
    """What was given, else what the environment says."""
    if tokens or users or trust:
        return Access(tokens, users, trust)
    return Access(
        parse_tokens(_listed(TOKENS)),
        parse_users(_listed(USERS)),
        parse_trust(os.environ.get(TRUST, ""), _listed(PROXIES)),
    )


def parse_tokens(texts: Iterable[str]) -> dict[str, Role]:
    """`TOKEN`, or `ROLE:TOKEN`; without a role it may do everything."""
    found: dict[str, Role] = {}
    for text in texts:
        role, colon, token = text.partition(":")
        if colon and role in ROLES:
            found[token] = check_role(role)
        else:
            found[text] = "admin"
    return found


def parse_users(texts: Iterable[str]) -> dict[str, tuple[str, Role]]:
    """`NAME:PASSWORD:ROLE`."""
    found: dict[str, tuple[str, Role]] = {}
    for text in texts:
        name, _, rest = text.partition(":")
        password, _, role = rest.rpartition(":")
        if not password:
            raise BadOption("a user is written as name:password:role")
        found[name] = (password, check_role(role))
    return found


def parse_trust(text: str, proxies: Iterable[str]) -> Trust | None:
    """`HEADER`, or `HEADER:ROLE`; the proxies are addresses or networks, this machine if there are none."""
    if not text:
        return None
    header, _, role = text.partition(":")
    found, given = Trust(header, check_role(role or "operator")), tuple(proxies)
    return Trust(header, found.role, given) if given else found


def _listed(variable: str) -> list[str]:
    return [part.strip() for part in os.environ.get(variable, "").split(",") if part.strip()]
