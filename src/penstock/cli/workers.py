"""`penstock workers`: who is there."""

import json
from typing import Any

import click

from penstock.cli.helps import examples
from penstock.cli.options import targeted
from penstock.cli.output import Printer, Row
from penstock.cli.target import Target, run
from penstock.engine.views import Node
from penstock.handle import moment
from penstock.hub import Hub

_COLUMNS = ("worker", "pid", "slots", "queues", "since", "heard_of")


@click.command(
    epilog=examples(
        "penstock workers",
        "penstock workers --namespace shop -o json",
    )
)
@targeted
def workers(target: Target, printer: Printer) -> None:
    """List the live workers."""

    async def work(hub: Hub) -> list[Row]:
        return [_row(node) for node in await hub.views.workers()]

    rows = run(target.open_hub(), work)
    if not rows:
        click.echo("no live workers", err=True)
    printer.listing(rows, _COLUMNS)


def _row(node: Node) -> Row:
    try:
        info: dict[str, Any] = json.loads(node.info)
    except ValueError:
        info = {}
    return {
        "worker": node.worker,
        "host": info.get("host"),
        "pid": info.get("pid"),
        "slots": info.get("slots"),
        "queues": node.queues,
        "since": moment(node.since),
        "lease": node.life / 1000,
        "heard_of": moment(node.alive_until - node.life),
    }
