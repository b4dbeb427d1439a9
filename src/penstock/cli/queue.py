"""`penstock queue`: list queues, pause, resume, bound and purge them."""

from collections.abc import Awaitable, Callable

import click

from penstock.api.lane import check_limit
from penstock.api.queue import check_size
from penstock.api.selection import Selection, choose
from penstock.cli.exit_codes import CliError, Exit
from penstock.cli.filters import confirm, dry_run_option, yes_option
from penstock.cli.help import Group, examples
from penstock.cli.options import with_target
from penstock.cli.output import Printer, Row, plural
from penstock.cli.target import Target, run
from penstock.cli.terminal import echo
from penstock.cli.workers import serves
from penstock.client.client import Client
from penstock.engine.read.lane_views import LaneViews
from penstock.engine.read.views import QueueSettings
from penstock.model.header import STATES, WAITING
from penstock.model.options import queue_name, task_name, unknown

_COLUMNS = ("queue", "paused", *STATES, "limit", "max_size", "workers")


@click.group(cls=Group)
def queue() -> None:
    """List queues, pause, resume, bound and purge them."""


@queue.command(
    epilog=examples(
        "penstock queue ls",
        "penstock queue ls --namespace shop --url redis://db:6379 -o json",
    )
)
@with_target
def ls(target: Target, printer: Printer) -> None:
    """List all queues: how many jobs are in which state, and how many workers serve them."""
    rows = target.run(_rows)
    if not rows:
        echo("no queues yet: nothing was enqueued here", err=True)
    printer.print_rows(rows, _COLUMNS)


_names = click.argument("names", metavar="NAME...", nargs=-1)
_tasks = click.option("--task", "tasks", multiple=True, help="A task instead of queues; may be repeated.")


@queue.command(
    epilog=examples(
        "penstock queue pause mail",
        "penstock queue pause --task shop.tasks:send     # its jobs in all queues",
    )
)
@_names
@_tasks
@click.option("--new", is_flag=True, help="Also one that has had no job yet.")
@with_target
def pause(target: Target, printer: Printer, names: tuple[str, ...], tasks: tuple[str, ...], *, new: bool) -> None:
    """Have no more jobs of these queues, or tasks, started; those that run go on."""
    if tasks:
        _pause_tasks(target, printer, tasks, names, paused=True)
        return

    async def pause_one(client: Client, name: str) -> Row:
        return {"queue": name, "paused": True, "changed": await client.engine.pause(name) == "ok"}

    _for_each(target, printer, names, pause_one, new=new)


@queue.command(
    epilog=examples(
        "penstock queue resume mail",
        "penstock queue resume --task shop.tasks:send",
    )
)
@_names
@_tasks
@with_target
def resume(target: Target, printer: Printer, names: tuple[str, ...], tasks: tuple[str, ...]) -> None:
    """Let paused queues, or tasks, go on."""
    if tasks:
        _pause_tasks(target, printer, tasks, names, paused=False)
        return

    async def resume_one(client: Client, name: str) -> Row:
        return {"queue": name, "paused": False, "changed": await client.engine.resume(name) == "ok"}

    _for_each(target, printer, names, resume_one, new=False)


@queue.command(
    name="set",
    epilog=examples("penstock queue set mail --limit 3 --max-size 100000", "penstock queue set mail --reset"),
)
@click.argument("name")
@click.option("--limit", type=int, help="At most so many of its jobs run at once.")
@click.option("--max-size", type=int, help="At most so many wait in it: then enqueueing is refused.")
@click.option("--reset", is_flag=True, help="Any number of both.")
@with_target
def set_(target: Target, printer: Printer, name: str, *, limit: int | None, max_size: int | None, reset: bool) -> None:
    """Bound how many jobs of a queue run, or wait, at once."""
    checked = queue_name(name)
    if reset and (limit is not None or max_size is not None):
        raise click.UsageError("--reset lifts both: give it alone")
    if not reset and limit is None and max_size is None:
        raise click.UsageError("nothing to set: use --limit, --max-size or --reset")
    running = -1 if reset else None if limit is None else check_limit(limit)
    waiting = -1 if reset else None if max_size is None else check_size(max_size)

    async def change(client: Client) -> Row:
        await client.engine.cap(checked, running, waiting)
        setting = await client.views.queue_setting(checked)
        return {"queue": checked, "limit": setting.limit, "max_size": setting.max_size}

    printer.print_results([target.run(change)], _print_bounds)


