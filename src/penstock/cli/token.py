"""`penstock token`: tokens of the HTTP service."""

import hashlib
import os
import re
import secrets
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click

from penstock.cli.exit_codes import CliError, Exit
from penstock.cli.help import Group, examples
from penstock.cli.options import duration, output_option
from penstock.cli.output import print_json
from penstock.cli.terminal import echo
from penstock.errors import BadOption
from penstock.http.principal import ROLES, Principal, check_role

FILE_VARIABLE: Final = "PENSTOCK_HTTP_TOKEN_FILE"
_PREFIX: Final = "pst_"  #: by which scanners for leaked secrets can know one
_BYTES: Final = 32
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


@click.group(cls=Group)
def token() -> None:
    """Make tokens for the HTTP service."""


@token.command(
    epilog=examples(
        "penstock token new grafana --role viewer --file tokens.toml",
        "penstock token new mailer --role enqueuer --queue 'mail.*' --most-urgent 20 --expires 90d --file tokens.toml",
        "penstock serve shop.tasks:app --token-file tokens.toml",
    )
)
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), required=True, help="What it allows.")
@click.option("--contents/--no-contents", default=None, help="Whether it reads arguments, results, errors and logs.")
@click.option("--limits/--no-limits", default=None, help="Whether it sets limits and rates with a job.")
@click.option(
    "--queue", "queues", multiple=True, metavar="NAME", help="A queue to use, such as 'mail.*'.  [default: all]"
)
@click.option("--task", "tasks", multiple=True, metavar="NAME", help="A task to use.  [default: all]")
@click.option("--most-urgent", type=click.IntRange(0, 99), help="The lowest number that may be given as a priority.")
@click.option("--max-retries", type=click.IntRange(0, 10_000), help="The largest number that may be given as retries.")
@click.option("--max-timeout", metavar="DURATION", help="The longest timeout that may be given.")
@click.option("--expires", type=duration, metavar="DURATION", help="How long it is good: 90d.  [default: for ever]")
@click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path),
    envvar=FILE_VARIABLE,
    metavar="FILE",
    help=f"Add it to this file.  [default: ${FILE_VARIABLE}]",
)
@output_option
def new(
    name: str,
    role: str,
    queues: tuple[str, ...],
    tasks: tuple[str, ...],
    expires: float | None,
    path: Path | None,
    output: str,
    **bounds: Any,
) -> None:
    """Make a token, and print it: it is nowhere else.

    The file gets its SHA-256, its name and what it allows; a running service reads the file again. Without a file, what
    belongs there is printed, too.
    """
    settings = {"role": role, **{key: value for key, value in bounds.items() if value is not None}}
    settings |= {key: list(names) for key, names in (("queues", queues), ("tasks", tasks)) if names}
    Principal(name, check_role(role), **{key: value for key, value in settings.items() if key != "role"})
    secret = _PREFIX + secrets.token_urlsafe(_BYTES)
    sha256 = hashlib.sha256(secret.encode()).hexdigest()
    entry = _entry(name, {"sha256": sha256, **settings}, expires)
    if path is not None:
        _add(path, name, entry)
        echo(f"{name} was added to {path}", err=True)
    elif output == "table":
        echo(f"add this to the file of --token-file:\n\n{entry}", err=True)
    if output == "json":
        print_json(
            {"name": name, "token": secret, "sha256": sha256, "file": str(path) if path else None, "entry": entry}
        )
    else:
        echo(secret)


def _entry(name: str, settings: dict[str, Any], expires: float | None) -> str:
    """A token as the file has it."""
    key = name if _BARE_KEY.fullmatch(name) else _text(name)
    lines = [f"[tokens.{key}]", *(f"{key} = {_value(value)}" for key, value in settings.items())]
    if expires is not None:
        lines.append(f"expires = {datetime.now(UTC) + timedelta(seconds=expires):%Y-%m-%dT%H:%M:%SZ}")
    return "\n".join(lines) + "\n"


def _add(path: Path, name: str, entry: str) -> None:
    """Add it to the file, which is replaced at once, so that a service never reads half of it."""
    try:
        before, mode = (path.read_text("utf-8"), path.stat().st_mode & 0o777) if path.exists() else ("", 0o600)
        if name in tomllib.loads(before).get("tokens", {}):
            raise CliError(f"{path} has a token {name!r}: take another name, or remove that one", Exit.USAGE)
        copy = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        with os.fdopen(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
            file.write(f"{before.rstrip()}\n\n{entry}" if before.strip() else entry)
        copy.replace(path)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadOption(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case list():
            return f"[{', '.join(map(_text, value))}]"
        case str():
            return _text(value)
    return str(value)


def _text(value: str) -> str:
    """A basic string of TOML."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
