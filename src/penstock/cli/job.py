"""`penstock job`: single jobs by their ids."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import click
import msgspec

from penstock.app import Penstock
from penstock.cli.exits import Exit, code_of
from penstock.cli.helps import examples
from penstock.cli.options import duration, targeted
from penstock.cli.output import Printer, Row, clean, print_fields, print_table, span
from penstock.cli.target import Target, run
from penstock.codec import HIDDEN, decode_any
from penstock.errors import PenstockError, Unavailable
from penstock.handle import Job
from penstock.hub import Hub


@click.group
def job() -> None:
    """Look at single jobs, cancel them, run them again."""


_ids = click.argument("ids", metavar="ID...", nargs=-1, required=True)


@job.command(
    epilog=examples(
        "penstock job show mwifdmki26zjknijbs8c",
        "penstock job show mwifdmki26zjknijbs8c -t",
        "penstock job show mwifdmki26zjknijbs8c -o json | jq .state",
    )
)
@_ids
@click.option("-t", "--traceback", is_flag=True, help="With the last error's traceback.")
@targeted
def show(target: Target, printer: Printer, ids: tuple[str, ...], *, traceback: bool) -> None:
    """Print what is known of jobs: state, times, failed attempts, progress, and why it does not run."""
    _each(target, printer, ids, _look, lambda row: _print_status(row, traceback=traceback), between="")


@job.command(
    epilog=examples(
        "penstock job cancel mwifdmki26zjknijbs8c",
    )
)
@_ids
@targeted
def cancel(target: Target, printer: Printer, ids: tuple[str, ...]) -> None:
    """Cancel jobs; those that run are asked to stop.

    Prints the state that each is in now; `cancelling` is one that still runs.
    """

    async def work(found: Job[Any]) -> Row:
        return {"id": found.id, "state": await found.cancel()}

    _each(target, printer, ids, lambda _hub, _app, found: work(found), _print_state)


@job.command(
    epilog=examples(
        "penstock job retry mwifdmki26zjknijbs8c",
    )
)
@_ids
@targeted
def retry(target: Target, printer: Printer, ids: tuple[str, ...]) -> None:
    """Run dead or cancelled jobs again, with a fresh budget of tries."""

    async def work(found: Job[Any]) -> Row:
        await found.retry()
        return {"id": found.id, "state": "ready"}

    _each(target, printer, ids, lambda _hub, _app, found: work(found), _print_state)


@job.command(name="run", epilog=examples("penstock job run mwifdmki26zjknijbs8c"))
@_ids
@targeted
def run_now(target: Target, printer: Printer, ids: tuple[str, ...]) -> None:
    """Run scheduled jobs now."""

    async def work(found: Job[Any]) -> Row:
        await found.run_now()
        return {"id": found.id, "state": "ready"}

    _each(target, printer, ids, lambda _hub, _app, found: work(found), _print_state)


@job.command(epilog=examples("penstock job reschedule mwifdmki26zjknijbs8c --delay 10m"))
@_ids
@click.option("--delay", type=duration, required=True, help="From now: 250ms, 30s, 10m, 2h, 3d.")
@targeted
def reschedule(target: Target, printer: Printer, ids: tuple[str, ...], *, delay: float) -> None:
    """Give jobs that are scheduled or wait in line another time."""

    async def work(found: Job[Any]) -> Row:
        await found.reschedule(delay=delay)
        return {"id": found.id, "state": (await found.status()).state}

    _each(target, printer, ids, lambda _hub, _app, found: work(found), _print_state)


def _each(
    target: Target,
    printer: Printer,
    ids: tuple[str, ...],
    ask: Callable[[Hub, Penstock | None, Job[Any]], Awaitable[Row]],
    show: Callable[[Row], None],
    between: str | None = None,
) -> None:
    """Ask for each id; one that fails is reported and keeps none of the others back."""
    hub, app = target.open()
    codes: list[Exit] = []

    async def one(hub: Hub, job_id: str) -> Row:
        try:
            return await ask(hub, app, Job(hub, job_id, decode_any, created=False))
        except Unavailable:
            raise
        except PenstockError as error:
            codes.append(code_of(error))
            return {"id": job_id, "error": str(error)}

    async def work(hub: Hub) -> list[Row]:
        return [await one(hub, job_id) for job_id in ids]

    rows = run(hub, work)
    for row in rows:
        if "error" in row:
            click.echo(f"Error: {row['error']}", err=True)
    printer.answers(rows if printer.is_json else [row for row in rows if "error" not in row], show, between)
    if codes:
        click.get_current_context().exit(max(codes))


async def _look(hub: Hub, app: Penstock | None, found: Job[Any]) -> Row:
    """All that may be shown. Which arguments are secret is known to the task: without it, none are shown."""
    record = await hub.views.job(found.id)
    task = app.tasks.get(record.header.task) if app and record else None
    status = await (task.job(found.id) if task else found).status()
    if task is None and status.arguments is not None:
        status = replace(status, arguments=dict.fromkeys(status.arguments, HIDDEN))
    row: dict[str, Any] = msgspec.to_builtins(status, builtin_types=(datetime,))
    row["explain"] = await found.explain()
    if record is not None and record.result is not None:
        row["result"] = decode_any(record.result)
    return row


def _print_state(row: Row) -> None:
    click.echo(f"{row['id']}  {row['state']}")


def _print_status(row: Row, *, traceback: bool) -> None:
    print_fields((name, value) for name, value in _fields(row) if value)
    if row["attempts"]:
        click.secho("\nfailed attempts", bold=True)
        print_table(
            ("#", "outcome", "started", "took", "worker", "error"), [_attempt(failure) for failure in row["attempts"]]
        )
    if traceback and row["attempts"]:
        click.echo("\n" + "\n".join(map(clean, row["attempts"][-1]["traceback"].splitlines())))


def _fields(row: Row) -> list[tuple[str, Any]]:
    return [
        ("job", row["id"]),
        ("state", row["state"] + (f" ({row['reason']})" if row["reason"] else "")),
        ("explain", row["explain"]),
        ("task", row["task"]),
        ("arguments", _json(row["arguments"]) if row["arguments"] else None),
        ("tags", row["tags"]),
        ("queue", f"{row['queue']}, priority {row['priority']}"),
        ("attempt", f"{row['attempt']}, with {row['retries']} retries"),
        *((name, row[name]) for name in ("created", "due", "expires", "started", "finished", "worker")),
        ("progress", _progress(*row["progress"]) if row["progress"] else None),
        ("cancelling", "asked for" if row["cancelling"] else None),
        ("result", _json(row["result"]) if "result" in row else None),
    ]


def _attempt(failure: Row) -> tuple[Any, ...]:
    error = ": ".join(filter(None, (failure["type"], failure["message"].partition("\n")[0])))
    took = span((failure["ended"] - failure["started"]).total_seconds())
    started = f"{failure['started']:%H:%M:%S.%f}"[:-3]
    return failure["number"], failure["outcome"], started, took, failure["worker"], error


def _progress(done: float, total: float | None, message: str) -> str:
    share = f" of {total:g} ({done / total:.0%})" if total else ""
    return f"{done:g}{share} {message}".rstrip()


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
