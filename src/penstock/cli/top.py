"""`penstock top`: queues, workers, rates, latencies and lanes, as they are now."""

import asyncio
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from penstock.api.job import moment
from penstock.cli.help import examples
from penstock.cli.options import duration, targeted
from penstock.cli.output import Printer, counted, span, table_lines, width
from penstock.cli.target import Target, run
from penstock.client.client import Client
from penstock.engine.read.rates import Flow, Rates, Sample
from penstock.engine.read.views import Node, QueueSettings

_LANES = 6
_QUEUES = ("queue", "", "ready", "held", "scheduled", "running", "dead", "in/s", "done/s", "failed/s", "wait", "run")
_WORKERS = ("worker", "busy", "slots", "queues", "up", "heard of")
_COLUMNS = ("lane", "in use", "limit", "waiting", "")


@click.command(
    epilog=examples("penstock top", "penstock top --interval 5s", "penstock top --once -o json | jq .queues")
)
@click.option("--interval", type=duration, default="1s", show_default=True, help="Between two looks.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after so many looks.")
@click.option("--once", is_flag=True, help="One look, over one interval.")
@targeted
def top(target: Target, printer: Printer, interval: float, count: int | None, *, once: bool) -> None:
    """Show what moves: queues, workers, rates, latencies, lanes.

    Ctrl-C or q ends it. Rates and mean latencies are those since the look before: wait is from ready to running. With
    -o json an object per look and line.
    """
    client = target.open_hub()
    looks = 1 if once else count
    live = sys.stdout.isatty() and not printer.is_json and not once

    async def work(client: Client) -> None:
        gauges, left = Rates(client.engine), looks or -1
        await gauges.sample(0)
        with _screen() if live else _keys() as pressed:
            while not pressed.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(pressed.wait(), interval)
                _draw(await gauges.sample(_LANES), client, printer, live=live)
                left -= 1
                if left == 0:
                    return

    run(client, work)


def _draw(sample: Sample, client: Client, printer: Printer, *, live: bool) -> None:
    if printer.is_json:
        click.echo(msgspec.json.encode(_described(sample, client.engine.keys.namespace)))
        return
    lines = list(_frame(sample, client))
    if live:
        size = shutil.get_terminal_size()
        lines = [_cut(line, size.columns) for line in lines[: size.lines - 1]]
        click.echo("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J", nl=False)
    else:
        click.echo("\n".join(lines))


def _frame(sample: Sample, client: Client) -> Iterator[str]:
    jobs = sum(number for row in sample.counts.values() for number in row.values())
    when = datetime.fromtimestamp(sample.at, UTC).astimezone()
    busy = sum(sample.busy.values())
    yield _bold(f"penstock top  {client.engine.keys.namespace} on {client.endpoint}  {when:%H:%M:%S}")
    workers = counted(len(sample.workers), "worker", "workers")
    yield f"{counted(jobs, 'job', 'jobs')}, {busy:,} running on {workers}"
    yield ""
    yield from _table(_QUEUES, [_queue(name, sample) for name in _names(sample)], "no queues yet")
    yield ""
    nodes = sorted(sample.workers, key=lambda node: (-sample.busy.get(node.worker, 0), node.worker))
    yield from _table(_WORKERS, [_worker(node, sample) for node in nodes], "no live workers")
    if sample.lanes:
        yield ""
        yield from _table(_COLUMNS, [_lane(one) for one in sample.lanes], "")


def _names(sample: Sample) -> list[str]:
    """Those through which most goes first."""

    def order(name: str) -> tuple[float, str]:
        flow = sample.flows.get(name, Flow())
        return -(flow.enqueued + flow.started), name

    return sorted(sample.counts.keys() | sample.settings.keys(), key=order)


def _queue(name: str, sample: Sample) -> list[Any]:
    counts, flow = sample.counts.get(name, {}), sample.flows.get(name, Flow())
    setting = sample.settings.get(name, QueueSettings())
    rates = [_rate(flow.enqueued), _rate(flow.done), _rate(flow.failed)]
    numbers = [counts.get(state, 0) for state in ("ready", "held", "scheduled", "running", "dead")]
    return [name, "paused" if setting.paused else "", *numbers, *rates, _time(flow.wait), _time(flow.run)]


def _worker(node: Node, sample: Sample) -> list[Any]:
    info = _info(node)
    heard = span(max(sample.at - (node.alive_until - node.life) / 1000, 0))
    up = span(max(sample.at - node.since / 1000, 0))
    stalled = " stalled" if info.get("stalled") else ""
    queues = "all" if "*" in node.queues else ",".join(node.queues)
    return [node.worker, sample.busy.get(node.worker, 0), info.get("slots"), queues, up, f"{heard} ago{stalled}"]


def _lane(one: Any) -> list[Any]:
    kind = "lock" if one.is_lock else "ordered" if one.ordered else one.rate
    return [one.name, one.in_use, one.limit, one.waiting, f"{kind}{' paused' if one.paused else ''}"]


def _info(node: Node) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(node.info)
    except ValueError:
        return {}
    return found


def _table(columns: tuple[str, ...], rows: list[list[Any]], nothing: str) -> Iterator[str]:
    if not rows:
        yield nothing
        return
    title, *lines = table_lines(columns, rows)
    yield _bold(title)
    yield from lines


def _rate(per_second: float) -> float:
    return round(per_second, 1) if per_second < 100 else round(per_second)


def _time(milliseconds: float | None) -> str | None:
    return None if milliseconds is None else span(milliseconds / 1000)


def _bold(text: str) -> str:
    return click.style(text, bold=True)


def _cut(line: str, columns: int) -> str:
    """No wider than the terminal; a style at its ends takes no room."""
    plain = click.unstyle(line)
    if width(plain) <= columns:
        return line
    cut = plain[: columns - 1] + "…"
    return _bold(cut) if plain != line else cut


def _described(sample: Sample, namespace: str) -> dict[str, Any]:
    return {
        "namespace": namespace,
        "at": moment(round(sample.at * 1000)),
        "queues": [
            {
                "queue": name,
                "paused": sample.settings.get(name, QueueSettings()).paused,
                "counts": sample.counts.get(name, {}),
                **sample.flows.get(name, Flow())._asdict(),
            }
            for name in _names(sample)
        ],
        "workers": [
            {"worker": node.worker, "busy": sample.busy.get(node.worker, 0), "slots": _info(node).get("slots")}
            for node in sample.workers
        ],
        "lanes": [
            {"lane": one.name, "in_use": one.in_use, "limit": one.limit, "waiting": one.waiting} for one in sample.lanes
        ],
    }


@contextmanager
def _screen() -> Iterator[asyncio.Event]:
    """The whole terminal, as it was before in the end."""
    click.echo("\x1b[?1049h\x1b[?25l", nl=False)
    try:
        with _keys() as pressed:
            yield pressed
    finally:
        click.echo("\x1b[?25h\x1b[?1049l", nl=False)


@contextmanager
def _keys() -> Iterator[asyncio.Event]:
    """Set when q is pressed, where there is a terminal to press it on."""
    pressed, loop = asyncio.Event(), asyncio.get_running_loop()
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield pressed
        return
    import termios  # noqa: PLC0415  (not everywhere)
    import tty  # noqa: PLC0415

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    loop.add_reader(sys.stdin, lambda: pressed.set() if sys.stdin.read(1) in "qQ" else None)
    try:
        yield pressed
    finally:
        loop.remove_reader(sys.stdin)
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
