"""`penstock lane`: list and read lanes and locks, limit and pause one."""

import click

from penstock.api.lane import check_limit
from penstock.cli.help import Group, examples
from penstock.cli.options import with_target
from penstock.cli.output import Printer, Row, plural
from penstock.cli.target import Target
from penstock.cli.terminal import echo
from penstock.client.client import Client
from penstock.engine.read.lane_views import LaneStatus, LaneViews
from penstock.model.lanes import lane_name, lock_spec

_COLUMNS = ("lane", "kind", "in_use", "limit", "waiting", "paused", "rate", "conflict")


@click.group(cls=Group)
def lane() -> None:
    """List lanes and locks, change what they allow."""


_name = click.argument("name")
_lock = click.option("--lock", is_flag=True, help="NAME is a lock, not a lane.")


@lane.command(epilog=examples("penstock lane ls", "penstock lane ls -o json"))
@with_target
def ls(target: Target, printer: Printer) -> None:
    """List the lanes and locks that are in use, waited for, or set by hand."""
    lanes = target.run(lambda client: LaneViews(client.engine.script_client).every())
    if not lanes:
        echo("no lanes: nothing that runs or waits has a lock or a lane", err=True)
    printer.print_rows([_row(status) for status in lanes], _COLUMNS)


@lane.command(epilog=examples("penstock lane show tenant:7", "penstock lane show account:12 --lock"))
@_name
@_lock
@with_target
def show(target: Target, printer: Printer, name: str, *, lock: bool) -> None:
    """Show one lane or lock, and the jobs that have its slots."""
    status = target.run(lambda client: _status(client, name, lock=lock))
    printer.print_results([_row(status, holders=True)], _print)


@lane.command(
    name="set",
    epilog=examples("penstock lane set tenant:7 --limit 5", "penstock lane set tenant:7 --reset --resume"),
)
@_name
@_lock
@click.option("--limit", type=int, help="So many at once, whatever the code says.")
@click.option("--reset", is_flag=True, help="What the code says counts again.")
@click.option("--pause/--resume", default=None, help="Start nothing of it, or go on.")
@with_target
def set_(
    target: Target, printer: Printer, name: str, *, lock: bool, limit: int | None, reset: bool, pause: bool | None
) -> None:
    """Change what a lane or lock allows, at once and until it is reset."""
    if limit is not None and reset:
        raise click.UsageError("--limit and --reset are opposites: use one of them")
    if limit is None and not reset and pause is None:
        raise click.UsageError("nothing to set: use --limit, --reset, --pause or --resume")
    new_limit = -1 if reset else None if limit is None else check_limit(limit)

    async def change(client: Client) -> LaneStatus:
        await client.engine.tune(_stored_name(name, lock=lock), limit=new_limit, paused=pause)
        return await _status(client, name, lock=lock)

    printer.print_results([_row(target.run(change))], _print)


def _stored_name(name: str, *, lock: bool) -> str:
    return lock_spec(name) if lock else f"lane:{lane_name(name, 'lane')}"


async def _status(client: Client, name: str, *, lock: bool) -> LaneStatus:
    return await LaneViews(client.engine.script_client).lane(_stored_name(name, lock=lock))


def _row(status: LaneStatus, *, holders: bool = False) -> Row:
    row = {
        "lane": status.name,
        "kind": "lock" if status.is_lock else "ordered" if status.ordered else "lane",
        "in_use": status.in_use,
        "limit": status.limit,
        "waiting": status.waiting,
        "paused": status.paused,
        "rate": status.rate,
        "conflict": status.conflict,
    }
    return {**row, "holders": status.holders} if holders else row


def _print(row: Row) -> None:
    paused = ", paused" if row["paused"] else ""
    if row["limit"] is None and not row["in_use"] and not row["waiting"]:
        other = "" if row["kind"] == "lock" else "; for a lock of this name use --lock"
        echo(f"{row['kind']} {row['lane']}: not in use, so what the code says of it is not known{paused}{other}")
        return
    limit = f"{row['in_use']} in use" + ("" if row["limit"] is None else f" of {row['limit']}")
    echo(f"{row['kind']} {row['lane']}: {limit}, {plural(row['waiting'], 'waits', 'wait')}{paused}")
    if row["rate"]:
        echo(f"  rate {row['rate']}")
    if row["conflict"]:
        echo(f"  other code declares it differently: {row['conflict']}")
    for job in row.get("holders") or ():
        echo(f"  held by job {job}")
