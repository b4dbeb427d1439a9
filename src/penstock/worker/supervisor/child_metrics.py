"""Prometheus metrics of a supervisor's children."""

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

    def ended(self, child: Child, *, died: bool) -> None:
        """Keep the sums of a child that has ended."""
        self._ended = _sum([self._ended, *_runs(child)])
        self._died += died

    def families(self, children: Iterable[Child], health: ConnectionHealth, *, evicts: bool) -> list[Metric]:
        living = list(children)
        run_seconds = Metric("penstock_worker_run_seconds", "histogram", "How long the functions of jobs ran.")
        all_runs = _sum([self._ended, *(runs for child in living for runs in _runs(child))])
        histogram(run_seconds, DURATION_BUCKETS, all_runs.counts, all_runs.seconds)
        return [
            _single(
                "penstock_worker_processes", "gauge", "Processes that run jobs.", sum(child.is_up for child in living)
            ),
            _single("penstock_worker_running", "gauge", "Jobs that run.", sum(map(_running, living))),
            _single("penstock_worker_died_total", "counter", "Processes that died.", self._died),
            _single("penstock_worker_reached", "gauge", "1 while the server can be used.", int(health.is_ok)),
            _single("penstock_worker_engine_errors_total", "counter", "Calls for which it could not.", health.failures),
            _single("penstock_worker_server_evicts", "gauge", "1 while the server evicts keys when full.", int(evicts)),
            run_seconds,
        ]


def _single(name: str, kind: Kind, text: str, value: float) -> Metric:
    family = Metric(name, kind, text)
    family.add(value)
    return family


def _running(child: Child) -> int:
    return len(child.shared_state.started()) if child.shared_state is not None else 0


def _runs(child: Child) -> list[Runs]:
    return [child.shared_state.runs()] if child.shared_state is not None else []


def _sum(all_runs: list[Runs]) -> Runs:
    counts = [sum(column) for column in zip(*(runs.counts for runs in all_runs), strict=True)]
    return Runs(counts, sum(runs.seconds for runs in all_runs))
