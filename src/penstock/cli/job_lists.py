"""`penstock job ls|move|log`: jobs by filter, and what one of them wrote."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click
import msgspec

from penstock.api.events import JobEvents
from penstock.api.job import JobStatus, missing, moment
from penstock.api.selection import Choice, Selection
from penstock.cli.exit_codes import Exit, Failure
from penstock.cli.output import Printer, Row, ago, clean, counted, print_json, print_table, unlike
from penstock.cli.target import Target, run
from penstock.client.client import Client
from penstock.engine.read.views import JobLog, LogLine
from penstock.model.header import FINISHED

COLUMNS = ("id", "state", "task", "queue", "attempt", "since", "why")


def row_of(job: JobStatus) -> Row:
    """A job as a listing shows it."""
    row: dict[str, Any] = msgspec.to_builtins(job, builtin_types=(datetime,))
    row.pop("arguments")
    return row | {"error": _error(job)}


def _error(job: JobStatus) -> str | None:
    last = job.attempts[-1] if job.attempts else None
    return f"{last.type}: {last.message.partition(chr(10))[0]}" if last else None


def _line(job: JobStatus) -> list[Any]:
    why = " ".join(filter(None, (unlike(job.reason, job.state), _error(job))))
    return [job.id, job.state, job.task, job.queue, job.attempt, ago(job.since), why[:100] or None]


def list_jobs(target: Target, printer: Printer, choice: Choice, limit: int | None, cursor: str) -> None:
    """Print jobs page by page, so that any number of them takes the memory of one page."""
    client = target.open_hub()
    selection = Selection(lambda: client, choice)

    async def work(_: Client) -> tuple[int, str]:
        printed, place = 0, cursor
        while True:
            page, following = await selection.page(place)
            if limit is not None and printed + len(page) >= limit:
                show(page[: limit - printed], printer, first=not printed)
                whole = limit - printed == len(page)
                return limit, following if whole else place
            show(page, printer, first=not printed)
            printed += len(page)
            if not following:
                return printed, ""
            place = following

    printed, more = run(client, work)
    if printer.is_json:
        click.echo("]" if printed else "[]")
    elif not printed:
        click.echo("no such jobs", err=True)
    elif more:
        click.echo(f"there may be more: --limit, or --cursor {more}", err=True)


def show(page: Sequence[JobStatus], printer: Printer, *, first: bool) -> None:
    """A page: rows of a table, or of an array that grows as they come."""
    if printer.is_json:
        for job in page:
            click.echo(("[" if first else ",") + msgspec.json.encode(row_of(job)).decode())
            first = False
    elif page:
        print_table(COLUMNS, [_line(job) for job in page], header=first)


def print_log(target: Target, printer: Printer, job_id: str, *, follow: bool) -> None:
    """The lines of a job, and with `follow` those that it writes until it has ended."""
    client = target.open_hub()
    run(client, lambda found: _follow(found, printer, job_id) if follow else _print_once(found, printer, job_id))


async def _print_once(client: Client, printer: Printer, job_id: str) -> None:
    await _known(client, job_id)
    found = await client.views.log(job_id)
    if printer.is_json:
        print_json([_line_row(line) for line in found.lines])
        return
    if not found.lines:
        click.echo("it wrote no lines that are kept", err=True)
    _print_lines(found, 0, printer)


async def _follow(client: Client, printer: Printer, job_id: str) -> None:
    """Woken up by its events, so that nothing polls; what was written before the end is printed before the end."""
    await _known(client, job_id)
    seen = 0
    events = JobEvents(client.engine, job_id)
    async for event in events:
        if event.kind in {"log", "gap"} or not seen:
            seen = _print_lines(await client.views.log(job_id), seen, printer)
    await asyncio.sleep(0.5)  # the last lines come a moment after the end
    _print_lines(await client.views.log(job_id), seen, printer)


async def _known(client: Client, job_id: str) -> None:
    if await client.views.job(job_id) is None:
        raise missing(job_id)


def _print_lines(log: JobLog, seen: int, printer: Printer) -> int:
    """Those after the first so many; how many there were by now."""
    if log.gone > seen and not printer.is_json:
        click.echo(f"({counted(log.gone - seen, 'line is', 'lines are')} no longer kept)", err=True)
    for line in log.lines[max(seen - log.gone, 0) :]:
        _print_line(line, printer)
    return log.gone + len(log.lines)


def _print_line(line: LogLine, printer: Printer) -> None:
    if printer.is_json:
        click.echo(msgspec.json.encode(_line_row(line)))
        return
    time = f"{moment(line.at).astimezone():%H:%M:%S.%f}"[:-3]
    texts = [clean(text) for text in line.text.splitlines()] or [""]
    click.echo(f"{time} #{line.attempt} {line.level:<7} " + "\n    ".join(texts))


def _line_row(line: LogLine) -> Row:
    return {"at": moment(line.at), "attempt": line.attempt, "level": line.level, "text": line.text}


def ended(state: str) -> bool:
    """Whether what was asked for came too late."""
    return state in FINISHED and state != "cancelled"


def refuse_mixture(ids: Sequence[str], choice: Choice | None) -> None:
    """Jobs are named, or chosen by a filter."""
    if bool(ids) == (choice is not None):
        raise Failure("name jobs by their ids, or choose them by a filter such as --queue: one of both", Exit.USAGE)
