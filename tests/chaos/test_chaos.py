"""The chaos run itself: a short one each time, minutes of it with `make test-long`."""

import shutil

import pytest

from tests.chaos.report import report
from tests.chaos.run import run_seed
from tests.chaos.undo import NAMES


@pytest.mark.timeout(150)
def test_a_short_chaos_run_with_gentle_faults_has_no_violation() -> None:
    outcome = run_seed(1, 5, kind="chaos", only=["kill-child", "cut", "flush"], mixed=False)
    assert outcome.violations == [], report(outcome)
    assert outcome.starts > 20
    assert sum(outcome.faults.values()) > 0


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2, 4, 5])  # 4: a replica is promoted; 5: the clock steps
def test_no_promise_is_broken_while_everything_around_it_breaks(seed: int) -> None:
    outcome = run_seed(seed, 120)
    assert outcome.violations == [], report(outcome)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mend", NAMES)
def test_a_run_finds_the_defect_when_its_mend_is_undone(mend: str) -> None:
    seeds = (8, 4, 12, 16) if mend == "leases-are-compared" else (2, 1, 3)  # only a lagging replica shows that one
    assert any(_finds_violations(mend, seed) for seed in seeds)


def _finds_violations(mend: str, seed: int) -> bool:
    outcome = run_seed(seed, 60, undone=mend)
    shutil.rmtree(outcome.folder, ignore_errors=True)
    return bool(outcome.violations)
