"""How every command is defined: its target, its output, its log, and the types of its options.

@click.command(epilog=examples("penstock things ls"))
@with_target
def ls(target: Target, printer: Printer) -> None:
printer.print_rows(target.run(list_things), COLUMNS)
"""

import functools
from collections.abc import Callable, Collection
from typing import Any

import click

from penstock.cli.logs import configure_logging
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
    """The only known name that ends in this one after its module; else the name itself."""
    matches = meant(name, known)
    return matches[0] if len(matches) == 1 else name


app_option = click.option("-A", "--app", metavar="MODULE:ATTR", help="The app.")
url_option = click.option("--url", metavar="URL", help="The server, instead of the app's.")
namespace_option = click.option(
    "--namespace",
    metavar="NAME",
    help="The namespace, instead of the app's name; what needs no task then runs without its code.",
)
output_option = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to print."
)


def with_target(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command --app, --url, --namespace and -o, as its first two arguments: a Target and a Printer."""

    @functools.wraps(command)
    def wrapper(app: str | None, url: str | None, namespace: str | None, output: str, **options: Any) -> None:
        if click.get_current_context().invoked_subcommand is None:  # a subcommand does it for itself
            configure_logging("ERROR", output)
        command(Target(app, url, namespace), Printer(output), **options)

    return app_option(url_option(namespace_option(output_option(wrapper))))
