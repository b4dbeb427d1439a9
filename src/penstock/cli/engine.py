"""`penstock engine`: the embedded server alone, and the functions that a server keeps."""

import signal
import threading
from typing import Final

import click

from penstock.cli.exit_codes import CliError, Exit
from penstock.cli.help import Group, examples
from penstock.cli.options import with_target
from penstock.cli.output import Printer, print_fields, print_json
from penstock.cli.target import Target
from penstock.engine.scripts import load as load_scripts
from penstock.model.settings import load
from penstock.server.embedded.server import EmbeddedServer
from penstock.server.topology import primaries
from penstock.server.urls import parse

_CHECK_INTERVAL: Final = 2.0  #: seconds between two checks that the server runs
_INSTALL_TIMEOUT: Final = 30.0  #: seconds for all nodes of a cluster


@click.group(
    cls=Group,
    invoke_without_command=True,
    epilog=examples(
        "penstock engine",
        "penstock engine --url embedded:///var/tmp/shop",
        "penstock engine -o json | jq -r .url",
        "penstock engine install --namespace shop --url redis://admin:secret@10.0.0.5:6379",
    ),
)
@with_target
@click.pass_context
def engine(context: click.Context, target: Target, printer: Printer) -> None:
    """Keep the embedded server running, or install functions.

    Programs on the same data directory use it, and it stays when the last of them has gone. It prints where the data
    and the socket are. A server that was killed is started again.
    """
    if context.invoked_subcommand is not None:
        return
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


@engine.command(epilog=examples("penstock engine install --namespace shop --url redis://admin:secret@10.0.0.5:6379"))
@with_target
def install(target: Target, printer: Printer) -> None:
    """Load the functions of this version into the server, and make the namespace.

    Run it as a user who may load functions, where the users of your programs may not. On a cluster it loads them into
    every primary. Functions of other versions stay: programs of these versions may still call them.
    """
    client = target.open_client()
    scripts = load_scripts()
    url = client.endpoint.url
    if url.kind == "embedded":
        raise CliError("the embedded server needs no installing: name another by --url", Exit.USAGE)
    rows = []
    for node, server in primaries(url, _INSTALL_TIMEOUT):
        server.function_load(scripts.library, replace=True)
        rows.append({"node": str(node), "library": f"penstock_{scripts.version}", "functions": len(scripts)})
    client.engine.init().sync()
    printer.print_rows(rows, ("node", "library", "functions"))


def _print(printer: Printer, row: dict[str, str]) -> None:
    if printer.is_json:
        print_json(row)
    else:
        print_fields(row.items())
