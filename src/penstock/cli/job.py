"""`penstock job`: list and read jobs, cancel, retry, move and reschedule them."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import click
import msgspec

from penstock.api.job import Job, missing
from penstock.api.selection import Choice, Selection, choose
from penstock.app import Penstock
from penstock.cli.exit_codes import Exit, code_of
from penstock.cli.filters import dry_run_option, run_on_matching, with_filter, yes_option
from penstock.cli.help import Group, examples
from penstock.cli.job_lists import print_jobs, print_log, require_ids_or_filter, too_late_to_cancel
from penstock.cli.options import duration, with_target
from penstock.cli.output import Printer, Row, plural, print_fields, print_table, span, unless_same
from penstock.cli.target import Target, run
from penstock.cli.terminal import echo
from penstock.client.client import Client
from penstock.errors import PenstockError, Unavailable
from penstock.model.codec import decode_any
from penstock.model.options import queue_name
from penstock.model.redaction import HIDDEN


@click.group(cls=Group)
def job() -> None:
    """Look at jobs, cancel them, run them again."""


_ids = click.argument("ids", metavar="ID...", nargs=-1, required=True)
_optional_ids = click.argument("ids", metavar="[ID...]", nargs=-1)


@job.command(
    epilog=examples(
        "penstock job ls --queue mail --state dead",
        "penstock job ls --error TimeoutError --newer-than 1h -o json | jq -r '.[].id'",
    )
)
@with_filter()
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="So many at most.")
@click.option("--cursor", default="", help="Go on where another listing ended.")
@with_target
def ls(target: Target, printer: Printer, choice: Choice | None, limit: int, cursor: str) -> None:
    """List jobs: those that run first, then those that wait, then the dead and the finished."""
    print_jobs(target, printer, choice or choose(), limit, cursor)


@job.command(
    epilog=examples(
        "penstock job move --queue mail --tag big --to slow",
        "penstock job move --task shop.tasks:send --to slow --dry-run",
    )
)
@_optional_ids
@with_filter("group")
@click.option("--to", required=True, metavar="QUEUE", help="The other queue.")
@dry_run_option
@with_target
def move(
    target: Target, printer: Printer, ids: tuple[str, ...], choice: Choice | None, to: str, *, dry_run: bool
) -> None:
    """Have jobs that wait do so in another queue, in the order in which they had come."""
    require_ids_or_filter(ids, choice)
    queue = queue_name(to)
    client = target.open_client()
    if choice is not None:
        run_on_matching(
            client,
            printer,
            choice,
            lambda jobs, progress: jobs.move(queue, progress),
            "moved",
            dry_run=dry_run,
        )
        return

    async def move_one(handle: Job[Any]) -> Row:
        (word,) = await client.engine.transfer([handle.id], queue)
        if word == "missing":
            raise missing(handle.id)
        if word != "ok":
            raise PenstockError(f"job {handle.id} is {word}: only one that waits can be moved")
        return {"id": handle.id, "state": (await handle.status()).state, "queue": queue}

    _for_each(client, printer, ids, move_one, _print_state)


@job.command(epilog=examples("penstock job log GMhDvFiI8U01", "penstock job log GMhDvFiI8U01 -f"))
@click.argument("id_", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Print what it writes until it has ended.")
@with_target
def log(target: Target, printer: Printer, id_: str, *, follow: bool) -> None:
    """Print the last lines that a job wrote: by current_job().log(), or logged while it ran.

    With -f and -o json an object per line.
    """
    print_log(target, printer, id_, follow=follow)


@job.command(
    epilog=examples(
        "penstock job show GMhDvFiI8U01",
        "penstock job show GMhDvFiI8U01 -t",
        "penstock job show GMhDvFiI8U01 -o json | jq .state",
    )
)
@_ids
@click.option("-t", "--traceback", is_flag=True, help="With the last error's traceback.")
@with_target
def show(target: Target, printer: Printer, ids: tuple[str, ...], *, traceback: bool) -> None:
    """Print what is known of jobs: state, times, attempts that did not succeed, progress, and why it does not run."""
    client, app = target.open()
    print_job = partial(_print_status, traceback=traceback)
    _for_each(client, printer, ids, partial(_read, client, app), print_job, separator="")


@job.command(
    epilog=examples(
        "penstock job cancel GMhDvFiI8U01",
        "penstock job cancel --queue mail --older-than 1d --dry-run",
        "penstock job cancel --queue mail --older-than 1d --yes",
    )
)
@_optional_ids
@with_filter("group")
@dry_run_option
@yes_option
@with_target
def cancel(
    target: Target, printer: Printer, ids: tuple[str, ...], choice: Choice | None, *, dry_run: bool, yes: bool
) -> None:
    """Cancel jobs; those that run are asked to stop.

    Prints the state that each is in now; `cancelling` is one that still runs. One that had ended already is an error
    (exit code 1). With a filter all that match are cancelled, counted first.
    """
    require_ids_or_filter(ids, choice)
    if choice is not None:
        run_on_matching(
            target.open_client(),
            printer,
            choice,
            lambda jobs, progress: jobs.cancel(on_progress=progress),
            "cancelled",
            dry_run=dry_run,
            question="Cancel {them}?",
            yes=yes,
        )
        return

    async def cancel_one(handle: Job[Any]) -> Row:
        before = await handle.status()
        state = await handle.cancel()
        if too_late_to_cancel(state) or before.state == "cancelled":
            raise PenstockError(f"job {handle.id} was not cancelled: it had ended before, it is {state}")
        return {"id": handle.id, "state": state}

    _for_each(target.open_client(), printer, ids, cancel_one, _print_state)


@job.command(
    epilog=examples(
        "penstock job retry GMhDvFiI8U01",
        "penstock job retry --state dead --error TimeoutError --dry-run",
    )
)
@_optional_ids
@with_filter()
@dry_run_option
@with_target
def retry(target: Target, printer: Printer, ids: tuple[str, ...], choice: Choice | None, *, dry_run: bool) -> None:
    """Run dead or cancelled jobs again, with a fresh budget of tries."""
    require_ids_or_filter(ids, choice)
    if choice is not None:
        dead = choice._replace(state=choice.state or "dead")
        run_on_matching(target.open_client(), printer, dead, Selection.retry, "retried", dry_run=dry_run)
        return

    async def retry_one(handle: Job[Any]) -> Row:
        await handle.retry()
        return {"id": handle.id, "state": "ready"}

    _for_each(target.open_client(), printer, ids, retry_one, _print_state)


@job.command(name="run", epilog=examples("penstock job run GMhDvFiI8U01"))
@_ids
@with_target
def run_now(target: Target, printer: Printer, ids: tuple[str, ...]) -> None:
    """Run scheduled jobs now."""

    async def run_one(handle: Job[Any]) -> Row:
        await handle.run_now()
        return {"id": handle.id, "state": "ready"}

    _for_each(target.open_client(), printer, ids, run_one, _print_state)


@job.command(epilog=examples("penstock job reschedule GMhDvFiI8U01 --delay 10m"))
@_ids
@click.option("--delay", type=duration, required=True, help="From now: 250ms, 30s, 10m, 2h, 3d.")
@with_target
def reschedule(target: Target, printer: Printer, ids: tuple[str, ...], *, delay: float) -> None:
    """Give jobs that are scheduled or wait in line another time."""

    async def reschedule_one(handle: Job[Any]) -> Row:
        await handle.reschedule(delay=delay)
        return {"id": handle.id, "state": (await handle.status()).state}

    _for_each(target.open_client(), printer, ids, reschedule_one, _print_state)


def _for_each(
    client: Client,
    printer: Printer,
    ids: tuple[str, ...],
    action: Callable[[Job[Any]], Awaitable[Row]],
    show: Callable[[Row], None],
    separator: str | None = None,
) -> None:
    """Run the action for each id; an error is reported and stops none of the others."""
    codes: list[Exit] = []

    async def run_action(client: Client, job_id: str) -> Row:
        try:
            return await action(Job(client, job_id, decode_any, created=False))
        except Unavailable:
            raise
        except PenstockError as error:
            codes.append(code_of(error))
            return {"id": job_id, "error": str(error)}

    async def work(client: Client) -> list[Row]:
        return [await run_action(client, job_id) for job_id in ids]

    rows = run(client, work)
    for row in rows:
        if "error" in row:
            echo(f"Error: {row['error']}", err=True)
    printer.print_results(rows if printer.is_json else [row for row in rows if "error" not in row], show, separator)
    if codes:
        click.get_current_context().exit(max(codes))


async def _read(client: Client, app: Penstock | None, handle: Job[Any]) -> Row:
    """The job with its result. Its task knows which arguments are secret; without the task all are hidden."""
    record = await client.views.job(handle.id)
    task = app.tasks.get(record.header.task) if app and record else None
    status = await (task.job(handle.id) if task else handle).status()
    if task is None and status.arguments is not None:
        status = replace(status, arguments=dict.fromkeys(status.arguments, HIDDEN))
    row: dict[str, Any] = msgspec.to_builtins(status, builtin_types=(datetime,))
    row["explain"] = await handle.explain()
    if record is not None and record.result is not None:
        row["result"] = decode_any(record.result)
    return row


def _print_state(row: Row) -> None:
    echo(f"{row['id']}  {row['state']}")


def _print_status(row: Row, *, traceback: bool) -> None:
    print_fields((name, value) for name, value in _fields(row) if value)
    if row["attempts"]:
        echo("\nattempts that did not succeed", bold=True)
        print_table(
            ("#", "outcome", "started", "took", "worker", "error"), [_attempt(failure) for failure in row["attempts"]]
        )
    if traceback and row["attempts"]:
        echo("\n" + "\n".join(row["attempts"][-1]["traceback"].splitlines()))


def _fields(row: Row) -> list[tuple[str, Any]]:
    return [
        ("job", row["id"]),
        ("state", row["state"] + (f" ({reason})" if (reason := unless_same(row["reason"], row["state"])) else "")),
        ("explain", row["explain"]),
        ("task", row["task"]),
        ("arguments", _json(row["arguments"]) if row["arguments"] else None),
        ("tags", row["tags"]),
        ("queue", f"{row['queue']}, priority {row['priority']}"),
        ("attempt", f"{row['attempt']}, with {plural(row['retries'], 'retry', 'retries')}"),
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
