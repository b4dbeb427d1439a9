"""What the commands' options have in common."""

import functools
from collections.abc import Callable, Collection
from typing import Any

import click

from penstock.cli.logs import talk
from penstock.cli.output import Printer
from penstock.cli.target import Target
from penstock.errors import BadOption
from penstock.model.durations import milliseconds
from penstock.model.options import meant


def duration(text: str) -> float:
    """Seconds, from a number of them or a text such as 250ms, 30s, 10m, 2h, 3d."""
    try:
        value: float | str = float(text)
    except ValueError:
        value = text
    try:
        return milliseconds(value) / 1000
    except BadOption:
        raise click.BadParameter(f"{text!r}: use seconds, or such as 250ms, 30s, 10m, 2h, 3d") from None


def full_name(name: str, known: Collection[str]) -> str:
    """What a name without its module stands for, if only one that is known ends in it; else the name itself."""
    found = meant(name, known)
    return found[0] if len(found) == 1 else name


_app = click.option("-A", "--app", metavar="MODULE:ATTR", help="The app.")
_url = click.option("--url", metavar="URL", help="The server, instead of the app's.")
_namespace = click.option(
    "--namespace",
    metavar="NAME",
    help="The namespace, instead of the app's name; what needs no task then runs without its code.",
)
_output = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to print."
)


def targeted(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command --app, --url, --namespace and -o, as its first two arguments: a Target and a Printer."""

    @functools.wraps(command)
    def begin(app: str | None, url: str | None, namespace: str | None, output: str, **rest: Any) -> None:
        talk("ERROR", output)
        command(Target(app, url, namespace), Printer(output), **rest)

    return _app(_url(_namespace(_output(begin))))
