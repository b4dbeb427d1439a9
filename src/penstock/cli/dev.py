"""`penstock dev`: a reloading worker and the HTTP service in one terminal."""

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
from penstock.cli.options import with_target
from penstock.cli.output import Printer
from penstock.cli.target import Target

_POLL_INTERVAL: Final = 0.1  #: seconds between two checks of the processes
_STOP_TIMEOUT: Final = 30.0  #: seconds until a process is killed


@click.command(epilog=examples("penstock dev shop.tasks:app", "penstock dev -c 10 --port 9000"))
@click.argument("path", metavar="[MODULE:ATTR]", required=False)
@click.option("-c", "--concurrency", type=click.IntRange(min=1), help="Jobs at once.")
@click.option("-q", "--queues", metavar="NAMES", help="Queues, in strict order, or weighted: mail:5,default:1.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Of HTTP; 0: any.")
@click.option("--open", "is_open", is_flag=True, help="Ask for no token; everybody on this machine is an admin.")
@with_target
def dev(
    target: Target,
    printer: Printer,
    path: str | None,
    concurrency: int | None,
    queues: str | None,
    port: int,
    *,
    is_open: bool,
) -> None:
    """Run a reloading worker and the HTTP service, for development.

    They are on the embedded server, unless the app, --url or $PENSTOCK_URL names another. The service prints a link
    with a token that is made at random, or is $PENSTOCK_TOKEN. When one of the two ends, so does the other.
    """
    common = _option("--url", target.url) + _option("--namespace", target.namespace) + ["-o", printer.format]
    app = path or target.app
    app_argument = [app] if app else []
    worker_options = _option("--concurrency", concurrency) + _option("--queues", queues)
    if importlib.util.find_spec("watchfiles"):
        worker_options.append("--reload")
    else:
        click.echo("changed code is not loaded again: pip install watchfiles", err=True)
    worker = ["worker", *app_argument, *worker_options, *common]
    serve = ["serve", *app_argument, "--port", str(port), *(["--open"] if is_open else []), *common]
    code = _run([[sys.executable, "-m", "penstock.cli", *command] for command in (worker, serve)])
    raise click.exceptions.Exit(code)


def _option(name: str, value: object) -> list[str]:
    return [] if value is None else [name, str(value)]


def _run(commands: list[list[str]]) -> int:
    """Run the commands until a signal comes or one of them ends; the exit code of the one that failed first."""
    # A process group for each: otherwise Ctrl-C reaches a worker twice, and the second signal stops it at once.
    processes = [subprocess.Popen(command, process_group=0) for command in commands]  # noqa: S603  (our own)
    stop = threading.Event()

    def on_signal(*_: object) -> None:
        if stop.is_set():
            _terminate(processes)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    while not stop.wait(_POLL_INTERVAL) and all(process.poll() is None for process in processes):
        pass
    failed = [process.returncode for process in processes if process.poll()]
    stop.set()
    _terminate(processes)
    for process in processes:
        try:
            process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
    return failed[0] if failed and failed[0] > 0 else Exit.FAILED if failed else Exit.OK


def _terminate(processes: list["subprocess.Popen[bytes]"]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
