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
    failure: str = ""  #: once there is one, it takes no more turns

    @property
    def system(self) -> System:
        return self.place.system

    def can(self, way: Way) -> bool:
        return not self.failure and (not way.needs or way.needs in self.adapter.ways)

    def slice_of(self, way: Way, scale: Scale) -> int:
        """How many jobs to send in a turn: tried with more of them, as long as few do not tell how fast many are."""
        tried = WARM if way.needs else scale.warm
        while True:
            fitting = scale.count(self.rate(way, tried) * 0.6) // scale.slices
            if fitting <= 2 * tried or self.failure:
                return max(tried, fitting)
            tried = fitting

    def rate(self, way: Way, count: int) -> float:
        """Jobs a second."""
        asked = {"kind": self.adapter.kind, "first": self.place.numbers(count), "count": count, **way.arguments}
        try:
            return count / float(self.adapter.ask(way.verb, **asked)["seconds"])
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
        counts = {one: one.slice_of(way, scale) for one in senders if one.can(way)}
        found: dict[Sender, list[float]] = {one: [] for one in counts}
        for _ in range(scale.repeats):
            rates: dict[Sender, list[float]] = {one: [] for one in counts}
            for _ in range(scale.slices):
                for one, count in counts.items():
                    if not one.failure:
                        rates[one].append(one.rate(way, count))
            for one, fastest in rates.items():
                found[one].append(max(fastest, default=0.0))
        yield from ((one.system, way.measure, values) for one, values in found.items() if not one.failure)
    for one in senders:
        if not one.failure:
            one.audit()
