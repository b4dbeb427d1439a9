"""What a supervisor can tell Prometheus of its children."""

from collections.abc import Iterable

from penstock.engine.reach import Reach
from penstock.exposition import RANGES, Family, Kind, histogram
from penstock.worker.notes import Runs
from penstock.worker.offspring import Child


class Gauges:
    """Keeps the sums of children that have ended, so that counters only grow."""

    def __init__(self) -> None:
        self._ended = Runs([0] * (len(RANGES) + 1), 0.0)
        self._died = 0

    def lost(self, child: Child, *, died: bool) -> None:
        """A child has ended, in order or not."""
        self._ended = _sum([self._ended, *_runs(child)])
        self._died += died

    def families(self, children: Iterable[Child], reach: Reach, *, evicts: bool) -> list[Family]:
        living = list(children)
        runs = Family("penstock_worker_run_seconds", "histogram", "How long the functions of jobs ran.")
        all_runs = _sum([self._ended, *(one for child in living for one in _runs(child))])
        histogram(runs, RANGES, all_runs.counts, all_runs.seconds)
        return [
            _single("penstock_worker_processes", "gauge", "Processes that run jobs.", sum(one.up for one in living)),
            _single("penstock_worker_running", "gauge", "Jobs that run.", sum(map(_running, living))),
            _single("penstock_worker_died_total", "counter", "Processes that died.", self._died),
            _single("penstock_worker_reached", "gauge", "1 while the server can be used.", int(reach.well)),
            _single("penstock_worker_engine_errors_total", "counter", "Calls for which it could not.", reach.failures),
            _single("penstock_worker_server_evicts", "gauge", "1 while the server evicts keys when full.", int(evicts)),
            runs,
        ]


def _single(name: str, kind: Kind, text: str, value: float) -> Family:
    family = Family(name, kind, text)
    family.add(value)
    return family


def _running(child: Child) -> int:
    return len(child.notes.started()) if child.notes is not None else 0


def _runs(child: Child) -> list[Runs]:
    return [child.notes.runs()] if child.notes is not None else []


def _sum(all_runs: list[Runs]) -> Runs:
    counts = [sum(column) for column in zip(*(one.counts for one in all_runs), strict=True)]
    return Runs(counts, sum(one.seconds for one in all_runs))
