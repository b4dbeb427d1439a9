"""Metrics of the service itself: requests by route and status, their duration, and errors of the server behind it."""

from bisect import bisect_left
from collections import Counter, defaultdict
from typing import Final

from penstock.http.problems import CAUSES
from penstock.metrics.prometheus import Metric, histogram

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  #: seconds


class RequestMetrics:
    """Labels are routes of the table, never paths, so that their number is bounded."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets: dict[tuple[str, str], list[int]] = {}
        self._seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._errors = 0
        self._refusals: Counter[str] = Counter()

    def refused(self, cause: str) -> None:
        self._refusals[cause] += 1

    def record(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests[method, route, status] += 1
        self._errors += status == 503
        buckets = self._buckets.setdefault((method, route), [0] * (len(_BUCKETS) + 1))
        buckets[bisect_left(_BUCKETS, seconds)] += 1
        self._seconds[method, route] += seconds

    def families(self) -> list[Metric]:
        requests = Metric("penstock_http_requests_total", "counter", "Requests by route and status.")
        for (method, route, status), number in self._requests.items():
            requests.add(number, method=method, route=route, status=str(status))
        times = Metric("penstock_http_request_seconds", "histogram", "How long answers took.")
        for (method, route), buckets in self._buckets.items():
            histogram(times, _BUCKETS, buckets, self._seconds[method, route], method=method, route=route)
        errors = Metric("penstock_engine_errors_total", "counter", "Requests for which the server could not be used.")
        errors.add(self._errors)
        refusals = Metric("penstock_http_refusals_total", "counter", "Requests that were refused, by cause.")
        for cause in CAUSES:
            refusals.add(self._refusals[cause], cause=cause)
        return [requests, times, errors, refusals]
