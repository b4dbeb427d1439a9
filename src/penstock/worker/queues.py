"""Which queues a worker looks at, and in which order."""

import random
from collections.abc import Sequence

from penstock.errors import BadOption
from penstock.options import queue_name


class Queues:
    """`mail,default` is strict: the first queue first. `mail:5,default:1` is weighted: mail is first 5 times in 6."""

    def __init__(self, names: Sequence[str]) -> None:
        parsed = [_weighted(name.strip()) for name in names]
        if not parsed:
            raise BadOption("queues: name at least one, or * for all")
        self.names = [name for name, _ in parsed]
        self._weights = {name: weight for name, weight in parsed if weight}
        if self._weights and len(self._weights) != len(parsed):
            raise BadOption(f"queues={','.join(names)}: give all of them a weight, or none")
        if "*" in self.names and len(self.names) > 1:
            raise BadOption("queues: * means all queues and stands alone")
        if len(set(self.names)) != len(self.names):
            raise BadOption(f"queues={','.join(names)}: a queue is named twice")

    def order(self) -> list[str]:
        """The order for one look: as written, or drawn by weight so that every queue has its turn."""
        if not self._weights:
            return self.names
        # Exponential keys: sorting by them draws without replacement, each queue with its weight.
        return sorted(self.names, key=lambda name: random.expovariate(self._weights[name]))


def _weighted(text: str) -> tuple[str, int]:
    name, colon, weight = text.rpartition(":")
    if colon and weight.isdigit():
        if int(weight) < 1:
            raise BadOption(f"queue {text!r}: a weight is a number above 0")
        return queue_name(name), int(weight)
    return (text, 0) if text == "*" else (queue_name(text), 0)
