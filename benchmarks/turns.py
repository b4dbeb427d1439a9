"""Enqueueing, by all systems in turns: what a round trip takes changes with the minute, and with it every figure.

Each system has a server of its own, and sends a short slice when it is its turn. So what is compared was measured
within seconds of each other, as often as there are slices.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.adapter import Adapter, Failed, Place
from benchmarks.measures import Scale, audit
from benchmarks.systems import System

WARM: Final = 50  #: jobs that show how fast single enqueues are, before they count


@dataclass(frozen=True, slots=True)
class Way:
    """A way to enqueue: what an adapter is asked for, and what it must be able to do."""

    measure: str
    verb: str
    needs: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)


WAYS: Final = (
    Way("enqueue.sync", "one_by_one", "send_sync", {"way": "send_sync"}),
    Way("enqueue.async", "one_by_one", "send", {"way": "send"}),
    Way("enqueue.callers", "callers"),
    Way("enqueue.bulk", "many"),
)


@dataclass(eq=False, slots=True)
class Sender:
    """One system that sends, with no worker."""

    place: Place
    adapter: Adapter
    failure: str = ""  #: once there is sender, it takes no more turns

    @property
    def system(self) -> System:
        return self.place.system

    def can(self, way: Way) -> bool:
        return not self.failure and (not way.needs or way.needs in self.adapter.ways)

    def slice_of(self, way: Way, scale: Scale) -> int:
        """How many jobs to send in a turn. A larger number is tried until it is large enough to measure the rate."""
        count = WARM if way.needs else scale.warm
        while True:
            fitting = scale.count(self.rate(way, count) * 0.6) // scale.slices
            if fitting <= 2 * count or self.failure:
                return max(count, fitting)
            count = fitting

    def rate(self, way: Way, count: int) -> float:
        """Jobs a second."""
        request = {"kind": self.adapter.kind, "first": self.place.numbers(count), "count": count, **way.arguments}
        try:
            return count / float(self.adapter.ask(way.verb, **request)["seconds"])
        except Failed as error:
            self.failure = str(error)
            return 0.0

    def audit(self) -> None:
        try:
            audit(self.adapter)
        except Failed as error:
            self.failure = str(error)


def enqueue(senders: Sequence[Sender], scale: Scale) -> Iterator[tuple[System, str, list[float]]]:
    """System, measure and its repeats, each of them the fastest of its slices."""
    for way in WAYS:
        counts = {sender: sender.slice_of(way, scale) for sender in senders if sender.can(way)}
        results: dict[Sender, list[float]] = {sender: [] for sender in counts}
        for _ in range(scale.repeats):
            rates: dict[Sender, list[float]] = {sender: [] for sender in counts}
            for _ in range(scale.slices):
                for sender, count in counts.items():
                    if not sender.failure:
                        rates[sender].append(sender.rate(way, count))
            for sender, fastest in rates.items():
                results[sender].append(max(fastest, default=0.0))
        yield from ((sender.system, way.measure, values) for sender, values in results.items() if not sender.failure)
    for sender in senders:
        if not sender.failure:
            sender.audit()
