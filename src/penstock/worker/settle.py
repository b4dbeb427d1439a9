"""Outcomes become engine calls: one verb per kind, a page each."""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import astuple

from penstock.engine.engine import PAGE, Engine
from penstock.engine.transport.script_client import ScriptCall
from penstock.worker.outcome import Buried, Completed, Crashed, Outcome, Released, Retried, Snoozed


class SettledRun(msgspec.Struct, frozen=True, gc=False):
    """A finished run that is to be settled."""

    worker: str
    number: int
    id: str
    outcome: Outcome
    note: int = -1  #: the mark that says that it has started


def settle(engine: Engine, runs: list[SettledRun]) -> list[tuple[list[SettledRun], ScriptCall[list[str]]]]:
    """The calls that settle these runs, with the runs that each one settles."""
    kinds: dict[tuple[str, type], list[SettledRun]] = {}
    for run in runs:
        kind = run.worker, type(run.outcome)
        if kind in kinds:
            kinds[kind].append(run)
        else:
            kinds[kind] = [run]
    return [(page, _verb(engine, page)) for kind in kinds.values() for page in _pages(kind)]


def _verb(engine: Engine, runs: list[SettledRun]) -> ScriptCall[list[str]]:
    """Runs of one worker with the same kind of outcome, as one call."""
    rows: Any = [(run.id, run.number, *astuple(run.outcome)) for run in runs]
    worker = runs[0].worker
    match runs[0].outcome:
        case Completed():
            return engine.complete(worker, rows)
        case Retried():
            return engine.retry(worker, rows)
        case Buried():
            return engine.bury(worker, rows)
        case Crashed():
            return engine.crash(worker, rows)
        case Snoozed():
            return engine.snooze(worker, rows)
        case Released():
            return engine.release(worker, rows)


def _pages(runs: list[SettledRun]) -> Iterable[list[SettledRun]]:
    return (runs[start : start + PAGE] for start in range(0, len(runs), PAGE))
