"""Where a job that is held waits in its lane: it follows from the job's header."""

from typing import NamedTuple

from penstock.engine.keys import SEPARATOR, rank
from penstock.model.header import Header


class LaneSpec(NamedTuple):
    """What a job says of a lane that it asks for; of a lock that is its name alone."""

    name: str
    limit: str = "1"
    rate: str = ""
    burst: str = ""
    kind: str = ""
    cost: str = "1"


def specs_of(header: Header) -> list[LaneSpec]:
    return [LaneSpec(*spec.split(SEPARATOR)) for spec in header.lanes]


def waiting_place(header: Header) -> tuple[str, str, str]:
    """Lane, queue and rank of a job that is held: whose turn it is comes first, an ordered lane knows no priorities."""
    spec = specs_of(header)[header.home - 1]
    if header.home == header.turn:
        return spec.name, header.queue, rank(0, 0)
    return spec.name, header.queue, rank(0 if spec.kind else header.priority, header.arrival)
