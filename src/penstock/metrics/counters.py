"""Counters that only grow, from sums per minute that the server stores for a while."""

from collections import Counter
from collections.abc import Iterable

from penstock.engine.read.statistics import Statistic


class Counters:
    """Adds up the growth of each minute since the last scrape; begins with the minutes that are stored."""

    def __init__(self) -> None:
        self.by_queue: Counter[tuple[str, str]] = Counter()  #: queue and name → total
        self._seen: dict[tuple[int, str, str], int] = {}

    def add(self, sums: Iterable[Statistic]) -> None:
        seen: dict[tuple[int, str, str], int] = {}
        for minute, queue, name, value in sums:
            before = self._seen.get((minute, queue, name), 0)
            self.by_queue[queue, name] += max(value - before, 0)
            seen[minute, queue, name] = max(value, before)
        self._seen = seen
