"""`penstock dev`: all that a program needs while it is being written, in one terminal."""

import contextlib
import importlib.util
import signal
import subprocess
import sys
import threading
from typing import Final

import click

from penstock.cli.exit_codes import Exit
from penstock.cli.help import examples
from penstock.cli.options import targeted
from penstock.cli.output import Printer
from penstock.cli.target import Target

_LOOK: Final = 0.1  #: seconds between two looks at the processes
_GRACE: Final = 30.0  #: seconds that they get to end


@click.command(epilog=examples("penstock dev shop.tasks:app", "penstock dev -c 10 --port 9000"))
@click.argument("path", metavar="[MODULE:ATTR]", required=False)
@click.option("-c", "--concurrency", type=click.IntRange(min=1), help="Jobs at once.")
@click.option("-q", "--queues", metavar="NAMES", help="Queues, in strict order, or weighted: mail:5,default:1.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Of HTTP; 0: any.")
@targeted
def dev(
    target: Target, printer: Printer, path: str | None, concurrency: int | None, queues: str | None, port: int
) -> None:
    """Run a reloading worker and the HTTP service, for development.

    They are on the embedded server, unless the app, --url or $PENSTOCK_URL names another. When one of the two ends, so
    does the other.
    """
    common = _given("--url", target.url) + _given("--namespace", target.namespace) + ["-o", printer.form]
    app = path or target.app
    named = [app] if app else []
    options = _given("--concurrency", concurrency) + _given("--queues", queues)
    reload = ["--reload"] if importlib.util.find_spec("watchfiles") else []
    if not reload:
        click.echo("changed code is not loaded again: pip install watchfiles", err=True)
    commands = (["worker", *named, *options, *reload, *common], ["serve", *named, "--port", str(port), *common])
    code = _run([[sys.executable, "-m", "penstock.cli", *command] for command in commands])
    raise click.exceptions.Exit(code)


def _given(option: str, value: object) -> list[str]:
    return [] if value is None else [option, str(value)]


def _run(commands: list[list[str]]) -> int:
    """Until a signal comes or one of them ends; the code of the one that failed first."""
    # Each in a group of its own: Ctrl-C comes here alone, for a worker takes a second signal for impatience.
    processes = [subprocess.Popen(command, process_group=0) for command in commands]  # noqa: S603  (our own)
    stop = threading.Event()

    def told(*_: object) -> None:
        if stop.is_set():
            _terminate(processes)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, told)
    while not stop.wait(_LOOK) and all(process.poll() is None for process in processes):
        pass
    failed = [process.returncode for process in processes if process.poll()]
    stop.set()
    _terminate(processes)
    for process in processes:
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
    return failed[0] if failed and failed[0] > 0 else Exit.FAILED if failed else Exit.OK


def _terminate(processes: list["subprocess.Popen[bytes]"]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
