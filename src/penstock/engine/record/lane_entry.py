"""The place of a held job in its lane, which follows from the job's header."""

from typing import NamedTuple

from penstock.engine.keys import SEPARATOR, rank
from penstock.model.header import Header


class LaneSpec(NamedTuple):
    """A lane as a job's header names it; a lock has only a name."""

    name: str
    limit: str = "1"
    rate: str = ""
    burst: str = ""
    kind: str = ""
    cost: str = "1"


def specs_of(header: Header) -> list[LaneSpec]:
    return [LaneSpec(*spec.split(SEPARATOR)) for spec in header.lanes]


def waiting_place(header: Header) -> tuple[str, str, str]:
    """Lane, queue and rank of a held job. The job that has the turn comes first; an ordered lane ignores priorities."""
    spec = specs_of(header)[header.home - 1]
    if header.home == header.turn:
        return spec.name, header.queue, rank(0, 0)
    return spec.name, header.queue, rank(0 if spec.kind else header.priority, header.arrival)
