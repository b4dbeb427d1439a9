"""What people are told when they mistype: what is wrong, and what to do."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.root import COMMANDS
from tests.cli.test_cli import Shell, shell, zygote

__all__ = ["shell", "zygote"]


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
def test_a_mistake_on_the_command_line_is_told_with_what_is_valid(shell: Shell, words: list[str], text: str) -> None:
    assert text in shell.run(*words, code=2)[1]


def test_the_file_of_an_app_is_told_to_be_named_as_a_module(shell: Shell) -> None:
    for given, module in (("shop/tasks.py", "shop.tasks"), ("./shop.py:app", "shop")):
        assert f"name it as a module, such as {module}:app" in shell.run("queue", "ls", "--app", given, code=4)[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_whose_lines_are_not_cut_off(shell: Shell, name: str) -> None:
    assert not re.search(r"[a-z,]\.\.\.$", shell.run(name, "--help")[0], re.MULTILINE)


def test_a_worker_with_a_wrong_url_says_so_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from penstock import Penstock\n\napp = Penstock('shop')\n")
    command = [sys.executable, "-m", "penstock.cli", "worker", "shop:app", "--url", "localhost:6379"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: 'localhost:6379' is no URL: write embedded://, redis://host:6379/0")
