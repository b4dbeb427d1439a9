"""The demo, piped, as `make demo | cat` shows it."""

import os
import re
import subprocess
import sys
from pathlib import Path


def test_the_demo_ends_by_itself_with_a_clean_audit_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock.demo"],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    assert "\033" not in done.stdout
    assert "\r" not in done.stdout
    assert "2,000 of 2,000" in done.stdout
    closing = done.stdout[done.stdout.index("6. What was measured") :]
    for words in (
        r"enqueue 2,000 jobs +[\d,]+ a second",
        r"run 2,000 jobs.* +[\d,]+ a second",
        r"jobs that started before a more urgent one +\d+",
        r"waits before a retry \(asked for: 150, 300 ms\) +\d+, \d+ ms",
        r"dead job, cause mended, revived +done",
        r"5 delayed jobs.* +\d+ ms median, \d+ ms worst",
        r"jobs from 20 producers of one id +1, runs: 1",
        r"killed worker: its jobs back in line after +\d+\.\d+ s \(lease 1s\)",
        r"of its 8 jobs done in the end +8",
        r"the whole demo +\d+\.\d s",
        r"audit: clean \([\d,]+ jobs, every invariant\)",
    ):
        assert re.search(words, closing), f"{words}\n{closing}"
    # What stays is the directory for sockets, which all embedded servers of a user share.
    assert [path.name for path in tmp_path.iterdir() if path.name != f"penstock-{os.getuid()}"] == []
    assert [path for path in tmp_path.rglob("*.sock") if path.exists()] == []
