"""Ctrl-C in blocking code takes effect at once."""

import subprocess
import sys
import time
from pathlib import Path
from signal import SIGINT

import pytest

from penstock import Penstock
from penstock.engine.repair.audit import audit
from tests.conftest import namespace
from tests.servers import Server

PROGRAM = """
import asyncio, sys, time
from penstock import Penstock

app = Penstock(sys.argv[1], url=sys.argv[2])

@app.task
async def sleeping() -> None:
    print("begun", flush=True)
    await asyncio.sleep(60)

@app.task
def blocking() -> None:
    print("begun", flush=True)
    time.sleep(60)

{"sleeping": sleeping, "blocking": blocking}[sys.argv[3]].using(id="x").enqueue_sync()
try:
    app.run_until_idle_sync()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("kind", ["sleeping", "blocking"])
async def test_run_until_idle_sync_leaves_at_once_and_gives_its_job_back(
    single: Server, tmp_path: Path, kind: str
) -> None:
    name, file = namespace(), tmp_path / "program.py"
    file.write_text(PROGRAM)
    command = [sys.executable, str(file), name, single.url, kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:  # noqa: ASYNC220
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "begun\n"
            program.send_signal(SIGINT)
            began = time.monotonic()
            assert program.stdout.readline() == "interrupted\n"
            assert time.monotonic() - began < 3  # mostly a third of a second, but the machine may be busy
            program.wait(10)
            assert program.stderr is not None
            assert "Traceback" not in program.stderr.read()
        finally:
            program.kill()
    async with Penstock(name, url=single.url) as app:
        assert (await (await app.get_job("x")).status()).state in {"ready", "scheduled"}
        assert await app.client.views.workers() == []
        assert await audit(app.client.engine) == []
