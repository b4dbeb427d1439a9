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
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    assert "\033" not in done.stdout
    assert "\r" not in done.stdout
    assert "2,000 of 2,000" in done.stdout
    assert "the report says: 200 of 200 done" in done.stdout
    closing = done.stdout[done.stdout.index("Measured in this run") :]
    for words in (
        r"debits of one account at once, at most +1$",
        r"2,000 jobs sent +[\d,]+ a second",
        r"2,000 jobs run by two processes +[\d,]+ a second",
        r"jobs that started before a more urgent one +\d+",
        r"5 delayed jobs.* +\d+ ms median, \d+ ms worst",
        r"waits before a retry, asked for 200, 400 ms +\d+, \d+ ms",
        r"dead jobs, cause mended, run again, done +5 of 5",
        r"jobs from 20 producers of one id +1, run once",
        r"batch of 200, limit 8: members at once, at most +[1-8]$",
        r"process killed: its jobs back in line after +\d+ ms",
        r"process killed: the first runs again after +\d+ ms",
        r"process killed: of 100 jobs lost +0",
        r"the whole demo +\d+\.\d s",
        r"the audit of all that is stored, [\d,]+ jobs, every invariant: clean",
    ):
        assert re.search(words, closing, re.MULTILINE), f"{words}\n{closing}"
    # What stays is the directory for sockets, which all embedded servers of a user share.
    assert [path.name for path in tmp_path.iterdir() if path.name != f"penstock-{os.getuid()}"] == []
    assert [path for path in tmp_path.rglob("*.sock") if path.exists()] == []
