"""Lists of jobs by filter, and the log of one job."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from penstock.api.events import JobEvents
from penstock.api.job import JobStatus, missing, moment
from penstock.api.selection import Choice, Selection
from penstock.cli.exit_codes import CliError, Exit
from penstock.cli.output import Printer, Row, ago, plural, print_json, print_json_line, print_table, unless_same
from penstock.cli.target import Target, run
from penstock.cli.terminal import echo
from penstock.client.client import Client
from penstock.engine.read.views import JobLog, LogLine
from penstock.model.header import FINISHED
from penstock.model.printable import escaped

COLUMNS = ("id", "state", "task", "queue", "attempt", "since", "why")


def row_of(job: JobStatus) -> Row:
    """A job in a JSON list."""
    row: dict[str, Any] = msgspec.to_builtins(job, builtin_types=(datetime,))
    row.pop("arguments")
    return row | {"error": _error(job)}


def _error(job: JobStatus) -> str | None:
    last = job.attempts[-1] if job.attempts else None
    return f"{last.type}: {last.message.partition(chr(10))[0]}" if last else None


def _cells(job: JobStatus) -> list[Any]:
    why = " ".join(filter(None, (unless_same(job.reason, job.state), _error(job))))
    return [job.id, job.state, job.task, job.queue, job.attempt, ago(job.since), why[:100] or None]


def print_jobs(target: Target, printer: Printer, choice: Choice, limit: int | None, cursor: str) -> None:
    """Print jobs page by page, so that any number of jobs takes the memory of one page."""
    client = target.open_client()
    selection = Selection(lambda: client, choice)

    async def print_pages(_: Client) -> tuple[int, str]:
        """How many were printed, and the cursor of the rest."""
        printed, current = 0, cursor
        while True:
            page, following = await selection.page(current)
            if limit is not None and printed + len(page) >= limit:
                _print_page(page[: limit - printed], printer, first=not printed)
                is_complete = limit - printed == len(page)
                return limit, following if is_complete else current
            _print_page(page, printer, first=not printed)
            printed += len(page)
            if not following:
                return printed, ""
            current = following

    printed, more = run(client, print_pages)
    if printer.is_json:
        echo("]" if printed else "[]")
    elif not printed:
        echo("no such jobs", err=True)
    elif more:
        echo(f"there may be more: --limit, or --cursor {more}", err=True)


def _print_page(page: Sequence[JobStatus], printer: Printer, *, first: bool) -> None:
    """Print a page as rows of a table, or as the next items of one JSON array."""
    if printer.is_json:
        for job in page:
            print_json_line(row_of(job), "[" if first else ",")
            first = False
    elif page:
        print_table(COLUMNS, [_cells(job) for job in page], header=first)


def print_log(target: Target, printer: Printer, job_id: str, *, follow: bool) -> None:
    """Print the log of a job, and with `follow` what it writes until it has ended."""
    target.run(lambda client: (_follow if follow else _print_once)(client, printer, job_id))


async def _print_once(client: Client, printer: Printer, job_id: str) -> None:
    await _require_job(client, job_id)
    log = await client.views.log(job_id)
    if printer.is_json:
        print_json([_line_row(line) for line in log.lines])
        return
    if not log.lines:
        echo("it wrote no lines that are kept", err=True)
    _print_lines(log, 0, printer)


async def _follow(client: Client, printer: Printer, job_id: str) -> None:
    """Print new lines at each event of the job, so that nothing polls."""
    await _require_job(client, job_id)
    printed = 0
    events = JobEvents(client.engine, job_id)
    async for event in events:
        if event.kind in {"log", "gap"} or not printed:
            printed = _print_lines(await client.views.log(job_id), printed, printer)
    await asyncio.sleep(0.5)  # the last lines come a moment after the end
    _print_lines(await client.views.log(job_id), printed, printer)


async def _require_job(client: Client, job_id: str) -> None:
    if await client.views.job(job_id) is None:
        raise missing(job_id)


def _print_lines(log: JobLog, printed: int, printer: Printer) -> int:
    """Print the lines after those printed before; how many lines the job has written by now."""
    if log.gone > printed and not printer.is_json:
        echo(f"({plural(log.gone - printed, 'line is', 'lines are')} no longer kept)", err=True)
    for line in log.lines[max(printed - log.gone, 0) :]:
        _print_line(line, printer)
    return log.gone + len(log.lines)


def _print_line(line: LogLine, printer: Printer) -> None:
    if printer.is_json:
        print_json_line(_line_row(line))
        return
    time = f"{moment(line.at).astimezone():%H:%M:%S.%f}"[:-3]
    texts = [escaped(text) for text in line.text.splitlines()] or [""]
    echo(f"{time} #{line.attempt} {line.level:<7} " + "\n    ".join(texts))


def _line_row(line: LogLine) -> Row:
    return {"at": moment(line.at), "attempt": line.attempt, "level": line.level, "text": line.text}


def too_late_to_cancel(state: str) -> bool:
    """Whether a job had ended before it could be cancelled."""
    return state in FINISHED and state != "cancelled"


def require_ids_or_filter(ids: Sequence[str], choice: Choice | None) -> None:
    """Jobs are either named by id or selected by a filter."""
    if bool(ids) == (choice is not None):
        raise CliError("name jobs by their ids, or choose them by a filter such as --queue: one of both", Exit.USAGE)
