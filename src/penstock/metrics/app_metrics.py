"""Metrics of a whole app for Prometheus: its queues, their transitions, its workers."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from penstock.client.client import Client
from penstock.engine.read.statistics import Statistics
from penstock.engine.read.views import Node, QueueSettings
from penstock.metrics.counters import Counters
from penstock.metrics.prometheus import Metric, histogram
from penstock.model.durations import DURATION_BUCKETS
from penstock.model.header import STATES

_MAX_QUEUES: Final = 100  #: queues with a label of their own; the rest share one
_REST: Final = "(others)"
#: name in the scripts → name and help of the metric
_MEASURES: Final = {
    "wait": ("penstock_wait_seconds", "Time from being ready to being started."),
    "run": ("penstock_run_seconds", "Time from being started to being settled."),
    "lane": ("penstock_lane_wait_seconds", "Time that jobs were held by a lane without room."),
}
_RANGES: Final = (*(str(round(bound * 1000)) for bound in DURATION_BUCKETS), "more")  #: as scripts name them


class AppMetrics:
    """The metrics of one namespace. Each endpoint that is scraped has its own counters."""

    def __init__(self, client: Callable[[], Client], queues: Callable[[], Iterable[str]] = tuple) -> None:
        """`queues`: shown even if they never had a job."""
        self._client = client
        self._queues = queues
        self._counters = Counters()

    async def families(self) -> list[Metric]:
        views, sums = self._client().views, Statistics(self._client().engine.script_client)
        counts, settings = await views.counts(), await views.queue_settings()
        queues = sorted(counts.keys() | settings.keys() | set(self._queues()))
        named, labels = (
            queues[:_MAX_QUEUES],
            {name: name if n < _MAX_QUEUES else _REST for n, name in enumerate(queues)},
        )
        self._counters.add(await sums.sums())
        now, since = await views.now(), await sums.oldest(named)
        ages = {name: (now - since[name]) / 1000 if name in since else 0.0 for name in named}
        return [
            _depths(counts, labels),
            *_settings({name: settings.get(name, QueueSettings()) for name in named}),
            _ages(ages),
            *_transitions(self._counters.by_queue, labels),
            *_workers(await views.workers()),
        ]


def _depths(counts: Mapping[str, Mapping[str, int]], labels: Mapping[str, str]) -> Metric:
    depths = Metric("penstock_queue_jobs", "gauge", "Jobs by queue and state; finished ones while they are kept.")
    numbers: Counter[tuple[str, str]] = Counter()
    for queue, label in labels.items():
        for state in map(str, STATES):
            numbers[label, state] += counts.get(queue, {}).get(state, 0)
    for (label, state), number in numbers.items():
        depths.add(number, queue=label, state=state)
    return depths


def _settings(settings: Mapping[str, QueueSettings]) -> list[Metric]:
    paused = Metric("penstock_queue_paused", "gauge", "1 while a queue is paused.")
    limits = Metric("penstock_queue_limit", "gauge", "How many of a queue may run at once, where that is limited.")
    for name, setting in settings.items():
        paused.add(int(setting.paused), queue=name)
        if setting.limit is not None:
            limits.add(setting.limit, queue=name)
    return [paused, limits]


def _ages(ages: Mapping[str, float]) -> Metric:
    oldest = Metric(
        "penstock_oldest_ready_seconds", "gauge", "How long the oldest ready job of a queue has been ready."
    )
    for name, age in ages.items():
        oldest.add(max(age, 0.0), queue=name)
    return oldest


def _transitions(totals: Mapping[tuple[str, str], int], labels: Mapping[str, str]) -> list[Metric]:
    """Jobs that each verb moved, refused settles, and histograms."""
    sums: Counter[tuple[str, str]] = Counter()
    for (queue, name), total in totals.items():
        sums[labels.get(queue, _REST), name] += total
    verbs = Metric(
        "penstock_transitions_total", "counter", "Jobs that a verb moved, such as complete, retry, bury, reap."
    )
    stale = Metric(
        "penstock_stale_total", "counter", "Runs that could not be settled, for their job was given to another."
    )
    for (label, name), total in sums.items():
        if name == "stale":
            stale.add(total, queue=label)
        elif name.partition(" ")[0] not in _MEASURES:
            verbs.add(total, queue=label, verb=name)
    return [verbs, stale, *(_histogram(what, sums) for what in _MEASURES)]


def _histogram(what: str, sums: Mapping[tuple[str, str], int]) -> Metric:
    family = Metric(_MEASURES[what][0], "histogram", _MEASURES[what][1])
    for label in sorted({label for label, name in sums if name.startswith(f"{what} ")}):
        counts = [sums.get((label, f"{what} {end}"), 0) for end in _RANGES]
        histogram(family, DURATION_BUCKETS, counts, sums.get((label, what), 0) / 1000, queue=label)
    return family


def _workers(nodes: Iterable[Node]) -> list[Metric]:
    infos = [_info(node.info) for node in nodes]
    alive = Metric("penstock_workers", "gauge", "Live workers.")
    alive.add(len(infos))
    slots = Metric("penstock_worker_slots", "gauge", "Jobs that the live workers can run at once.")
    slots.add(sum(int(info.get("slots", 0)) for info in infos))
    stalled = Metric("penstock_workers_stalled", "gauge", "Live workers whose event loop says nothing.")
    stalled.add(sum("stalled" in info for info in infos))
    return [alive, slots, stalled]


def _info(text: str) -> dict[str, Any]:
    try:
        info: dict[str, Any] = json.loads(text)
    except ValueError:
        return {}
    return info
