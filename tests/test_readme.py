"""The programs of the README and the quickstart run as they stand, in an empty directory, with only Penstock there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_the_program_of_a_page_runs_as_it_stands(page: str, tmp_path: Path) -> None:
    (program,) = re.findall(r"```python[^\n]*\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    (tmp_path / "app.py").write_text(program, "utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    environment["PENSTOCK_EMBEDDED_LINGER"] = "0.2"
    done = subprocess.run(
        [sys.executable, "app.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == "hello world\n", done.stderr
    assert done.returncode == 0
