"""Both type checkers accept the contract, and refuse what it refuses: an ignore that is not needed is an error."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("checker", ["mypy", pytest.param("pyright", marks=pytest.mark.integration)])
def test_every_line_of_the_contract_has_the_type_it_promises(checker: str) -> None:
    python = ["--pythonpath", sys.executable] if checker == "pyright" else ["--no-incremental"]
    command = [sys.executable, "-m", checker, *python, "tests/typing/api.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
