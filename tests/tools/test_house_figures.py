"""tools/house_figures.py: what it counts in a small tree, and limits that this repository keeps."""

from pathlib import Path

import pytest

from tools import house_figures
from tools.house_figures import ROOT, Tree, checkout, figures, table

FILES = {
    "src/penstock/stored.py": "class Plain: ...\nclass Done: ...\n",
    "src/penstock/job.py": "class Done: ...\ndef show(): ...\n",
    "src/penstock/show.py": '"""A letter, no dead letter."""\n# a comment\n\ndef show():\n    found = 1\n',
    "src/penstock/worker/run.py": "from penstock.job import Done\n",
    "src/penstock/engine/scripts.py": 'WORDS = "keys", "include"\n',
    "src/penstock/engine/reading.py": 'NUMBER = Struct(">I")\n',
    "src/penstock/engine/lua/lib/label.lua": "-- keys: jobs\nlocal at = at + 23 " + " " * 120 + "\n" * 70,
    "src/penstock/engine/lua/enqueue.lua": "-- include: label\n-- flags: none\nlocal function enter_line(i)\n",
    "docs/architecture.md": "## The way of a job\n1. [`worker/run.py`][]\n2. [`gone.py`][]\n### Meanwhile\n",
    "pyproject.toml": '[[tool.importlinter.contracts]]\nlayers = ["worker : job", "show"]\n',
}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setattr(house_figures, "traced", lambda _: ([], []))
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Tree(tmp_path)


def test_each_figure_counts_what_it_says(small: Tree) -> None:
    rows = {name: len(value) if isinstance(value, list) else value for name, value in figures(small).items()}
    rows.pop("duplicate pairs in the package")
    assert rows == {
        "stored shapes of a job": 3,
        "encoders of a job (listed)": 0,
        "parsers of a label (listed)": 0,
        "write paths of enqueue (listed)": 1,
        "raw numbers in Lua": 1,
        "raw numbers in Python, outside the declaration": 1,
        "files from task.enqueue to the script (docs/architecture.md)": 2,
        "files of a whole life (docs/architecture.md)": 2,
        "of these missing, or imported by nothing": 1,
        "layers": 2,
        "modules and packages in no layer": 2,
        "modules beside the packages, at the top": 3,
        "names with two meanings: classes and functions": 2,
        "names with two meanings: classes alone": 1,
        "words of the old vocabulary": 1,
        "variables called found, one or given": 1,
        "Lua lines over 120 columns": 1,
        "Lua files over 60 lines": 1,
        "Lua files": 2,
        "kinds of comment directives of the script build": 2,
        "lines with such a directive": 2,
        "lines of Python code": 9,
        "lines of Lua code": 2,
        "lines of tests": 0,
        "Python files that a warm enqueue runs (traced)": "-",
        "Python files from enqueue to result (traced)": "-",
    }


def test_two_revisions_are_printed_side_by_side(small: Tree, tmp_path: Path) -> None:
    columns = {"HEAD": figures(checkout("HEAD", tmp_path / "head")), "small": figures(small)}
    head, *rows = table(columns).splitlines()
    assert head.split() == ["HEAD", "small"]
    assert rows[0].split()[-1] == "3"
    assert len(rows) == len(columns["small"])


def test_the_house_keeps_its_rules() -> None:
    values = figures(Tree(ROOT))
    assert len(values["stored shapes of a job"]) == 1  # type: ignore[arg-type]
    assert values["raw numbers in Python, outside the declaration"] == []
    assert values["of these missing, or imported by nothing"] == []
    assert values["modules and packages in no layer"] == []
    assert len(values["files from task.enqueue to the script (docs/architecture.md)"]) <= 9  # type: ignore[arg-type]
    assert len(values["files of a whole life (docs/architecture.md)"]) <= 16  # type: ignore[arg-type]
    enqueued = values["Python files that a warm enqueue runs (traced)"]
    assert isinstance(enqueued, list)
    assert {"api/task.py", "client/producer.py", "engine/engine.py"} <= {*enqueued}
