"""Outcomes become engine calls: one verb per kind, a page each."""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import astuple

from penstock.engine.engine import PAGE, Engine
from penstock.engine.link import Call
from penstock.worker.outcome import Again, Back, Crashed, Dead, Done, Later, Outcome


class Settled(msgspec.Struct, frozen=True, gc=False):
    """A finished run that is to be settled."""

    worker: str
    number: int
    id: str
    outcome: Outcome
    note: int = -1  #: the mark that says that it has started


def settle(engine: Engine, runs: list[Settled]) -> list[tuple[list[Settled], Call[list[str]]]]:
    """The calls that settle these runs, with the runs that each one settles."""
    kinds: dict[tuple[str, type], list[Settled]] = {}
    for run in runs:
        kind = run.worker, type(run.outcome)
        if kind in kinds:
            kinds[kind].append(run)
        else:
            kinds[kind] = [run]
    return [(page, _verb(engine, page)) for kind in kinds.values() for page in _pages(kind)]


def _verb(engine: Engine, runs: list[Settled]) -> Call[list[str]]:
    """Runs of one worker with the same kind of outcome, as one call."""
    rows: Any = [(run.id, run.number, *astuple(run.outcome)) for run in runs]
    worker = runs[0].worker
    match runs[0].outcome:
        case Done():
            return engine.complete(worker, rows)
        case Again():
            return engine.retry(worker, rows)
        case Dead():
            return engine.bury(worker, rows)
        case Crashed():
            return engine.crash(worker, rows)
        case Later():
            return engine.snooze(worker, rows)
        case Back():
            return engine.release(worker, rows)


def _pages(runs: list[Settled]) -> Iterable[list[Settled]]:
    return (runs[start : start + PAGE] for start in range(0, len(runs), PAGE))
