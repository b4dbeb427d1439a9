"""`penstock batch`: batches by their ids."""

import asyncio
import sys
from dataclasses import fields

import click

from penstock.api.batch import Batch
from penstock.api.map import show_progress
from penstock.cli.exit_codes import Exit, Failure
from penstock.cli.help import Group, examples
from penstock.cli.options import duration, targeted
from penstock.cli.output import Printer, Row, print_fields
from penstock.cli.target import Target, run
from penstock.client.client import Client
from penstock.engine.engine import NewBatch
from penstock.model.batch_state import BatchStatus

_COLUMNS = ("id", "name", "state", "total", "done", "dead", "cancelled", "pending", "created")


@click.group(cls=Group)
def batch() -> None:
    """Look at batches, watch, seal and cancel them."""


_id = click.argument("batch_id", metavar="ID")


@batch.command(epilog=examples("penstock batch ls", "penstock batch ls --open", "penstock batch ls -o json"))
@click.option("--open", "only_open", is_flag=True, help="Only those that still take members.")
@targeted
def ls(target: Target, printer: Printer, *, only_open: bool) -> None:
    """List batches, the youngest first; an open one may have lost its producer."""

    async def work(client: Client) -> list[BatchStatus]:
        found = [one async for one in client.views.batches() if one.open or not only_open]
        return sorted(found, key=lambda one: one.created, reverse=True)

    rows = run(target.open_hub(), work)
    if not rows:
        click.echo("no batches", err=True)
    printer.listing([_row(one) for one in rows], _COLUMNS)


@batch.command(epilog=examples("penstock batch show GMhDvFiI8U01"))
@_id
@targeted
def show(target: Target, printer: Printer, batch_id: str) -> None:
    """Print how a batch stands."""

    async def work(client: Client) -> Row:
        found = _batch(client, batch_id)
        return {**_row(await found.status()), "running": await found.running()}

    printer.answers([run(target.open_hub(), work)], _print)


@batch.command(epilog=examples("penstock batch watch GMhDvFiI8U01", "penstock batch watch ID --timeout 10m"))
@_id
@click.option("--timeout", type=duration, help="Give up after: 250ms, 30s, 10m, 2h, 3d.")
@targeted
def watch(target: Target, printer: Printer, batch_id: str, *, timeout: float | None) -> None:
    """Show how far a batch has come until it ends: a bar on a terminal, a line every 10 s elsewhere.

    Exits with 5 if a member failed or was cancelled.
    """

    async def work(client: Client) -> BatchStatus:
        found = _batch(client, batch_id)
        await found.status()
        async with asyncio.timeout(timeout), show_progress(found, sys.stderr):
            return await found.wait()

    try:
        status = run(target.open_hub(), work)
    except TimeoutError:
        raise Failure(f"batch {batch_id} has not ended within {timeout:g} s", Exit.TIMED_OUT) from None
    printer.answers([_row(status)], _print)
    if status.dead or status.cancelled:
        click.get_current_context().exit(Exit.JOB_FAILED)


@batch.command(epilog=examples("penstock batch cancel GMhDvFiI8U01"))
@_id
@click.option("--reason", default="cancelled", show_default=True, help="What its status says.")
@targeted
def cancel(target: Target, printer: Printer, batch_id: str, *, reason: str) -> None:
    """Cancel a batch: no member starts any more, those that run are asked to stop."""

    async def work(client: Client) -> BatchStatus:
        return await _batch(client, batch_id).cancel(reason)

    printer.answers([_row(run(target.open_hub(), work))], _print)


@batch.command(epilog=examples("penstock batch seal GMhDvFiI8U01"))
@_id
@targeted
def seal(target: Target, printer: Printer, batch_id: str) -> None:
    """Seal a batch whose producer is gone: it takes no more members, and ends with the last of them."""

    async def work(client: Client) -> BatchStatus:
        found = _batch(client, batch_id)
        await found.seal()
        return await found.status()

    printer.answers([_row(run(target.open_hub(), work))], _print)


@batch.command(epilog=examples("penstock batch retry GMhDvFiI8U01"))
@_id
@targeted
def retry(target: Target, printer: Printer, batch_id: str) -> None:
    """Run the dead members of a batch again."""

    async def work(client: Client) -> BatchStatus:
        found = _batch(client, batch_id)
        await found.retry_failed()
        return await found.status()

    printer.answers([_row(run(target.open_hub(), work))], _print)


def _batch(client: Client, batch_id: str) -> Batch:
    """A batch as far as it can be known without the app's code."""
    return Batch(lambda: client, {}, NewBatch(batch_id), is_open=True)


def _row(status: BatchStatus) -> Row:
    return {field.name: getattr(status, field.name) for field in fields(status)}


def _print(row: Row) -> None:
    names = ("id", "name", "state", "reason", "total", "done", "dead", "cancelled", "pending", "running", "priority")
    shown_ones = (*names, "generation", "parent", "created", "ended")
    print_fields((name, row[name]) for name in shown_ones if row.get(name) not in {None, ""})
