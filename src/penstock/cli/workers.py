"""`penstock workers`: list the live workers and what they run."""

import json
from typing import Any

import click

from penstock.api.job import moment
from penstock.cli.help import examples
from penstock.cli.options import with_target
from penstock.cli.output import Printer, Row
from penstock.cli.target import Target
from penstock.cli.terminal import echo
from penstock.client.client import Client
from penstock.engine.read.views import Node, Run

_COLUMNS = ("worker", "pid", "slots", "busy", "queues", "since", "heard_of", "version", "code", "stalled")
_RUN_COLUMNS = ("worker", "job", "task", "attempt", "since")


@click.command(
    epilog=examples(
        "penstock workers",
        "penstock workers --namespace shop -o json",
    )
)
@with_target
def workers(target: Target, printer: Printer) -> None:
    """List the live workers."""

    async def read(client: Client) -> list[Row]:
        runs = await client.views.runs()
        return [_row(worker, runs.get(worker.worker, [])) for worker in await client.views.workers()]

    rows = target.run(read)
    if not rows:
        echo("no live workers: start one with penstock worker", err=True)
    printer.print_rows(rows, _COLUMNS)
    running: list[Row] = [{"worker": row["worker"], **run} for row in rows for run in row["runs"]]
    if running and not printer.is_json:
        echo()
        printer.print_rows(running, _RUN_COLUMNS)


def serves(worker: Node, queue: str) -> bool:
    """Whether the worker takes jobs of this queue."""
    return "*" in worker.queues or queue in worker.queues


def _row(worker: Node, runs: list[Run]) -> Row:
    try:
        info: dict[str, Any] = json.loads(worker.info)
    except ValueError:
        info = {}
    return {
        "worker": worker.worker,
        "host": info.get("host"),
        "pid": info.get("pid"),
        "slots": info.get("slots"),
        "busy": len(runs),
        "queues": worker.queues,
        "since": moment(worker.since),
        "lease": worker.life / 1000,
        "heard_of": moment(worker.alive_until - worker.life),
        "version": info.get("version"),
        "code": info.get("code"),
        "stalled": moment(info["stalled"]) if info.get("stalled") else None,
        "runs": [{"job": run.id, "task": run.task, "attempt": run.attempt, "since": moment(run.since)} for run in runs],
    }
