"""`penstock top`: a live view of queues, workers, rates, latencies and lanes."""

import asyncio
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import click

from penstock.api.job import moment
from penstock.cli.help import examples
from penstock.cli.options import duration, with_target
from penstock.cli.output import Printer, plural, print_json_line, span, table_lines, width
from penstock.cli.target import Target, run
from penstock.client.client import Client
from penstock.engine.read.lane_views import LaneStatus
from penstock.engine.read.rates import Flow, Rates, Sample
from penstock.engine.read.views import Node, QueueSettings

_MAX_LANES = 6
_QUEUE_COLUMNS = (
    "queue",
    "",
    "ready",
    "held",
    "scheduled",
    "running",
    "dead",
    "in/s",
    "done/s",
    "failed/s",
    "wait",
    "run",
)
_WORKER_COLUMNS = ("worker", "busy", "slots", "queues", "up", "heard of")
_LANE_COLUMNS = ("lane", "in use", "limit", "waiting", "")


@click.command(
    epilog=examples("penstock top", "penstock top --interval 5s", "penstock top --once -o json | jq .queues")
)
@click.option("--interval", type=duration, default="1s", show_default=True, help="Between two looks.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after so many looks.")
@click.option("--once", is_flag=True, help="One look, over one interval.")
@with_target
def top(target: Target, printer: Printer, interval: float, count: int | None, *, once: bool) -> None:
    """Show what moves: queues, workers, rates, latencies, lanes.

    Ctrl-C or q ends it. Rates and mean latencies are those since the look before: wait is from ready to running. With
    -o json an object per look and line.
    """
    client = target.open_client()
    frames = 1 if once else count
    live = sys.stdout.isatty() and not printer.is_json and not once

    async def refresh(client: Client) -> None:
        rates, left = Rates(client.engine), frames or -1
        await rates.sample(0)
        with _full_screen() if live else _quit_key() as quit_pressed:
            while not quit_pressed.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(quit_pressed.wait(), interval)
                _draw(await rates.sample(_MAX_LANES), client, printer, live=live)
                left -= 1
                if left == 0:
                    return

    run(client, refresh)


def _draw(sample: Sample, client: Client, printer: Printer, *, live: bool) -> None:
    if printer.is_json:
        print_json_line(_as_json(sample, client.engine.keys.namespace))
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
    workers = plural(len(sample.workers), "worker", "workers")
    yield f"{plural(jobs, 'job', 'jobs')}, {busy:,} running on {workers}"
    yield ""
    yield from _table(_QUEUE_COLUMNS, [_queue_cells(name, sample) for name in _busiest_queues(sample)], "no queues yet")
    yield ""
    nodes = sorted(sample.workers, key=lambda node: (-sample.busy.get(node.worker, 0), node.worker))
    yield from _table(_WORKER_COLUMNS, [_worker_cells(node, sample) for node in nodes], "no live workers")
    if sample.lanes:
        yield ""
        yield from _table(_LANE_COLUMNS, [_lane_cells(lane) for lane in sample.lanes], "")


def _busiest_queues(sample: Sample) -> list[str]:
    """All queues, those with the most traffic first."""

    def order(name: str) -> tuple[float, str]:
        flow = sample.flows.get(name, Flow())
        return -(flow.enqueued + flow.started), name

    return sorted(sample.counts.keys() | sample.settings.keys(), key=order)


def _queue_cells(name: str, sample: Sample) -> list[Any]:
    counts, flow = sample.counts.get(name, {}), sample.flows.get(name, Flow())
    setting = sample.settings.get(name, QueueSettings())
    rates = [_rate(flow.enqueued), _rate(flow.done), _rate(flow.failed)]
    numbers = [counts.get(state, 0) for state in ("ready", "held", "scheduled", "running", "dead")]
    return [name, "paused" if setting.paused else "", *numbers, *rates, _time(flow.wait), _time(flow.run)]


def _worker_cells(node: Node, sample: Sample) -> list[Any]:
    info = _info(node)
    heard = span(max(sample.at - (node.alive_until - node.life) / 1000, 0))
    up = span(max(sample.at - node.since / 1000, 0))
    stalled = " stalled" if info.get("stalled") else ""
    queues = "all" if "*" in node.queues else ",".join(node.queues)
    return [node.worker, sample.busy.get(node.worker, 0), info.get("slots"), queues, up, f"{heard} ago{stalled}"]


def _lane_cells(lane: LaneStatus) -> list[Any]:
    kind = "lock" if lane.is_lock else "ordered" if lane.ordered else lane.rate
    return [lane.name, lane.in_use, lane.limit, lane.waiting, f"{kind}{' paused' if lane.paused else ''}"]


def _info(node: Node) -> dict[str, Any]:
    try:
        info: dict[str, Any] = json.loads(node.info)
    except ValueError:
        return {}
    return info


def _table(columns: tuple[str, ...], rows: list[list[Any]], if_empty: str) -> Iterator[str]:
    if not rows:
        yield if_empty
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
    """The line cut to the width of the terminal, with its style."""
    plain = click.unstyle(line)
    if width(plain) <= columns:
        return line
    cut = plain[: columns - 1] + "…"
    return _bold(cut) if plain != line else cut


def _as_json(sample: Sample, namespace: str) -> dict[str, Any]:
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
            for name in _busiest_queues(sample)
        ],
        "workers": [
            {"worker": node.worker, "busy": sample.busy.get(node.worker, 0), "slots": _info(node).get("slots")}
            for node in sample.workers
        ],
        "lanes": [
            {"lane": lane.name, "in_use": lane.in_use, "limit": lane.limit, "waiting": lane.waiting}
            for lane in sample.lanes
        ],
    }


@contextmanager
def _full_screen() -> Iterator[asyncio.Event]:
    """Use the whole terminal, and restore it in the end."""
    click.echo("\x1b[?1049h\x1b[?25l", nl=False)
    try:
        with _quit_key() as quit_pressed:
            yield quit_pressed
    finally:
        click.echo("\x1b[?25h\x1b[?1049l", nl=False)


@contextmanager
def _quit_key() -> Iterator[asyncio.Event]:
    """An event that is set when q is pressed on a terminal."""
    quit_pressed, loop = asyncio.Event(), asyncio.get_running_loop()
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield quit_pressed
        return
    import termios  # noqa: PLC0415  (not on every platform)
    import tty  # noqa: PLC0415

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    loop.add_reader(sys.stdin, lambda: quit_pressed.set() if sys.stdin.read(1) in "qQ" else None)
    try:
        yield quit_pressed
    finally:
        loop.remove_reader(sys.stdin)
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
