"""What only a terminal gets: a screen that changes, a bar, and a question before something is destroyed."""

import json
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


HOSTILE = "\x1b[2J\x9b31m\u202ecod\u200b"
ODD_JOBS = """
import asyncio, json, os, sys
import msgspec
from penstock import Bury, current_job
from penstock.engine.engine import NewBatch, NewJob
from penstock.model.codec import Envelope, encode
from penstock.model.header import Header
from tasks import app

HOSTILE = os.environ["HOSTILE"]

@app.task(retries=0)
async def shout(text: str) -> str:
    job = current_job()
    job.log(text)
    await job.progress(1, 2, text)
    raise ValueError(text)

@app.task
async def whisper(text: str) -> str:
    return text

async def main():
    async with app:
        engine = app.client.engine
        # As another writer could store them: here such names are refused.
        packed = encode(Envelope(msgspec.Raw(encode({"text": HOSTILE})), tags=[HOSTILE]))
        header = Header(state="", task=shout.name, queue="odd" + HOSTILE, retries=0)
        await engine.enqueue([NewJob("odd" + HOSTILE, header, packed)])
        await engine.enqueue([NewJob("said", Header(state="", task=whisper.name, queue="mail"), packed)])
        await engine.open_batch(NewBatch("batch" + HOSTILE, "name" + HOSTILE))
        await app.run_until_idle()
        await engine.register("worker" + HOSTILE, 60_000, json.dumps({"slots": 1, "host": HOSTILE}))

asyncio.run(main())
print("null")
"""


def test_nothing_that_a_job_or_another_writer_says_reaches_the_terminal_unescaped(shell: Shell) -> None:
    shell.environment["HOSTILE"] = HOSTILE
    shell.script(ODD_JOBS)
    odd = f"odd{HOSTILE}"
    commands = [
        ["job", "ls"],
        ["job", "show", odd],
        ["job", "show", odd, "-t"],
        ["job", "show", "said"],
        ["job", "log", odd],
        ["job", "cancel", odd],
        ["dead", "ls"],
        ["dead", "ls", "--jobs"],
        ["dead", "show", odd],
        ["batch", "ls"],
        ["batch", "show", f"batch{HOSTILE}"],
        ["workers"],
        ["queue", "ls"],
        ["events", "--since", "0", "--no-follow"],
        ["doctor"],
    ]
    for command in commands:
        for form in ("table", "json"):
            _, shown = on_terminal(shell, *command, "-o", form)
            plain = shown.replace("\r\n", "\n").replace("\x1b[1m", "").replace("\x1b[0m", "")
            hidden = {char for char in plain if char != "\n" and not char.isprintable()}
            assert not hidden, f"{command} -o {form}: {hidden}"
            if "cancel" not in command and "doctor" not in command:
                assert "cod" in plain, f"{command} -o {form} does not show it at all: {plain}"


def test_the_log_of_a_worker_shows_what_its_jobs_say_with_codes(shell: Shell) -> None:
    text = HOSTILE + "\ntwo lines"
    (shell.folder / "tasks.py").write_text((shell.folder / "tasks.py").read_text() + SHOUTS)
    for form in ("table", "json"):
        shell.run("enqueue", "shout", json.dumps([text]))
        _, log = shell.run("worker", "--burst", "-o", form)
        assert {char for char in log if char != "\n" and not char.isprintable()} == set()
        assert log.count("two lines") >= 2  # what it logs, and what it raises


SHOUTS = """

@app.task(retries=0)
async def shout(text: str) -> None:
    current_job().log(text)
    raise ValueError(text)
"""
