"""Rates and latencies of queues, from the statistics that the scripts keep per minute."""

import time
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from penstock.engine.engine import Engine
from penstock.engine.keys import SEPARATOR
from penstock.engine.read.lane_views import LaneStatus, LaneViews
from penstock.engine.read.views import Node, QueueSettings, Views

_VERBS: Final = ("enqueue", "lease", "complete", "retry", "bury", "wait", "run")
_ENDS: Final = ("complete", "retry", "bury")
_MAX_LANES: Final = 200  #: that are read
_MAX_QUEUES: Final = 100  #: with rates: the queues with the most jobs that wait or run

Readings = dict[tuple[int, str, str], int]  #: minute, queue and what → how much


class Flow(NamedTuple):
    """Jobs per second of a queue since the last sample; latencies are means in ms, None without a job."""

    enqueued: float = 0.0
    started: float = 0.0
    done: float = 0.0
    failed: float = 0.0  #: retried or buried
    wait: float | None = None  #: from ready to running
    run: float | None = None


class Sample(NamedTuple):
    """A namespace at one moment."""

    at: float
    counts: dict[str, dict[str, int]]
    settings: dict[str, QueueSettings]
    flows: dict[str, Flow]
    workers: list[Node]
    busy: dict[str, int]  #: worker → how many of the first thousand running jobs it runs
    lanes: list[LaneStatus]  #: the lanes with the most waiting jobs


class Rates:
    """Samples of one namespace; each has the rates since the one before."""

    def __init__(self, engine: Engine) -> None:
        self._script_client = engine.script_client
        self._key = engine.keys
        self._views = Views(engine)
        self._before: Readings | None = None
        self._then = 0.0

    async def sample(self, lanes: int = 5) -> Sample:
        counts, settings = await self._views.counts(), await self._views.queue_settings()
        queues = sorted(counts.keys() | settings.keys(), key=lambda name: (-_busy(counts.get(name, {})), name))[
            :_MAX_QUEUES
        ]
        readings, now = await self._read(queues), time.monotonic()
        flows = self._flows(queues, readings, now - self._then) if self._before is not None else {}
        self._before, self._then = readings, now
        runs = await self._views.runs()
        return Sample(
            time.time(),
            counts,
            settings,
            flows,
            await self._views.workers(),
            {worker: len(held) for worker, held in runs.items()},
            await self._lanes(lanes),
        )

    async def _read(self, queues: list[str]) -> Readings:
        minute = await self._views.now() // 60_000
        places = [(at, queue, what) for at in (minute - 1, minute) for queue in queues for what in _VERBS]
        if not places:
            return {}
        fields = [SEPARATOR.join((str(at), queue, what)) for at, queue, what in places]
        values: Any = await self._script_client.ask(lambda client: client.hmget(self._key("stats"), fields))
        return {place: int(value or 0) for place, value in zip(places, values, strict=True)}

    def _flows(self, queues: Iterable[str], readings: Readings, seconds: float) -> dict[str, Flow]:
        before = self._before or {}
        moved = {place: value - before.get(place, 0) for place, value in readings.items()}

        def much(queue: str, what: str) -> int:
            return sum(value for (_, name, verb), value in moved.items() if name == queue and verb == what)

        return {queue: _flow({what: much(queue, what) for what in _VERBS}, max(seconds, 0.001)) for queue in queues}

    async def _lanes(self, most: int) -> list[LaneStatus]:
        lanes = await LaneViews(self._script_client).every(_MAX_LANES)
        return sorted(lanes, key=lambda lane: (-lane.waiting, -lane.in_use, lane.name))[:most]


def _busy(states: dict[str, int]) -> int:
    return sum(states.get(state, 0) for state in ("ready", "held", "running"))


def _flow(much: dict[str, int], seconds: float) -> Flow:
    ended = sum(much[what] for what in _ENDS)
    return Flow(
        much["enqueue"] / seconds,
        much["lease"] / seconds,
        much["complete"] / seconds,
        (much["retry"] + much["bury"]) / seconds,
        much["wait"] / much["lease"] if much["lease"] else None,
        much["run"] / ended if ended else None,
    )
