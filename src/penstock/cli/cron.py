"""`penstock cron`: what runs when."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import click
import msgspec

from penstock.api.schedule import Schedule, ScheduleStatus, in_zone, status_of
from penstock.cli.help import Group, examples
from penstock.cli.options import full_name, targeted
from penstock.cli.output import Printer, Row, ago, print_table
from penstock.cli.target import Target, run
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
@targeted
def ls(target: Target, printer: Printer, *, verbose: bool) -> None:
    """List all schedules: when they run next, in words, and what they did.

    One that is orphaned was in the code, but in no live worker's any more: it makes no jobs.
    """
    found, workers = run(target.open_hub(), _all)
    if printer.is_json:
        printer.listing([_row(one) for one in found], ())
        return
    if not found:
        click.echo("no schedules yet: @app.cron and @app.every make them when a worker starts", err=True)
        return
    columns = ("schedule", "state", "task", "when", "next", "made", "skipped", "last")
    print_table(columns, [_line(one) for one in found])
    if not workers:
        click.echo("no live workers: nobody makes these jobs until one is started (penstock worker)", err=True)
    if verbose:
        for one in found:
            _print_details(one)


_ids = click.argument("ids", metavar="ID...", nargs=-1, required=True)


@cron.command(name="run", epilog=examples("penstock cron run shop.tasks:report"))
@_ids
@targeted
def run_(target: Target, printer: Printer, ids: tuple[str, ...]) -> None:
    """Make a job of these schedules now, whatever their times; prints its id."""

    async def one(found: Schedule) -> Row:
        job = await found.run()
        return {"schedule": found.id, "job": job.id, "queued": not job.created}

    _each(target, printer, ids, one, lambda row: click.echo(row["job"]))


@cron.command(epilog=examples("penstock cron pause shop.tasks:report"))
@_ids
@targeted
def pause(target: Target, printer: Printer, ids: tuple[str, ...]) -> None:
    """Have these schedules make no jobs; those that were made go on."""

    async def one(found: Schedule) -> Row:
        return {"schedule": found.id, "state": "paused", "changed": await found.pause()}

    _each(target, printer, ids, one, _print_state)


@cron.command(epilog=examples("penstock cron resume shop.tasks:report"))
@_ids
@targeted
def resume(target: Target, printer: Printer, ids: tuple[str, ...]) -> None:
    """Let paused schedules go on with their next tick from now."""

    async def one(found: Schedule) -> Row:
        changed = await found.resume()
        return {"schedule": found.id, "state": (await found.status()).state, "changed": changed}

    _each(target, printer, ids, one, _print_state)


def _each(
    target: Target,
    printer: Printer,
    ids: tuple[str, ...],
    one: Callable[[Schedule], Awaitable[Row]],
    show: Callable[[Row], None],
) -> None:
    """All ids are looked up before the first one is changed."""

    async def work(client: Client) -> list[Row]:
        found = [await _named(client, schedule) for schedule in ids]
        return [await one(schedule) for schedule in found]

    printer.answers(run(target.open_hub(), work), show)


async def _named(client: Client, name: str) -> Schedule:
    """By its id, else by the part after the last colon, as tasks are."""
    exact = Schedule(client, name)
    if await client.views.cron(exact.id) is not None:
        return exact
    known = [one.id async for one in client.views.crons()]
    if (full := full_name(name, known)) != name:
        return Schedule(client, full)
    raise ScheduleNotFound(f"no schedule {name!r} is known here;{guess(name, known)} `penstock cron ls` lists them")


async def _all(client: Client) -> tuple[list[ScheduleStatus], int]:
    """All schedules, and how many live workers there are to run them."""
    now = await client.views.now()
    found = sorted([status_of(one, now) async for one in client.views.crons()], key=lambda one: one.id)
    return found, len(await client.views.workers())


def _row(one: ScheduleStatus) -> Row:
    row: dict[str, Any] = msgspec.to_builtins(one, builtin_types=(datetime,))
    return row | {"next_in_words": _next(one)}


def _line(one: ScheduleStatus) -> tuple[Any, ...]:
    last = one.history[-1] if one.history else None
    told = f"{last.outcome} {ago(last.at)}" if last else None
    return one.id, one.state, one.task, one.words, _next(one), one.made, one.skipped, told


def _next(one: ScheduleStatus) -> str | None:
    """Such as: in 3 h, Tue 17 Nov 2026 03:00:00 CET."""
    return None if one.next is None else f"{ago(one.next)}, {in_zone(one.next, one.tz)}"


def _print_details(one: ScheduleStatus) -> None:
    click.secho(f"\n{one.id}", bold=True)
    jitter = f", jitter {one.jitter:g} s" if one.jitter else ""
    click.echo(f"  from {one.source}; catch up {one.catch_up}, overlap {one.overlap}{jitter}; {one.waiting} waiting")
    for at in one.upcoming:
        click.echo(f"  then  {in_zone(at, one.tz)}")
    for tick in one.history:
        click.echo(f"  {tick.outcome:<8} {in_zone(tick.nominal, one.tz)}  {tick.job}")


def _print_state(row: Row) -> None:
    click.echo(f"{row['schedule']}  {row['state']}" + ("" if row["changed"] else " (it was already)"))
