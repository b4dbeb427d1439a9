"""`penstock worker`: one worker in this process, until it is told to stop."""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from importlib.metadata import version
from typing import Any, NoReturn

import click
from redis.exceptions import RedisError

from penstock.app import Penstock
from penstock.cli.exits import Exit
from penstock.cli.helps import examples
from penstock.cli.options import duration, targeted
from penstock.cli.output import Printer, clean, pad, width
from penstock.cli.signals import Signals
from penstock.cli.talk import talk
from penstock.cli.target import Target
from penstock.errors import PenstockError, Unavailable
from penstock.server.urls import parse
from penstock.times import show
from penstock.worker.worker import GRACE, Worker

log = logging.getLogger("penstock.worker")

_AT_ONCE = 1.0  #: seconds that jobs have to end once they were cancelled


@click.command(
    epilog=examples(
        "penstock worker shop.tasks:app",
        "penstock worker shop.tasks:app -c 20 -q mail,default",
        "penstock worker --burst                # what is there, then end",
    )
)
@click.argument("path", metavar="[MODULE:ATTR]", required=False)
@click.option("-c", "--concurrency", type=click.IntRange(min=1), help="Jobs at once.  [default: the app's, 100]")
@click.option(
    "-q",
    "--queues",
    metavar="NAMES",
    help="Which, the first one first: mail,default. With weights they share: mail:5,default:1.  [default: all]",
)
@click.option(
    "--lease", type=duration, help="How long jobs are held without a sign of life.  [default: the app's, 30s]"
)
@click.option("--grace", type=duration, help=f"How long jobs may go on after a stop.  [default: {GRACE:g}s]")
@click.option("--burst", is_flag=True, help="End when nothing is ready or running.")
@click.option("-v", "--verbose", is_flag=True, help="A line for every job, too.")
@targeted
def worker(
    target: Target,
    printer: Printer,
    path: str | None,
    concurrency: int | None,
    queues: str | None,
    lease: float | None,
    grace: float | None,
    *,
    burst: bool,
    verbose: bool,
) -> None:
    """Run jobs until told to stop.

    SIGTERM or Ctrl-C: it takes no more jobs and ends when those that run have finished or, after --grace, were given
    back. A second one: they are cancelled and given back at once. With -o json the log is a JSON object per line.
    """
    talk("DEBUG" if verbose else "INFO", printer.form)
    app = replace(target, app=path or target.app).open_app()
    made = app.worker(queues=queues, concurrency=concurrency, lease=lease, grace=grace)
    if not printer.is_json:
        _banner(app, path or target.app, made_of(app, queues, concurrency, lease))
    try:
        asyncio.run(_work(app, made, burst=burst))
    except RedisError as error:
        raise Unavailable(f"{parse(app.settings.url)}: {error}") from error


async def _work(app: Penstock, worker: Worker, *, burst: bool) -> None:
    with Signals() as signals:
        serving = asyncio.create_task(_serve(worker, signals, burst=burst))
        hurry = asyncio.create_task(signals.hurry.wait())
        await asyncio.wait((serving, hurry), return_when=asyncio.FIRST_COMPLETED)
        if hurry.done():
            await _end_tasks(_AT_ONCE)
            await _give_back(app, worker)
        ended = await _end_tasks(0 if hurry.done() else _AT_ONCE)
        await app.aclose()
    error = serving.exception() if serving.done() and not serving.cancelled() else None
    if not ended:
        _leave(error)
    if error is not None:
        raise error


async def _serve(worker: Worker, signals: Signals, *, burst: bool) -> None:
    """Work until told to stop, or idle; then let what runs finish."""
    async with worker:
        await _first(signals.stopped.wait(), *([worker.until_idle()] if burst else []))


async def _first(*waits: Any) -> None:
    """Until one of them ends; if it failed, so does this."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _give_back(app: Penstock, worker: Worker) -> None:
    """Have the engine take back what this worker holds; no attempt is used."""
    try:
        more = 1 if worker.name else 0
        while more:
            _, more = await app.hub.engine.retire(worker.name)
    except PenstockError as error:
        click.echo(f"its jobs come back when its lease is over: {error}", err=True)


async def _end_tasks(seconds: float) -> bool:
    """Cancel everything else on this loop, again and again: some stop only after a while. Whether all ended."""
    late = time.monotonic() + seconds
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=0.05)
        if time.monotonic() > late:
            break
    return not asyncio.all_tasks() - {asyncio.current_task()}


def _leave(error: BaseException | None) -> NoReturn:
    """End although a job does not: it has been given back, and Python would wait for its thread."""
    log.warning("a job does not stop, as in a thread it cannot; it was given back, and this process ends")
    if error is not None:
        log.error("the worker failed: %s", error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(Exit.OK if error is None else Exit.FAILED)


def made_of(app: Penstock, queues: str | None, concurrency: int | None, lease: float | None) -> list[tuple[str, str]]:
    """What the worker is made of, as the banner says it."""
    settings = app.settings
    names = queues or ",".join(settings.queues)
    life = settings.lease if lease is None else round(lease * 1000)
    return [
        ("queues", "all" if names == "*" else names),
        ("slots", f"{concurrency or settings.concurrency}, lease {show(life)}"),
    ]


def _banner(app: Penstock, path: str | None, rest: Iterable[tuple[str, str]]) -> None:
    lines = [
        ("app", path or app.settings.app or os.environ.get("PENSTOCK_APP", "")),
        ("namespace", app.name),
        ("server", str(parse(app.settings.url))),
        *rest,
    ]
    click.secho(f"Penstock {version('penstock')} worker, process {os.getpid()}", bold=True, err=True)
    for name, text in lines:
        click.echo(f"  {name:<10} {clean(text)}", err=True)
    widest = max(map(width, app.tasks), default=0)
    title = "tasks"
    for name, task in sorted(app.tasks.items()):
        click.echo(f"  {title:<10} {pad(clean(name), widest)}  in {task.options.queue}", err=True)
        title = ""
    if not app.tasks:
        click.echo("  tasks      none: does the app's module import those that define them?", err=True)
