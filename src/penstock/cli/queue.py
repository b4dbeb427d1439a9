"""`penstock queue`: what waits where."""

from collections.abc import Awaitable, Callable

import click

from penstock.cli.exits import Exit, Failure
from penstock.cli.helps import examples
from penstock.cli.options import targeted
from penstock.cli.output import Printer, Row
from penstock.cli.target import Target, run
from penstock.engine.views import Node
from penstock.hub import Hub
from penstock.job import STATES
from penstock.options import queue_name, unknown

_COLUMNS = ("queue", "paused", *STATES, "workers")


@click.group
def queue() -> None:
    """List queues, pause and resume them."""


@queue.command(
    epilog=examples(
        "penstock queue ls",
        "penstock queue ls --namespace shop --url redis://db:6379 -o json",
    )
)
@targeted
def ls(target: Target, printer: Printer) -> None:
    """List all queues: how many jobs are in which state, and how many workers serve them."""
    rows = run(target.open_hub(), _rows)
    if not rows:
        click.echo("no queues yet: nothing was enqueued here", err=True)
    printer.listing(rows, _COLUMNS)


_names = click.argument("names", metavar="NAME...", nargs=-1, required=True)


@queue.command(
    epilog=examples(
        "penstock queue pause mail",
    )
)
@_names
@click.option("--new", is_flag=True, help="Also one that has had no job yet.")
@targeted
def pause(target: Target, printer: Printer, names: tuple[str, ...], *, new: bool) -> None:
    """Have no more jobs of these queues started; those that run go on."""

    async def one(hub: Hub, name: str) -> Row:
        return {"queue": name, "paused": True, "changed": await hub.engine.pause(name) == "ok"}

    _steer(target, printer, names, one, new=new)


@queue.command(
    epilog=examples(
        "penstock queue resume mail",
    )
)
@_names
@targeted
def resume(target: Target, printer: Printer, names: tuple[str, ...]) -> None:
    """Let paused queues go on."""

    async def one(hub: Hub, name: str) -> Row:
        return {"queue": name, "paused": False, "changed": await hub.engine.resume(name) == "ok"}

    _steer(target, printer, names, one, new=False)


def _steer(
    target: Target, printer: Printer, names: tuple[str, ...], one: Callable[[Hub, str], Awaitable[Row]], *, new: bool
) -> None:
    """All names are checked before the first one is changed."""
    checked = [queue_name(name) for name in names]

    async def work(hub: Hub) -> list[Row]:
        known = [] if new else [str(row["queue"]) for row in await _rows(hub)]
        for name in checked:
            if not new and name not in known:
                raise Failure(f"{unknown('queue', name, known)}; --new pauses one before its first job", Exit.NOT_FOUND)
        return [await one(hub, name) for name in checked]

    printer.answers(run(target.open_hub(), work), _print)


def _print(row: Row) -> None:
    now = "paused" if row["paused"] else "open"
    click.echo(f"{row['queue']}  {now}" + ("" if row["changed"] else " (it was already)"))


async def _rows(hub: Hub) -> list[Row]:
    views = hub.views
    counts, paused, nodes = await views.counts(), await views.queues(), await views.workers()
    named = {name for node in nodes for name in node.queues} - {"*"}
    return [
        {
            "queue": name,
            "paused": paused.get(name, False),
            **{state: counts.get(name, {}).get(state, 0) for state in STATES},
            "workers": sum(_serves(node, name) for node in nodes),
        }
        for name in sorted(counts.keys() | paused.keys() | named)
    ]


def _serves(node: Node, name: str) -> bool:
    return "*" in node.queues or name in node.queues
