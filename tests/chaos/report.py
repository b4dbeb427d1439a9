"""What came of a run, in words: each violation with the lines of the ledger and the faults around it."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tests.chaos.checks import Violation
from tests.chaos.ledger import read

if TYPE_CHECKING:
    from tests.chaos.run import Outcome

SHOWN = 3  #: violations of each check
LINES = 24
MARGIN = 4_000_000  #: µs around a violation in which a fault may have to do with it


def report(outcome: "Outcome") -> str:
    """For people; the ledger's folder is in it."""
    broken = outcome.violations
    head = f"seed {outcome.seed} ({outcome.kind}): "
    if not broken:
        return (
            f"{head}{outcome.jobs} jobs, {outcome.starts} starts, {sum(outcome.faults.values())} faults, no violation"
        )
    lines = list(read(outcome.folder / "ledger"))
    parts = [f"{head}{len(broken)} violations {dict(Counter(one.check for one in broken))}; ledger: {outcome.folder}"]
    shown: Counter[str] = Counter()
    for one in broken:
        shown[one.check] += 1
        if shown[one.check] <= SHOWN:
            parts.append(_shown(one, lines))
    return "\n".join(parts)


def _shown(one: Violation, lines: list[dict[str, Any]]) -> str:
    about = [line for line in lines if line.get("id") == one.job or one.job in line.get("ids", ())][-LINES:]
    since = one.since or min((line["at"] for line in about), default=0)
    until = one.until or max((line["at"] for line in about), default=0)
    faults = [
        line
        for line in lines
        if line["what"] in {"fault", "starved", "slow"}
        and line["since"] <= until + MARGIN
        and line["until"] >= since - MARGIN
    ][-LINES:]
    text = [f"\n{one.check.upper()} {one.job}: {one.text}"]
    text += ["  ledger:", *_lines(about)] if about else []
    text += ["  faults around it:", *_lines(faults)] if faults else []
    return "\n".join(text)


def _lines(lines: Iterable[dict[str, Any]]) -> list[str]:
    return [f"    {json.dumps({k: v for k, v in line.items() if k != 'real'})}" for line in lines]


def summary(outcomes: "list[Outcome]") -> str:
    """A row for each seed."""
    rows = ["", f"{'seed':>6} {'kind':9} {'jobs':>6} {'starts':>7} {'faults':>6} {'verbs':>6} {'s':>5}  violations"]
    for one in outcomes:
        broken = dict(Counter(violation.check for violation in one.violations))
        text = ", ".join(f"{name} {number}" for name, number in broken.items()) or "none"
        faults = sum(one.faults.values())
        numbers = f"{one.jobs:>6} {one.starts:>7} {faults:>6} {one.verbs:>6} {one.seconds:>5.0f}"
        rows.append(f"{one.seed:>6} {one.kind:9} {numbers}  {text}")
    return "\n".join(rows)
