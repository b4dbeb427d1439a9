"""Options that choose jobs, and what is done with all of them together."""

import functools
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import click

from penstock.api.selection import Choice, Selection, Told, choose
from penstock.cli.exit_codes import Exit, Failure
from penstock.cli.options import duration
from penstock.cli.output import Printer, counted, print_json
from penstock.cli.target import run
from penstock.client.client import Client
from penstock.model.header import STATES

_OPTIONS = (
    click.option("--queue", help="Of this queue."),
    click.option("--task", help="Of this task; without its module, of all that are called so."),
    click.option("--state", type=click.Choice(STATES), help="In this state."),
    click.option("--tag", help="With this tag; a job that is done has none any more."),
    click.option("--error", metavar="TEXT", help="Whose last error has this in its class or message."),
    click.option("--group", metavar="FINGERPRINT", help="Dead of this error: see penstock dead ls."),
    click.option("--older-than", type=duration, metavar="AGE", help="In their state for longer: 30s, 10m, 2h, 3d."),
    click.option("--newer-than", type=duration, metavar="AGE", help="In their state for less than that."),
)
_NAMES = ("queue", "task", "state", "tag", "error", "group", "older_than", "newer_than")


def filtered(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options that choose jobs, as one argument `choice`; None if none of them was given."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def begin(*args: Any, **rest: Any) -> None:
            given = {name: rest.pop(name) for name in _NAMES if name in rest}
            found = {name: value for name, value in given.items() if value is not None}
            command(*args, choice=choose(**found) if found else None, **rest)

        for name, option in reversed(list(zip(_NAMES, _OPTIONS, strict=True))):
            if name not in without:
                begin = option(begin)
        return begin

    return decorate


all_of_them = click.option("--all", "everything", is_flag=True, help="All of them, without a filter.")
dry_run = click.option("--dry-run", is_flag=True, help="Only count them.")
yes = click.option("--yes", is_flag=True, help="Do not ask.")


def confirm(question: str, *, sure: bool) -> None:
    """Ask before something is destroyed; where nobody can answer, --yes must be given."""
    if sure:
        return
    if not sys.stdin.isatty():
        raise Failure(f"{question} Nobody is there to be asked: give --yes", Exit.USAGE)
    if not click.confirm(question, err=True):
        raise Failure("nothing was changed", Exit.FAILED)


def steer(
    client: Client,
    printer: Printer,
    choice: Choice,
    act: Callable[[Selection, Told], Awaitable[int]],
    word: str,
    *,
    dry: bool,
    question: str | None = None,
    sure: bool = True,
    rest: tuple[str, str] | None = None,
) -> None:
    """Count the jobs, ask if need be, then do it to all of them, page by page.

    The question has {them} for the jobs; `rest` says why some were left out, for one and for many.
    """
    selection, number = Selection(lambda: client, choice), 0
    if dry or question:
        number = run(client, lambda _: selection.count(_told("counting")))
        _clear()
        if dry or not number:
            _print({"matched": number, word: 0}, f"{matching(number)}; nothing was changed", printer)
            return
        confirm(ask_about(number, question or ""), sure=sure)
    done = run(client, lambda _: act(selection, _told(word)))
    _clear()
    _print(
        {"matched": max(number, done) if rest else done, word: done}, f"{counted(done, 'job', 'jobs')} {word}", printer
    )
    say_rest(number - done, rest)


def matching(number: int) -> str:
    return counted(number, "job matches", "jobs match")


def ask_about(number: int, question: str) -> str:
    """Before what is done to all that match."""
    return f"{matching(number)}. {question.format(them='it' if number == 1 else 'them')}"


def say_rest(number: int, why: tuple[str, str] | None) -> None:
    """Tell of those that nothing was done to."""
    if number > 0 and why:
        click.echo(counted(number, *why), err=True)


def _print(row: dict[str, int], text: str, printer: Printer) -> None:
    if printer.is_json:
        print_json(row)
    else:
        click.echo(text)


def _told(word: str) -> Told:
    """On a terminal, how many so far."""
    if not sys.stderr.isatty():
        return lambda _: None
    return lambda number: click.echo(f"\r{word} {number:,} …", nl=False, err=True)


def _clear() -> None:
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)
