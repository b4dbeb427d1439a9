"""Credentials as they are written in the environment or on the command line."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from penstock.errors import BadOption
from penstock.http.principal import ROLES, Role, check_role
from penstock.http.trusted_header import Trust

TOKENS: Final = "PENSTOCK_HTTP_TOKENS"
USERS: Final = "PENSTOCK_HTTP_USERS"
TRUST: Final = "PENSTOCK_HTTP_TRUST"
PROXIES: Final = "PENSTOCK_HTTP_PROXIES"
ALLOWED_HOSTS: Final = "PENSTOCK_HTTP_ALLOWED_HOSTS"
TOKEN_FILE: Final = "PENSTOCK_HTTP_TOKEN_FILE"  # noqa: S105  (the name of a variable)
SESSION_KEY: Final = "PENSTOCK_HTTP_SESSION_KEY"


def parse_tokens(texts: Iterable[str]) -> dict[str, Role]:
    """Parse `TOKEN` or `ROLE:TOKEN`; without a role it is an admin's. No error shows a part of a token."""
    tokens: dict[str, Role] = {}
    for text in texts:
        role, colon, token = text.partition(":")
        if not colon:
            tokens[text] = "admin"
        elif role in ROLES:
            tokens[token] = check_role(role)
        else:
            raise BadOption(
                f"a token with a colon begins with its role, one of {', '.join(ROLES)}, as in viewer:TOKEN; an admin's"
                " token that has a colon itself is written as admin:TOKEN"
            )
    return tokens


def parse_users(texts: Iterable[str]) -> dict[str, tuple[str, Role]]:
    """Parse `NAME:PASSWORD:ROLE`. No error shows a part of a password."""
    users: dict[str, tuple[str, Role]] = {}
    for text in texts:
        name, _, rest = text.partition(":")
        password, _, role = rest.rpartition(":")
        if not password or role not in ROLES:
            raise BadOption(f"a user is written as name:password:role; the role is one of {', '.join(ROLES)}")
        users[name] = (password, check_role(role))
    return users


def parse_trust(text: str, proxies: Iterable[str], hosts: Iterable[str] = ()) -> Trust | None:
    """Parse `HEADER` or `HEADER:ROLE`."""
    if not text:
        return None
    header, _, role = text.partition(":")
    return Trust(header, check_role(role or "operator"), tuple(proxies), tuple(hosts))


def list_from(variable: str) -> list[str]:
    """The values of a variable, which are separated by commas."""
    return [part.strip() for part in os.environ.get(variable, "").split(",") if part.strip()]


def path_from(variable: str) -> Path | None:
    value = os.environ.get(variable, "")
    return Path(value) if value else None
