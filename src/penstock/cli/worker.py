"""`penstock worker`: a supervisor and its child processes, until told to stop."""

import asyncio
import importlib
import logging
import os
import re
from contextlib import AsyncExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from penstock.cli.exit_codes import CliError, Exit, cannot_listen
from penstock.cli.help import examples
from penstock.cli.logs import configure_logging
from penstock.cli.options import duration, with_target
from penstock.cli.output import Printer, pad, width
from penstock.cli.signals import Signals
from penstock.cli.target import Target, note_embedded_server
from penstock.cli.terminal import echo
from penstock.errors import BadOption
from penstock.model.durations import show
from penstock.model.hosts import host_name
from penstock.model.printable import escaped
from penstock.model.settings import concurrency as checked_concurrency
from penstock.worker.supervisor.child import ChildSetup
from penstock.worker.supervisor.health import serve_health
from penstock.worker.supervisor.stack_dump import dump_on_signal
from penstock.worker.supervisor.supervisor import Plan, StartFailed, Supervisor
from penstock.worker.supervisor.watchdog import Limits
from penstock.worker.worker import GRACE, MIN_LEASE

log = logging.getLogger("penstock.worker")

_LEASE = 10.0  #: seconds
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


def size(text: str) -> int:
    """Bytes, from a number of them or a text such as 500m or 2g."""
    match = re.fullmatch(r"(\d+)([kmg]?)(?:i?b)?", text.strip().lower())
    if not match:
        raise click.BadParameter(f"{text!r}: use a number of bytes, or such as 500m or 2g")
    return int(match[1]) * _UNITS[match[2]]


