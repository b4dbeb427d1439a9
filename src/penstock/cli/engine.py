"""`penstock engine`: the embedded server alone."""

import signal
import threading
from typing import Final

import click

from penstock.cli.exit_codes import CliError, Exit
from penstock.cli.help import examples
from penstock.cli.options import with_target
from penstock.cli.output import Printer, print_fields, print_json
from penstock.cli.target import Target
from penstock.model.settings import load
from penstock.server.embedded.server import EmbeddedServer
from penstock.server.urls import parse

_CHECK_INTERVAL: Final = 2.0  #: seconds between two checks that the server runs


@click.command(
    epilog=examples(
        "penstock engine",
        "penstock engine --url embedded:///var/tmp/shop",
        "penstock engine -o json | jq -r .url",
    )
)
@with_target
def engine(target: Target, printer: Printer) -> None:
    """Keep the embedded server running until told to stop.

    Programs on the same data directory use it, and it stays when the last of them has gone. It prints where the data
    and the socket are. A server that was killed is started again.
    """
    parsed = parse(target.url or load({}).url)
    if parsed.kind != "embedded":
        raise CliError("another server is named by --url or $PENSTOCK_URL: use --url embedded://", Exit.USAGE)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    server = EmbeddedServer(parsed.path)
    try:
        _print(printer, {"data": str(parsed.path), "url": f"unix://{server.ensure()}"})
        while not stop.wait(_CHECK_INTERVAL):
            server.ensure()
    finally:
        server.release()


def _print(printer: Printer, row: dict[str, str]) -> None:
    if printer.is_json:
        print_json(row)
    else:
        print_fields(row.items())
