"""What Penstock wants to reach beside its peers and the bare loop, and whether a run reached it.

Goals are ratios within one run: figures of different machines, or of one machine at different times, do not compare.
"""

from dataclasses import dataclass
from typing import Final

from benchmarks.figures import MEASURES, Figure, Results
from benchmarks.systems import BARE, BY_NAME, PEERS, PENSTOCK

PEER: Final = "fastest peer"
RECORD: Final = "leanest peer with a record per job"
LOOP: Final = "bare loop"
PLAIN: Final = "plain drain"
LIMIT: Final = "limit"


@dataclass(frozen=True, slots=True)
class Goal:
    """Penstock's figure against another: at least `factor` times it where more is better, else at most, and `slack`."""

    measure: str
    against: str
    factor: float
    slack: float = 0.0


GOALS: Final = (
    Goal("drain.async", PEER, 15),
    Goal("drain.async", LOOP, 0.6),
    Goal("drain.thread", PEER, 5),
    Goal("drain.locked", PLAIN, 0.6),
    Goal("drain.batch", PLAIN, 0.6),
    Goal("enqueue.bulk", PEER, 10),
    Goal("enqueue.bulk", LOOP, 0.4),
    Goal("enqueue.callers", PEER, 10),
    Goal("enqueue.sync", PEER, 1),
    Goal("enqueue.sync", LOOP, 0.8),
    Goal("enqueue.async", PEER, 1),
    Goal("enqueue.async", LOOP, 0.8),
    Goal("latency.p50", PEER, 1),
    Goal("latency.p99", LOOP, 1.5),
    Goal("lateness.p99", LOOP, 1, slack=10),
    Goal("memory.job", RECORD, 1),
    Goal("cost.commands", LIMIT, 0.1),
    Goal("idle.commands", LIMIT, 1),
    Goal("idle.cpu", LIMIT, 0.5),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row: what was wanted, what was found, and whether that is enough; None if something was not measured."""

    goal: Goal
    wanted: str
    ours: str
    other: str
    ratio: str
    reached: bool | None


def outcomes(results: Results) -> list[Outcome]:
    return [_outcome(goal, results) for goal in GOALS]


def _outcome(goal: Goal, results: Results) -> Outcome:
    ours, other = results.get(PENSTOCK.name, goal.measure), _other(goal, results)
    bound = _bound(goal, other)
    more = MEASURES[goal.measure].more_is_better
    if ours is None or bound is None:
        return Outcome(goal, _wanted(goal), str(ours or "–"), _named(other), "–", None)
    reached = ours.best >= bound if more else ours.best <= bound
    ratio = "" if other is None or not other.best else f"{ours.best / other.best:.2f}×"
    return Outcome(goal, _wanted(goal), str(ours), _named(other), ratio, reached)


def _bound(goal: Goal, other: Figure | None) -> float | None:
    if goal.against == LIMIT:
        return goal.factor
    return None if other is None else goal.factor * other.best + goal.slack


def _other(goal: Goal, results: Results) -> Figure | None:
    if goal.against == LOOP:
        return results.get(BARE.name, goal.measure)
    if goal.against == PLAIN:
        return results.get(PENSTOCK.name, "drain.async")
    if goal.against == LIMIT:
        return None
    peers = [peer.name for peer in PEERS if goal.against == PEER or peer.keeps_record]
    # A peer's plainest drain counts, whichever kind of job that is: some have no `async def`, some are slower with it.
    measures = ("drain.async", "drain.thread") if goal.measure == "drain.async" else (goal.measure,)
    figures = [figure for name in peers for measure in measures if (figure := results.get(name, measure))]
    pick = max if MEASURES[goal.measure].more_is_better else min
    return pick(figures, key=lambda figure: figure.best, default=None)


def _wanted(goal: Goal) -> str:
    measure = MEASURES[goal.measure]
    sign = "≥" if measure.more_is_better else "≤"
    if goal.against == LIMIT:
        return f"≤ {goal.factor:g} {measure.unit}".rstrip()
    slack = f" + {goal.slack:g} {measure.unit}" if goal.slack else ""
    return f"{sign} {goal.factor:g}× {goal.against}{slack}"


def _named(figure: Figure | None) -> str:
    return "" if figure is None else f"{BY_NAME[figure.system].title}: {figure}"
