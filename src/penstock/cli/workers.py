"""`penstock workers`: who is there, and what each runs."""

import json
from typing import Any

import click

from penstock.api.job import moment
from penstock.cli.help import examples
from penstock.cli.options import targeted
from penstock.cli.output import Printer, Row
from penstock.cli.target import Target, run
from penstock.client.client import Client
from penstock.engine.read.views import Node, Run

_COLUMNS = ("worker", "pid", "slots", "busy", "queues", "since", "heard_of", "version", "code", "stalled")
_RUNS = ("worker", "job", "task", "attempt", "since")


@click.command(
    epilog=examples(
        "penstock workers",
        "penstock workers --namespace shop -o json",
    )
)
@targeted
def workers(target: Target, printer: Printer) -> None:
    """List the live workers."""

    async def work(client: Client) -> list[Row]:
        runs = await client.views.runs()
        return [_row(node, runs.get(node.worker, [])) for node in await client.views.workers()]

    rows = run(target.open_hub(), work)
    if not rows:
        click.echo("no live workers: start one with penstock worker", err=True)
    printer.listing(rows, _COLUMNS)
    running: list[Row] = [{"worker": row["worker"], **one} for row in rows for one in row["runs"]]
    if running and not printer.is_json:
        click.echo()
        printer.listing(running, _RUNS)


def serves(node: Node, queue: str) -> bool:
    """Whether it takes jobs of this queue."""
    return "*" in node.queues or queue in node.queues


def _row(node: Node, runs: list[Run]) -> Row:
    try:
        info: dict[str, Any] = json.loads(node.info)
    except ValueError:
        info = {}
    return {
        "worker": node.worker,
        "host": info.get("host"),
        "pid": info.get("pid"),
        "slots": info.get("slots"),
        "busy": len(runs),
        "queues": node.queues,
        "since": moment(node.since),
        "lease": node.life / 1000,
        "heard_of": moment(node.alive_until - node.life),
        "version": info.get("version"),
        "code": info.get("code"),
        "stalled": moment(info["stalled"]) if info.get("stalled") else None,
        "runs": [{"job": one.id, "task": one.task, "attempt": one.attempt, "since": moment(one.since)} for one in runs],
    }
