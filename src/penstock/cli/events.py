"""`penstock events`: print events as they happen."""

from contextlib import suppress

import click

from penstock.api.events import Event, Events
from penstock.cli.help import examples
from penstock.cli.options import with_target
from penstock.cli.output import Printer, pad, print_json_line
from penstock.cli.target import Target, run
from penstock.cli.terminal import echo
from penstock.client.client import Client
from penstock.model.printable import escaped


@click.command(
    epilog=examples(
        "penstock events                          # from now on, until Ctrl-C",
        "penstock events --queue mail --kind bury --kind retry",
        "penstock events --since 10m --no-follow -o json | jq .kind",
    )
)
@click.option("--queue", help="Of this queue only.")
@click.option("--job", metavar="ID", help="Of this job only.")
@click.option("--kind", "kinds", multiple=True, help="Of this kind only: enqueue, lease, complete, retry, bury, …")
@click.option("--since", metavar="WHEN", help="Begin earlier: after an event's id, or 30s, 10m, 2h ago; 0 is all.")
@click.option("--follow/--no-follow", default=True, show_default=True, help="Wait for what comes.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after so many.")
@with_target
def events(
    target: Target,
    printer: Printer,
    queue: str | None,
    job: str | None,
    kinds: tuple[str, ...],
    since: str | None,
    count: int | None,
    *,
    follow: bool,
) -> None:
    """Print what happens, as it happens.

    A line for each job that something happens to; with -o json an object per line. The id of the last line given as
    --since goes on after it. A line of kind `gap` says that events before it are no longer kept.
    """
    client = target.open_client()
    since = since if follow or since else "0"
    stream = Events(client.engine, queue=queue, since=since, kinds=kinds or None, job=job)

    async def print_events(_: Client) -> None:
        left = count or -1
        async for event in stream if follow else stream.kept():
            _print(event, printer)
            left -= 1
            if left == 0:
                return

    with suppress(BrokenPipeError):
        run(client, print_events)


def _print(event: Event, printer: Printer) -> None:
    if printer.is_json:
        print_json_line(event)
        return
    subject = event.job or event.queue
    attempt = f" #{event.attempt}" if event.attempt else ""
    note = f"  {event.note}" if event.note else ""
    task = f"  {event.task}{attempt}" if event.task else ""
    line = f"{event.at.astimezone():%H:%M:%S.%f}"[:-3] + f"  {pad(event.kind, 10)} {event.queue}  {subject}{task}{note}"
    echo(escaped(line))