def listen_address(text: str) -> tuple[str, int]:
    """Parse PORT or HOST:PORT. Requests need no credentials, so the default host is this machine only."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise click.BadParameter(f"{text!r}: use a port, or host:port")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


@click.command(
    epilog=examples(
        "penstock worker shop.tasks:app -p 4",
        "penstock worker shop.tasks:app -c 20 -q mail,default",
        "penstock worker --burst                # what is there, then end",
    )
)
@click.argument("path", metavar="[MODULE:ATTR]", required=False)
@click.option(
    "-c", "--concurrency", type=click.IntRange(min=1), help="Jobs at once in each process.  [default: the app's, 100]"
)
@click.option("-p", "--processes", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option(
    "-q",
    "--queues",
    metavar="NAMES",
    help="Which, the first one first: mail,default. With weights they share: mail:5,default:1.  [default: all]",
)
@click.option("--lease", type=duration, help=f"How long jobs are held without a sign of life.  [default: {_LEASE:g}s]")
@click.option("--grace", type=duration, help=f"How long jobs may go on after a stop.  [default: {GRACE:g}s]")
@click.option("--max-jobs", type=click.IntRange(min=1), help="Replace a process after so many jobs.")
@click.option("--max-rss", type=size, metavar="SIZE", help="Replace one that has more memory than that: 500m, 2g.")
@click.option("--max-age", type=duration, metavar="DURATION", help="Replace one that is older than that.")
@click.option(
    "--health-port",
    type=listen_address,
    metavar="[HOST:]PORT",
    help="Answer /livez, /readyz and /metrics there: to this machine only, to others with 0.0.0.0:PORT.",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="A host name under which --health-port may be asked, beside localhost and addresses.",
)
@click.option("--burst", is_flag=True, help="End when nothing is ready or running.")
@click.option("--reload", is_flag=True, help="Restart when a file changes; needs the package watchfiles.")
@click.option("-v", "--verbose", is_flag=True, help="A line for every job, too.")
@with_target
def worker(
    target: Target,
    printer: Printer,
    path: str | None,
    concurrency: int | None,
    processes: int,
    queues: str | None,
    lease: float | None,
    grace: float | None,
    max_jobs: int | None,
    max_rss: int | None,
    max_age: float | None,
    health_port: tuple[str, int] | None,
    allowed_hosts: tuple[str, ...],
    *,
    burst: bool,
    reload: bool,
    verbose: bool,
) -> None:
    """Run jobs until told to stop.

    SIGTERM or Ctrl-C: it takes no more jobs and ends when those that run have finished or, after --grace, were given
    back. A second one: they are cancelled and given back at once. SIGUSR2 shows where every thread and task stands.
    With -o json the log is a JSON object per line.
    """
    hosts = frozenset(map(host_name, allowed_hosts))
    level = "DEBUG" if verbose else "INFO"
    configure_logging(level, printer.format)
    setup = ChildSetup(
        app=path or target.app,
        url=target.url,
        namespace=target.namespace,
        concurrency=None if concurrency is None else checked_concurrency(concurrency),
        queues=queues,
        lease=_checked_lease(lease),
        grace=GRACE if grace is None else grace,
        max_jobs=max_jobs,
        level=level,
        form=printer.format,
    )
    plan = Plan(setup, "penstock.cli.child_main", processes, Limits(max_age, max_rss), burst, reload)
    supervisor = Supervisor(plan, lambda hello: _banner(plan, hello, quiet=printer.is_json))
    try:
        asyncio.run(_supervise(supervisor, health_port, hosts, reload=reload))
    except StartFailed as failed:
        raise click.exceptions.Exit(failed.code) from None  # the child has said why


def _checked_lease(lease: float | None) -> float:
    """The lease in seconds. A supervisor runs no user code, so it can do with less than a worker inside a program."""
    lease = _LEASE if lease is None else lease
    if lease * 1000 < MIN_LEASE:
        raise BadOption(f"lease: use at least {MIN_LEASE} ms; it is renewed every third of it")
    return lease


async def _supervise(
    supervisor: Supervisor, port: tuple[str, int] | None, hosts: frozenset[str], *, reload: bool
) -> None:
    async with AsyncExitStack() as stack:
        signals = stack.enter_context(Signals())
        dump_on_signal(asyncio.get_running_loop(), supervisor.dump)
        if port is not None:
            try:
                ready = partial(_is_ready, supervisor, signals)
                await stack.enter_async_context(serve_health(*port, ready, supervisor.metrics, hosts))
            except OSError as error:
                raise cannot_listen(*port, error, "--health-port") from None
        if reload:
            watching = asyncio.create_task(_reload(supervisor, _watcher()))
            stack.callback(watching.cancel)
        await supervisor.run(signals)


def _is_ready(supervisor: Supervisor, signals: Signals) -> bool:
    return supervisor.is_ready and not signals.stopped.is_set()


def _watcher() -> Any:
    try:
        return importlib.import_module("watchfiles")  # an extra
    except ImportError:
        raise CliError("--reload needs watchfiles: pip install 'penstock[reload]'", Exit.USAGE) from None


async def _reload(supervisor: Supervisor, watchfiles: Any) -> None:
    async for changes in watchfiles.awatch(Path.cwd(), watch_filter=watchfiles.PythonFilter()):
        names = ", ".join(sorted({Path(name).name for _, name in changes})[:3])
        log.info("%s changed: the worker restarts", names)
        supervisor.replace_all("the code has changed")


def _capacity(queues: str, concurrency: int, lease: float, processes: int = 1) -> list[tuple[str, str]]:
    prefix = f"{processes} processes of " if processes > 1 else ""
    return [
        ("queues", "all" if queues == "*" else queues),
        ("slots", f"{prefix}{concurrency}, lease {show(round(lease * 1000))}"),
    ]


def _banner(plan: Plan, hello: dict[str, Any], *, quiet: bool) -> None:
    note_embedded_server(hello["url"], always=True)
    if quiet:
        return
    lines = [
        ("app", hello["app"]),
        ("namespace", hello["namespace"]),
        ("server", hello["server"]),
        *_capacity(hello["queues"], hello["concurrency"], plan.setup.lease, plan.processes),
    ]
    echo(f"Penstock {version('penstock')} worker, process {os.getpid()}", bold=True, err=True)
    for name, text in lines:
        echo(f"  {name:<10} {escaped(text)}", err=True)
    name_width = max((width(name) for name, _ in hello["tasks"]), default=0)
    title = "tasks"
    for name, queue in hello["tasks"]:
        echo(f"  {title:<10} {pad(escaped(name), name_width)}  in {escaped(queue)}", err=True)
        title = ""
    if not hello["tasks"]:
        echo("  tasks      none: does the app's module import those that define them?", err=True)
