"""What people are told when they mistype: what is wrong, and what to do."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.root import COMMANDS, main


def told(*words: str) -> tuple[int, str]:
    found = CliRunner().invoke(main, list(words))
    return found.exit_code, found.output


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["wroker"], "did you mean 'worker'?"),
        (["job", "shw"], "did you mean 'show'?"),
        (["queue", "nonsense"], "valid are ls, pause, purge, resume, set"),
        (["worker", "--concurency", "5"], "Did you mean '--concurrency'?"),
        (["worker", "--lease", "soon"], "'soon': use seconds, or such as 250ms, 30s, 10m, 2h, 3d"),
        (["dead", "retry", "--namespace", "shop"], "or --all"),
        (["dead", "discard", "--namespace", "shop"], "or penstock dead purge"),
    ],
)
def test_a_mistake_on_the_command_line_is_told_with_what_is_valid(words: list[str], text: str) -> None:
    code, output = told(*words)
    assert code == 2
    assert text in output


def test_the_file_of_an_app_is_told_to_be_named_as_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for given, module in (("shop/tasks.py", "shop.tasks"), ("./shop.py:app", "shop")):
        code, output = told("queue", "ls", "--app", given)
        assert code == 4
        assert f"name it as a module, such as {module}:app" in output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_whose_lines_are_not_cut_off(name: str) -> None:
    code, output = told(name, "--help")
    assert code == 0
    assert not re.search(r"[a-z,]\.\.\.$", output, re.MULTILINE)


def test_a_worker_with_a_wrong_url_says_so_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from penstock import Penstock\n\napp = Penstock('shop')\n")
    command = [sys.executable, "-m", "penstock.cli", "worker", "shop:app", "--url", "localhost:6379"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: 'localhost:6379' is no URL: write embedded://, redis://host:6379/0")
