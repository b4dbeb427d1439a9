"""What only a terminal gets: a screen that changes, a bar, and a question before something is destroyed."""

import os
import pty
import subprocess
import sys

from tests.cli.shell import TIMEOUT, Shell


def on_terminal(shell: Shell, *arguments: str, answer: str = "") -> tuple[int, str]:
    """The exit code, and all that was written to a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", *arguments],
        cwd=shell.folder,
        env=shell.environment | {"COLUMNS": "100", "LINES": "30", "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    os.write(ours, answer.encode())
    shown = b""
    try:
        while part := os.read(ours, 65_536):
            shown += part
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(ours)
    return process.wait(TIMEOUT), shown.decode()


def test_top_draws_a_screen_and_gives_the_terminal_back(shell: Shell) -> None:
    shell.run("enqueue", "send", "[7]")
    code, shown = on_terminal(shell, "top", "-n", "2", "--interval", "100ms")
    assert code == 0
    assert shown.count("penstock top") == 2
    assert "READY" in shown
    assert shown.index("\x1b[?1049h") < shown.index("penstock top") < shown.index("\x1b[?1049l")


def test_what_destroys_asks_first(shell: Shell) -> None:
    shell.run("enqueue", "send", "[7]")
    code, shown = on_terminal(shell, "queue", "purge", "mail", answer="n\n")
    assert code == 1
    assert "nothing was changed" in shown
    code, shown = on_terminal(shell, "queue", "purge", "mail", answer="y\n")
    assert code == 0
    assert "1 job waited, 1 cancelled" in shown


def test_serve_says_in_red_what_open_means(shell: Shell) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "penstock.cli", "serve", "--port", "0", "--open"]
    environment = shell.environment | {"COLUMNS": "100", "TERM": "xterm"}
    process = subprocess.Popen(command, cwd=shell.folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while b"delete everything" not in shown:
            shown += os.read(ours, 65_536)
        assert b"\x1b[31m" in shown
    finally:
        process.terminate()
        process.wait(TIMEOUT)
        os.close(ours)


OPEN = """
import json
from tasks import app, send
with app:
    batch = app.batch("nightly").open_sync()
    batch.add_many_sync(send.call(n) for n in range(4))
    batch.cancel_sync()
    print(json.dumps(batch.id))
"""


def test_a_watched_batch_has_a_bar(shell: Shell) -> None:
    code, shown = on_terminal(shell, "batch", "watch", shell.script(OPEN))
    assert code == 5
    assert "\r\x1b[2K[####" in shown
    assert "nightly: 0 of 4 done, 0 running, 0 failed, 4 cancelled, ended" in shown
