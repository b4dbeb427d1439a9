"""The harness itself, on a tiny count: Penstock's own adapter and the bare loop, no peers."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import growth, page
from benchmarks.environments import CannotInstall
from benchmarks.figures import MEASURES, Figure, Results
from benchmarks.goals import GOALS, outcomes
from benchmarks.measures import Scale
from benchmarks.run import run
from benchmarks.systems import BARE, PEERS, PENSTOCK, SYSTEMS, System

TINY = Scale(
    repeats=1,
    slices=1,
    latency_turns=1,
    drains=1,
    seconds=0.05,
    max_jobs=300,
    warm=100,
    pause=0.2,
    idle=0.2,
    stored=300,
    latency=5,
    late=5,
    limit=60,
)


def here(system: System) -> Path:
    """The programs of the environment that runs the tests."""
    return Path(sys.executable).parent


@pytest.fixture(scope="module")
def results() -> Results:
    groups = ("drain", "enqueue", "latency", "lateness", "memory", "cost", "idle", "start")
    return run([BARE, PENSTOCK], here, print, groups=groups, scale=TINY)


def test_every_measure_is_taken_of_penstock_and_of_the_bare_loop(results: Results) -> None:
    assert results.notes == {}
    for system in (BARE, PENSTOCK):
        measured = {figure.measure for figure in results.figures if figure.system == system.name}
        assert measured >= set(MEASURES) - {"drain.locked", "drain.batch", "crash.return"}
        assert all(value > 0 for figure in results.figures for value in figure.values if "drain" in figure.measure)


def test_the_page_has_every_figure_its_plots_and_what_people_wrote_around_them(
    results: Results, tmp_path: Path
) -> None:
    (tmp_path / "performance.md").write_text(f"# Mine\nbefore\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    page.write(results, tmp_path)
    text = (tmp_path / "performance.md").read_text()
    assert text.startswith("# Mine\nbefore\n")
    assert text.endswith(f"{page.END}\nafter\n")
    assert "old" not in text.splitlines()
    for figure in results.figures:
        assert f"{figure.best:,.{MEASURES[figure.measure].digits}f}" in text
    for measure, *_ in page.PLOTS:
        assert "</svg>" in (tmp_path / "performance" / f"{measure.replace('.', '-')}.svg").read_text()
    assert "Penstock" in page.terminal(results)


def test_results_survive_being_saved(results: Results, tmp_path: Path) -> None:
    results.save(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json") == results


def test_a_system_that_cannot_be_installed_or_does_not_answer_is_noted_and_the_run_goes_on() -> None:
    broken = replace(PEERS[0], name="broken", title="Broken")
    silent = replace(PENSTOCK, name="penstock", worker=("python", "-c", "raise SystemExit('no worker today')"))

    def programs(system: System) -> Path:
        if system.name == "broken":
            raise CannotInstall("no such package")
        return here(system)

    results = run([broken, silent], programs, print, groups=("start",), scale=replace(TINY, limit=1))
    assert results.notes["broken"] == ["cannot be installed here: no such package"]
    assert "no worker today" in results.notes["penstock"][0]


def test_goals_compare_with_the_best_peer_and_the_bare_loop() -> None:
    figures = [
        Figure(PENSTOCK.name, "drain.async", [30_000, 40_000]),
        Figure(BARE.name, "drain.async", [80_000]),
        Figure("dramatiq", "drain.async", [2_000]),
        Figure("arq", "drain.async", [1_000]),
        Figure("huey", "drain.thread", [2_500]),
        Figure(PENSTOCK.name, "latency.p50", [2.0]),
        Figure("arq", "latency.p50", [1.0]),
    ]
    rows = {(row.goal.measure, row.goal.against): row for row in outcomes(Results(figures=figures))}
    assert rows["drain.async", "fastest peer"].reached is True
    assert rows["drain.async", "fastest peer"].ratio.startswith("16.00")
    assert rows["drain.async", "bare loop"].reached is False
    assert rows["latency.p50", "fastest peer"].reached is False
    assert rows["memory.job", "leanest peer with a record per job"].reached is None


def test_every_system_has_an_adapter_and_every_goal_a_measure() -> None:
    adapters = {path.stem for path in Path("benchmarks/adapters").glob("*.py")}
    assert {system.name for system in SYSTEMS} <= adapters
    assert {goal.measure for goal in GOALS} <= set(MEASURES)


def test_growth_is_measured_and_replaces_its_part_of_the_page(tmp_path: Path) -> None:
    rows = growth.measure(growth.Scale(depths=(100,), lanes=(2,), processes=(1,), jobs=300, repeats=1))
    assert [(row.what, row.number) for row in rows] == [("queued", 100), ("lanes", 2), ("processes", 1)]
    assert all(row.drain > 0 and row.rate > 0 for row in rows)
    page_file = tmp_path / "performance.md"
    page_file.write_text(f"before\n{growth.BEGIN}\nold\n{growth.END}\nafter\n")
    growth.write(rows, page_file)
    text = page_file.read_text()
    assert text.startswith(f"before\n{growth.BEGIN}")
    assert text.endswith(f"{growth.END}\nafter\n")
    assert "old" not in text.splitlines()
    assert all(f"| {row.number} |" in text for row in rows)
