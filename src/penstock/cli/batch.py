"""`penstock batch`: list, watch, seal, cancel and retry batches."""

import asyncio
import sys
from dataclasses import fields

import click

from penstock.api.batch import Batch
from penstock.api.map import show_progress
from penstock.cli.exit_codes import CliError, Exit
from penstock.cli.help import Group, examples
from penstock.cli.options import duration, with_target
from penstock.cli.output import Printer, Row, print_fields
from penstock.cli.target import Target
from penstock.cli.terminal import echo
from penstock.client.client import Client
from penstock.engine.engine import NewBatch
from penstock.model.batch_state import BatchStatus

_COLUMNS = ("id", "name", "state", "total", "done", "dead", "cancelled", "pending", "created")
_FIELDS = (
    *("id", "name", "state", "reason", "total", "done", "dead", "cancelled", "pending", "running", "priority"),
    *("generation", "parent", "created", "ended"),
)


@click.group(cls=Group)
def batch() -> None:
    """Look at batches, watch, seal and cancel them."""


_id = click.argument("batch_id", metavar="ID")


@batch.command(epilog=examples("penstock batch ls", "penstock batch ls --open", "penstock batch ls -o json"))
@click.option("--open", "only_open", is_flag=True, help="Only those that still take members.")
@with_target
def ls(target: Target, printer: Printer, *, only_open: bool) -> None:
    """List batches, the youngest first; an open one may have lost its producer."""

    async def read(client: Client) -> list[BatchStatus]:
        batches = [status async for status in client.views.batches() if status.open or not only_open]
        return sorted(batches, key=lambda status: status.created, reverse=True)

    batches = target.run(read)
    if not batches:
        echo("no batches", err=True)
    printer.print_rows([_row(status) for status in batches], _COLUMNS)


@batch.command(epilog=examples("penstock batch show GMhDvFiI8U01"))
@_id
@with_target
def show(target: Target, printer: Printer, batch_id: str) -> None:
    """Print how a batch stands."""

    async def work(client: Client) -> Row:
        batch = _batch(client, batch_id)
        return {**_row(await batch.status()), "running": await batch.running()}

    printer.print_results([target.run(work)], _print)


@batch.command(epilog=examples("penstock batch watch GMhDvFiI8U01", "penstock batch watch ID --timeout 10m"))
@_id
@click.option("--timeout", type=duration, help="Give up after: 250ms, 30s, 10m, 2h, 3d.")
@with_target
def watch(target: Target, printer: Printer, batch_id: str, *, timeout: float | None) -> None:
    """Show how far a batch has come until it ends: a bar on a terminal, a line every 10 s elsewhere.

    Exits with 5 if a member failed or was cancelled.
    """

    async def work(client: Client) -> BatchStatus:
        batch = _batch(client, batch_id)
        await batch.status()
        async with asyncio.timeout(timeout), show_progress(batch, sys.stderr):
            return await batch.wait()

    try:
        status = target.run(work)
    except TimeoutError:
        raise CliError(f"batch {batch_id} has not ended within {timeout:g} s", Exit.TIMED_OUT) from None
    printer.print_results([_row(status)], _print)
    if status.dead or status.cancelled:
        click.get_current_context().exit(Exit.JOB_FAILED)


@batch.command(epilog=examples("penstock batch cancel GMhDvFiI8U01"))
@_id
@click.option("--reason", default="cancelled", show_default=True, help="What its status says.")
@with_target
def cancel(target: Target, printer: Printer, batch_id: str, *, reason: str) -> None:
    """Cancel a batch: no member starts any more, those that run are asked to stop."""

    async def work(client: Client) -> BatchStatus:
        return await _batch(client, batch_id).cancel(reason)

    printer.print_results([_row(target.run(work))], _print)


@batch.command(epilog=examples("penstock batch seal GMhDvFiI8U01"))
@_id
@with_target
def seal(target: Target, printer: Printer, batch_id: str) -> None:
    """Seal a batch whose producer is gone: it takes no more members, and ends with the last of them."""

    async def work(client: Client) -> BatchStatus:
        batch = _batch(client, batch_id)
        await batch.seal()
        return await batch.status()

    printer.print_results([_row(target.run(work))], _print)


@batch.command(epilog=examples("penstock batch retry GMhDvFiI8U01"))
@_id
@with_target
def retry(target: Target, printer: Printer, batch_id: str) -> None:
    """Run the dead members of a batch again."""

    async def work(client: Client) -> BatchStatus:
        batch = _batch(client, batch_id)
        await batch.retry_failed()
        return await batch.status()

    printer.print_results([_row(target.run(work))], _print)


def _batch(client: Client, batch_id: str) -> Batch:
    """A handle on a batch that needs no code of the app."""
    return Batch(lambda: client, {}, NewBatch(batch_id), is_open=True)


def _row(status: BatchStatus) -> Row:
    return {field.name: getattr(status, field.name) for field in fields(status)}


def _print(row: Row) -> None:
    print_fields((name, row[name]) for name in _FIELDS if row.get(name) not in {None, ""})
