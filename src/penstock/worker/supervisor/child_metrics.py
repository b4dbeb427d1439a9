"""What a supervisor can tell Prometheus of its children."""

from collections.abc import Iterable

from penstock.engine.transport.connection_health import ConnectionHealth
from penstock.metrics.prometheus import Kind, Metric, histogram
from penstock.model.durations import DURATION_BUCKETS
from penstock.worker.supervisor.child import Child
from penstock.worker.supervisor.shared_state import Runs


class ChildMetrics:
    """Keeps the sums of children that have ended, so that counters only grow."""

    def __init__(self) -> None:
        self._ended = Runs([0] * (len(DURATION_BUCKETS) + 1), 0.0)
        self._died = 0

    def lost(self, child: Child, *, died: bool) -> None:
        """A child has ended, in order or not."""
        self._ended = _sum([self._ended, *_runs(child)])
        self._died += died

    def families(self, children: Iterable[Child], health: ConnectionHealth, *, evicts: bool) -> list[Metric]:
        living = list(children)
        runs = Metric("penstock_worker_run_seconds", "histogram", "How long the functions of jobs ran.")
        all_runs = _sum([self._ended, *(one for child in living for one in _runs(child))])
        histogram(runs, DURATION_BUCKETS, all_runs.counts, all_runs.seconds)
        return [
            _single("penstock_worker_processes", "gauge", "Processes that run jobs.", sum(one.up for one in living)),
            _single("penstock_worker_running", "gauge", "Jobs that run.", sum(map(_running, living))),
            _single("penstock_worker_died_total", "counter", "Processes that died.", self._died),
            _single("penstock_worker_reached", "gauge", "1 while the server can be used.", int(health.is_ok)),
            _single("penstock_worker_engine_errors_total", "counter", "Calls for which it could not.", health.failures),
            _single("penstock_worker_server_evicts", "gauge", "1 while the server evicts keys when full.", int(evicts)),
            runs,
        ]


def _single(name: str, kind: Kind, text: str, value: float) -> Metric:
    family = Metric(name, kind, text)
    family.add(value)
    return family


def _running(child: Child) -> int:
    return len(child.notes.started()) if child.notes is not None else 0


def _runs(child: Child) -> list[Runs]:
    return [child.notes.runs()] if child.notes is not None else []


def _sum(all_runs: list[Runs]) -> Runs:
    counts = [sum(column) for column in zip(*(one.counts for one in all_runs), strict=True)]
    return Runs(counts, sum(one.seconds for one in all_runs))