@queue.command(epilog=examples("penstock queue purge mail --dry-run", "penstock queue purge mail --yes"))
@click.argument("name")
@dry_run_option
@yes_option
@with_target
def purge(target: Target, printer: Printer, name: str, *, dry_run: bool, yes: bool) -> None:
    """Cancel all jobs that wait in a queue; those that run go on, the dead stay."""
    client, checked = target.open_client(), queue_name(name)

    async def count(client: Client) -> int:
        rows = {str(row["queue"]): row for row in await _rows(client)}
        if checked not in rows:
            raise CliError(unknown("queue", checked, rows), Exit.NOT_FOUND)
        return sum(int(rows[checked][state]) for state in WAITING)

    number = run(client, count)
    if number and not dry_run:
        waiting = plural(number, "job waits", "jobs wait")
        confirm(f"{waiting} in {checked}. Cancel {'it' if number == 1 else 'them'}?", yes=yes)

    async def cancel(client: Client) -> int:
        cancelled = 0
        for state in ("scheduled", "held", "ready"):
            cancelled += await Selection(lambda: client, choose(queue=checked, state=state)).cancel("purged")
        return cancelled

    cancelled = 0 if dry_run else run(client, cancel)
    printer.print_results([{"queue": checked, "matched": number, "cancelled": cancelled}], _print_purged)


def _print_bounds(row: Row) -> None:
    running, waiting = (row["limit"], row["max_size"])
    echo(f"{row['queue']}  runs {_at_most(running)} at once, {_at_most(waiting)} may wait")


def _at_most(number: int | None) -> str:
    return "any number" if number is None else f"at most {number}"


def _print_purged(row: Row) -> None:
    echo(f"{row['queue']}  {plural(row['matched'], 'job', 'jobs')} waited, {row['cancelled']} cancelled")


def _pause_tasks(
    target: Target, printer: Printer, tasks: tuple[str, ...], names: tuple[str, ...], *, paused: bool
) -> None:
    """Pause or resume tasks, which affects their jobs in all queues."""
    if names:
        raise click.UsageError("name queues, or give --task: one of both")
    client, app = target.open()
    for task in tasks:
        if app is not None:
            app.find_task(task)

    async def work(client: Client) -> list[Row]:
        rows: list[Row] = []
        for task in tasks:
            lane = f"task:{task_name(task)}"
            before = await LaneViews(client.engine.script_client).lane(lane)
            await client.engine.tune(lane, paused=paused)
            rows.append({"task": task, "paused": paused, "changed": before.paused != paused})
        return rows

    printer.print_results(run(client, work), _print)


def _for_each(
    target: Target,
    printer: Printer,
    names: tuple[str, ...],
    action: Callable[[Client, str], Awaitable[Row]],
    *,
    new: bool,
) -> None:
    """Check all names before the first queue is changed."""
    if not names:
        raise click.UsageError("name at least one queue, or give --task")
    checked = [queue_name(name) for name in names]

    async def work(client: Client) -> list[Row]:
        known = [] if new else [str(row["queue"]) for row in await _rows(client)]
        for name in checked:
            if not new and name not in known:
                raise CliError(
                    f"{unknown('queue', name, known)}; --new pauses one before its first job", Exit.NOT_FOUND
                )
        return [await action(client, name) for name in checked]

    printer.print_results(target.run(work), _print)


def _print(row: Row) -> None:
    state = "paused" if row["paused"] else "open"
    echo(f"{row.get('queue') or row.get('task')}  {state}" + ("" if row["changed"] else " (it was already)"))


async def _rows(client: Client) -> list[Row]:
    views = client.views
    counts, settings, workers = await views.counts(), await views.queue_settings(), await views.workers()
    served = {name for worker in workers for name in worker.queues} - {"*"}
    return [
        {
            "queue": name,
            "paused": settings.get(name, QueueSettings()).paused,
            **{state: counts.get(name, {}).get(state, 0) for state in STATES},
            "limit": settings.get(name, QueueSettings()).limit,
            "max_size": settings.get(name, QueueSettings()).max_size,
            "workers": sum(serves(worker, name) for worker in workers),
        }
        for name in sorted(counts.keys() | settings.keys() | served)
    ]
