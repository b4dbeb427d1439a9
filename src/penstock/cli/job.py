"""`penstock job`: jobs by their ids or by filter."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import click
import msgspec

from penstock.api.job import Job, missing
from penstock.api.selection import Choice, choose
from penstock.app import Penstock
from penstock.cli.exit_codes import Exit, code_of
from penstock.cli.filters import dry_run, filtered, steer, yes
from penstock.cli.help import Group, examples
from penstock.cli.job_lists import ended, list_jobs, print_log, refuse_mixture
from penstock.cli.options import duration, targeted
from penstock.cli.output import Printer, Row, clean, counted, print_fields, print_table, span, unlike
from penstock.cli.target import Target, run
from penstock.client.client import Client
from penstock.errors import PenstockError, Unavailable
from penstock.model.codec import HIDDEN, decode_any
from penstock.model.options import queue_name


@click.group(cls=Group)
def job() -> None:
    """Look at jobs, cancel them, run them again."""


_ids = click.argument("ids", metavar="ID...", nargs=-1, required=True)
_some = click.argument("ids", metavar="[ID...]", nargs=-1)


@job.command(
    epilog=examples(
        "penstock job ls --queue mail --state dead",
        "penstock job ls --error TimeoutError --newer-than 1h -o json | jq -r '.[].id'",
    )
)
@filtered()
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="So many at most.")
@click.option("--cursor", default="", help="Go on where another listing ended.")
@targeted
def ls(target: Target, printer: Printer, choice: Choice | None, limit: int, cursor: str) -> None:
    """List jobs: those that run first, then those that wait, then the dead and the finished."""
    list_jobs(target, printer, choice or choose(), limit, cursor)


@job.command(
    epilog=examples(
        "penstock job move --queue mail --tag big --to slow",
        "penstock job move --task shop.tasks:send --to slow --dry-run",
    )
)
@_some
@filtered("group")
@click.option("--to", required=True, metavar="QUEUE", help="The other queue.")
@dry_run
@targeted
def move(
    target: Target, printer: Printer, ids: tuple[str, ...], choice: Choice | None, to: str, *, dry_run: bool
) -> None:
    """Have jobs that wait do so in another queue, in the order in which they had come."""
    refuse_mixture(ids, choice)
    queue = queue_name(to)
    if choice is not None:
        steer(
            target.open_hub(),
            printer,
            choice,
            lambda found, told: found.move(queue, told),
            "moved",
            dry=dry_run,
        )
        return

    async def work(client: Client, found: Job[Any]) -> Row:
        (word,) = await client.engine.transfer([found.id], queue)
        if word == "missing":
            raise missing(found.id)
        if word != "ok":
            raise PenstockError(f"job {found.id} is {word}: only one that waits can be moved")
        return {"id": found.id, "state": (await found.status()).state, "queue": queue}

    _each(target, printer, ids, lambda client, _app, found: work(client, found), _print_state)


@job.command(epilog=examples("penstock job log GMhDvFiI8U01", "penstock job log GMhDvFiI8U01 -f"))
@click.argument("id_", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Print what it writes until it has ended.")
@targeted
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
@targeted
def show(target: Target, printer: Printer, ids: tuple[str, ...], *, traceback: bool) -> None:
    """Print what is known of jobs: state, times, attempts that did not succeed, progress, and why it does not run."""
    _each(target, printer, ids, _look, lambda row: _print_status(row, traceback=traceback), between="")


@job.command(
    epilog=examples(
        "penstock job cancel GMhDvFiI8U01",
        "penstock job cancel --queue mail --older-than 1d --dry-run",
        "penstock job cancel --queue mail --older-than 1d --yes",
    )
)
@_some
@filtered("group")
@dry_run
@yes
@targeted
def cancel(
    target: Target, printer: Printer, ids: tuple[str, ...], choice: Choice | None, *, dry_run: bool, yes: bool
) -> None:
    """Cancel jobs; those that run are asked to stop.

    Prints the state that each is in now; `cancelling` is one that still runs. One that had ended already is an error
    (exit code 1). With a filter all that fit are cancelled, counted first.
    """
    refuse_mixture(ids, choice)
    if choice is not None:
        steer(
            target.open_hub(),
            printer,
            choice,
            lambda found, told: found.cancel(told=told),
            "cancelled",
            dry=dry_run,
            question="Cancel {them}?",
            sure=yes,
        )
        return

    async def work(found: Job[Any]) -> Row:
        before = await found.status()
        state = await found.cancel()
        if ended(state) or before.state == "cancelled":
            raise PenstockError(f"job {found.id} was not cancelled: it had ended before, it is {state}")
        return {"id": found.id, "state": state}

    _each(target, printer, ids, lambda _client, _app, found: work(found), _print_state)


@job.command(
    epilog=examples(
        "penstock job retry GMhDvFiI8U01",
        "penstock job retry --state dead --error TimeoutError --dry-run",
    )
)
@_some
@filtered()
@dry_run
@targeted
def retry(target: Target, printer: Printer, ids: tuple[str, ...], choice: Choice | None, *, dry_run: bool) -> None:
    """Run dead or cancelled jobs again, with a fresh budget of tries."""
    refuse_mixture(ids, choice)
    if choice is not None:
        wanted = choice._replace(state=choice.state or "dead")
        steer(target.open_hub(), printer, wanted, lambda found, told: found.retry(told), "retried", dry=dry_run)
        return

    async def work(found: Job[Any]) -> Row:
        await found.retry()
        return {"id": found.id, "state": "ready"}

    _each(target, printer, ids, lambda _client, _app, found: work(found), _print_state)


@job.command(name="run", epilog=examples("penstock job run GMhDvFiI8U01"))
@_ids
@targeted
def run_now(target: Target, printer: Printer, ids: tuple[str, ...]) -> None:
    """Run scheduled jobs now."""

    async def work(found: Job[Any]) -> Row:
        await found.run_now()
        return {"id": found.id, "state": "ready"}

    _each(target, printer, ids, lambda _client, _app, found: work(found), _print_state)


@job.command(epilog=examples("penstock job reschedule GMhDvFiI8U01 --delay 10m"))
@_ids
@click.option("--delay", type=duration, required=True, help="From now: 250ms, 30s, 10m, 2h, 3d.")
@targeted
def reschedule(target: Target, printer: Printer, ids: tuple[str, ...], *, delay: float) -> None:
    """Give jobs that are scheduled or wait in line another time."""

    async def work(found: Job[Any]) -> Row:
        await found.reschedule(delay=delay)
        return {"id": found.id, "state": (await found.status()).state}

    _each(target, printer, ids, lambda _client, _app, found: work(found), _print_state)


def _each(
    target: Target,
    printer: Printer,
    ids: tuple[str, ...],
    ask: Callable[[Client, Penstock | None, Job[Any]], Awaitable[Row]],
    show: Callable[[Row], None],
    between: str | None = None,
) -> None:
    """Ask for each id; one that fails is reported and keeps none of the others back."""
    client, app = target.open()
    codes: list[Exit] = []

    async def one(client: Client, job_id: str) -> Row:
        try:
            return await ask(client, app, Job(client, job_id, decode_any, created=False))
        except Unavailable:
            raise
        except PenstockError as error:
            codes.append(code_of(error))
            return {"id": job_id, "error": str(error)}

    async def work(client: Client) -> list[Row]:
        return [await one(client, job_id) for job_id in ids]

    rows = run(client, work)
    for row in rows:
        if "error" in row:
            click.echo(f"Error: {row['error']}", err=True)
    printer.answers(rows if printer.is_json else [row for row in rows if "error" not in row], show, between)
    if codes:
        click.get_current_context().exit(max(codes))


async def _look(client: Client, app: Penstock | None, found: Job[Any]) -> Row:
    """All that may be shown. Which arguments are secret is known to the task: without it, none are shown."""
    record = await client.views.job(found.id)
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
        click.secho("\nattempts that did not succeed", bold=True)
        print_table(
            ("#", "outcome", "started", "took", "worker", "error"), [_attempt(failure) for failure in row["attempts"]]
        )
    if traceback and row["attempts"]:
        click.echo("\n" + "\n".join(map(clean, row["attempts"][-1]["traceback"].splitlines())))


def _fields(row: Row) -> list[tuple[str, Any]]:
    return [
        ("job", row["id"]),
        ("state", row["state"] + (f" ({reason})" if (reason := unlike(row["reason"], row["state"])) else "")),
        ("explain", row["explain"]),
        ("task", row["task"]),
        ("arguments", _json(row["arguments"]) if row["arguments"] else None),
        ("tags", row["tags"]),
        ("queue", f"{row['queue']}, priority {row['priority']}"),
        ("attempt", f"{row['attempt']}, with {counted(row['retries'], 'retry', 'retries')}"),
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
