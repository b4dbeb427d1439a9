"""`GET /metrics`: the queues as they are, what has happened in them, and who works there."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from penstock.engine.sums import Sums
from penstock.exposition import MEDIA, Family, text_of
from penstock.http import queues, workers
from penstock.http.answers import QueueAnswer, WorkerAnswer
from penstock.http.meters import Meters
from penstock.http.routes import Ask, Route
from penstock.http.totals import Totals
from penstock.program import Program

_MOST: Final = 100  #: queues that are told apart; the rest are one
_REST: Final = "(others)"
_SUMS: Final = ("wait", "run")  #: milliseconds, not jobs


class Metrics:
    """Answers scrapes; what it adds up is its own, so there is one for each service."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._totals = Totals()

    @property
    def route(self) -> Route:
        return Route("GET", "/metrics", self.get, "For Prometheus", answers={200: None}, media=MEDIA)

    async def get(self, ask: Ask) -> Response:
        families = [*await self._of_queues(ask.program), *_of_workers(await workers.rows(ask.program))]
        return Response(text_of([*families, *self._meters.families()]), media_type=MEDIA)

    async def _of_queues(self, program: Program) -> list[Family]:
        rows = await queues.rows(program)
        names = {row.name: row.name if number < _MOST else _REST for number, row in enumerate(rows)}
        found = Sums(program.hub().engine.link)
        self._totals.add(await found.sums())
        now = await program.hub().views.now()
        since = await found.oldest([row.name for row in rows[:_MOST]])
        ages = {name: (now - at) / 1000 for name, at in since.items()}
        return [*_depths(rows, names), _ages(rows, ages), *_events(self._totals.by_queue, rows, names)]


def _depths(rows: list[QueueAnswer], names: Mapping[str, str]) -> list[Family]:
    jobs = Family("penstock_queue_jobs", "gauge", "Jobs by queue and state; finished ones while they are kept.")
    numbers: Counter[tuple[str, str]] = Counter()
    for row in rows:
        for state, number in row.counts.items():
            numbers[names[row.name], state] += number
    for (queue, state), number in numbers.items():
        jobs.add(number, queue=queue, state=state)
    paused = Family("penstock_queue_paused", "gauge", "1 while a queue is paused.")
    limits = Family("penstock_queue_limit", "gauge", "How many of a queue may run at once, where that is limited.")
    for row in rows[:_MOST]:
        paused.add(int(row.paused), queue=row.name)
        if row.limit is not None:
            limits.add(row.limit, queue=row.name)
    return [jobs, paused, limits]


def _ages(rows: list[QueueAnswer], ages: Mapping[str, float]) -> Family:
    found = Family("penstock_oldest_ready_seconds", "gauge", "How long the oldest ready job of a queue has been ready.")
    for row in rows[:_MOST]:
        found.add(max(ages.get(row.name, 0.0), 0.0), queue=row.name)
    return found


def _events(totals: Mapping[tuple[str, str], int], rows: list[QueueAnswer], names: Mapping[str, str]) -> list[Family]:
    """Jobs that each verb moved; waits and runs as sums, from which their mean follows."""
    found: Counter[tuple[str, str]] = Counter()
    for (queue, name), total in totals.items():
        found[names.get(queue, _REST), name] += total
    running: Counter[str] = Counter()
    for row in rows:
        running[names[row.name]] += row.counts["running"]
    verbs = Family(
        "penstock_transitions_total", "counter", "Jobs that a verb moved, such as complete, retry, bury, reap."
    )
    for (queue, name), total in found.items():
        if name not in _SUMS:
            verbs.add(total, queue=queue, verb=name)
    waits = Family("penstock_wait_seconds", "summary", "Time from being ready to being started.")
    runs = Family("penstock_run_seconds", "summary", "Time from being started to being settled.")
    for queue in {queue for queue, _ in found}:
        started = found[queue, "lease"]
        waits.add(found[queue, "wait"] / 1000, "_sum", queue=queue)
        waits.add(started, "_count", queue=queue)
        runs.add(found[queue, "run"] / 1000, "_sum", queue=queue)
        runs.add(max(started - running[queue], 0), "_count", queue=queue)
    return [verbs, waits, runs]


def _of_workers(rows: list[WorkerAnswer]) -> list[Family]:
    alive = Family("penstock_workers", "gauge", "Live workers.")
    alive.add(len(rows))
    slots = Family("penstock_worker_slots", "gauge", "Jobs that the live workers can run at once.")
    slots.add(sum(row.slots for row in rows))
    stalled = Family("penstock_workers_stalled", "gauge", "Live workers whose event loop says nothing.")
    stalled.add(sum(row.stalled for row in rows))
    return [alive, slots, stalled]
