"""Options that select jobs by filter, and actions on all jobs that match."""

import functools
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import click

from penstock.api.selection import Choice, ProgressCallback, Selection, choose
from penstock.cli.exit_codes import CliError, Exit
from penstock.cli.options import duration
from penstock.cli.output import Printer, plural, print_json
from penstock.cli.target import run
from penstock.cli.terminal import echo
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


def with_filter(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options that select jobs, as one argument `choice`; None if none of them is used."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapper(*args: Any, **options: Any) -> None:
            filters = {name: options.pop(name) for name in _NAMES if name in options}
            used = {name: value for name, value in filters.items() if value is not None}
            command(*args, choice=choose(**used) if used else None, **options)

        for name, option in reversed(list(zip(_NAMES, _OPTIONS, strict=True))):
            if name not in without:
                wrapper = option(wrapper)
        return wrapper

    return decorate


all_option = click.option("--all", "everything", is_flag=True, help="All of them, without a filter.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Only count them.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is destroyed; without a terminal, --yes is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CliError(f"{question} Nobody is there to be asked: give --yes", Exit.USAGE)
    if not click.confirm(question, err=True):
        raise CliError("nothing was changed", Exit.FAILED)


def run_on_matching(
    client: Client,
    printer: Printer,
    choice: Choice,
    action: Callable[[Selection, ProgressCallback], Awaitable[int]],
    verb: str,
    *,
    dry_run: bool,
    question: str | None = None,
    yes: bool = True,
    why_left: tuple[str, str] | None = None,
) -> None:
    """Apply an action to all jobs that match, page by page; with a question, count them and ask first.

    The question has {them} for the jobs. `verb` is the past participle for the result. `why_left` says why some jobs
    were left out, in the singular and the plural.
    """
    selection, matched = Selection(lambda: client, choice), 0
    if dry_run or question:
        matched = run(client, lambda _: selection.count(_progress("counting")))
        _clear_progress()
        if dry_run or not matched:
            _print({"matched": matched, verb: 0}, f"{_matching(matched)}; nothing was changed", printer)
            return
        confirm(question_about(matched, question or ""), yes=yes)
    changed = run(client, lambda _: action(selection, _progress(verb)))
    _clear_progress()
    row = {"matched": max(matched, changed) if why_left else changed, verb: changed}
    _print(row, f"{plural(changed, 'job', 'jobs')} {verb}", printer)
    report_left(matched - changed, why_left)


def _matching(number: int) -> str:
    return plural(number, "job matches", "jobs match")


def question_about(number: int, question: str) -> str:
    """The question with the number of jobs that match before it."""
    return f"{_matching(number)}. {question.format(them='it' if number == 1 else 'them')}"


def report_left(number: int, why: tuple[str, str] | None) -> None:
    """Say how many jobs were left as they are, and why."""
    if number > 0 and why:
        echo(plural(number, *why), err=True)


def _print(row: dict[str, int], text: str, printer: Printer) -> None:
    if printer.is_json:
        print_json(row)
    else:
        echo(text)


def _progress(verb: str) -> ProgressCallback:
    """Shows on a terminal how many jobs are done so far."""
    if not sys.stderr.isatty():
        return lambda _: None
    return lambda number: click.echo(f"\r{verb} {number:,} …", nl=False, err=True)


def _clear_progress() -> None:
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)
