"""`penstock cron`: list, run, pause and resume schedules."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import click
import msgspec

from penstock.api.schedule import Schedule, ScheduleStatus, in_zone, status_of
from penstock.cli.help import Group, examples
from penstock.cli.options import full_name, with_target
from penstock.cli.output import Printer, Row, ago, print_table
from penstock.cli.target import Target
from penstock.cli.terminal import echo
from penstock.client.client import Client
from penstock.errors import ScheduleNotFound
from penstock.model.options import guess


@click.group(cls=Group)
def cron() -> None:
    """List schedules, run, pause and resume them.

    A schedule is named by its id, or by the part after the last colon if only one has it.
    """


@cron.command(
    epilog=examples(
        "penstock cron ls",
        "penstock cron ls -v",
        "penstock cron ls -o json | jq '.[].next'",
    )
)
@click.option("-v", "--verbose", is_flag=True, help="With options, the next times and the last ticks.")
@with_target
def ls(target: Target, printer: Printer, *, verbose: bool) -> None:
    """List all schedules: when they run next, in words, and what they did.

    One that is orphaned was in the code, but in no live worker's any more: it makes no jobs.
    """
    schedules, workers = target.run(_read_all)
    if printer.is_json:
        printer.print_rows([_row(schedule) for schedule in schedules], ())
        return
    if not schedules:
        echo("no schedules yet: @app.cron and @app.every make them when a worker starts", err=True)
        return
    columns = ("schedule", "state", "task", "when", "next", "made", "skipped", "last")
    print_table(columns, [_cells(schedule) for schedule in schedules])
    if not workers:
        echo("no live workers: nobody makes these jobs until one is started (penstock worker)", err=True)
    if verbose:
        for schedule in schedules:
            _print_details(schedule)


_ids = click.argument("ids", metavar="ID...", nargs=-1, required=True)


@cron.command(name="run", epilog=examples("penstock cron run shop.tasks:report"))
@_ids
@with_target
def run_(target: Target, printer: Printer, ids: tuple[str, ...]) -> None:
    """Make a job of these schedules now, whatever their times; prints its id."""

    async def run_now(schedule: Schedule) -> Row:
        job = await schedule.run()
        return {"schedule": schedule.id, "job": job.id, "queued": not job.created}

    _for_each(target, printer, ids, run_now, lambda row: echo(row["job"]))


@cron.command(epilog=examples("penstock cron pause shop.tasks:report"))
@_ids
@with_target
def pause(target: Target, printer: Printer, ids: tuple[str, ...]) -> None:
    """Have these schedules make no jobs; those that were made go on."""

    async def pause_one(schedule: Schedule) -> Row:
        return {"schedule": schedule.id, "state": "paused", "changed": await schedule.pause()}

    _for_each(target, printer, ids, pause_one, _print_state)


@cron.command(epilog=examples("penstock cron resume shop.tasks:report"))
@_ids
@with_target
def resume(target: Target, printer: Printer, ids: tuple[str, ...]) -> None:
    """Let paused schedules go on with their next tick from now."""

    async def resume_one(schedule: Schedule) -> Row:
        changed = await schedule.resume()
        return {"schedule": schedule.id, "state": (await schedule.status()).state, "changed": changed}

    _for_each(target, printer, ids, resume_one, _print_state)


def _for_each(
    target: Target,
    printer: Printer,
    ids: tuple[str, ...],
    action: Callable[[Schedule], Awaitable[Row]],
    show: Callable[[Row], None],
) -> None:
    """Look up all ids before the first schedule is changed."""

    async def work(client: Client) -> list[Row]:
        schedules = [await _find(client, schedule) for schedule in ids]
        return [await action(schedule) for schedule in schedules]

    printer.print_results(target.run(work), show)


async def _find(client: Client, name: str) -> Schedule:
    """The schedule of this id, else the only one whose id ends in it after the last colon."""
    exact = Schedule(client, name)
    if await client.views.cron(exact.id) is not None:
        return exact
    known = [record.id async for record in client.views.crons()]
    if (full := full_name(name, known)) != name:
        return Schedule(client, full)
    raise ScheduleNotFound(f"no schedule {name!r} is known here;{guess(name, known)} `penstock cron ls` lists them")


async def _read_all(client: Client) -> tuple[list[ScheduleStatus], int]:
    """All schedules by their ids, and the number of live workers."""
    now = await client.views.now()
    schedules = [status_of(record, now) async for record in client.views.crons()]
    return sorted(schedules, key=lambda schedule: schedule.id), len(await client.views.workers())


def _row(schedule: ScheduleStatus) -> Row:
    row: dict[str, Any] = msgspec.to_builtins(schedule, builtin_types=(datetime,))
    return row | {"next_in_words": _next(schedule)}


def _cells(schedule: ScheduleStatus) -> tuple[Any, ...]:
    last = schedule.history[-1] if schedule.history else None
    return (
        schedule.id,
        schedule.state,
        schedule.task,
        schedule.words,
        _next(schedule),
        schedule.made,
        schedule.skipped,
        f"{last.outcome} {ago(last.at)}" if last else None,
    )


def _next(schedule: ScheduleStatus) -> str | None:
    """Such as: in 3 h, Tue 17 Nov 2026 03:00:00 CET."""
    return None if schedule.next is None else f"{ago(schedule.next)}, {in_zone(schedule.next, schedule.tz)}"


def _print_details(schedule: ScheduleStatus) -> None:
    echo(f"\n{schedule.id}", bold=True)
    jitter = f", jitter {schedule.jitter:g} s" if schedule.jitter else ""
    policy = f"catch up {schedule.catch_up}, overlap {schedule.overlap}{jitter}"
    echo(f"  from {schedule.source}; {policy}; {schedule.waiting} waiting")
    for at in schedule.upcoming:
        echo(f"  then  {in_zone(at, schedule.tz)}")
    for tick in schedule.history:
        echo(f"  {tick.outcome:<8} {in_zone(tick.nominal, schedule.tz)}  {tick.job}")


def _print_state(row: Row) -> None:
    echo(f"{row['schedule']}  {row['state']}" + ("" if row["changed"] else " (it was already)"))
