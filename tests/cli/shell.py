"""Where the tests of the command line run it: a directory with an application in it, and an environment that names it.

Most commands run in this process, which has imported everything: starting Python takes a hundred times as long as they
do. What runs jobs or serves is a process of its own, as are those that signals are sent to.
"""

import asyncio
import contextlib
import importlib
import io
import json
import logging
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from penstock.cli.root import main

TASKS = """
import asyncio
import os
import time
from pathlib import Path

from penstock import BatchStatus, Penstock, current_job

app = Penstock(os.environ["NAMESPACE"])


@app.task(queue="mail", retries=0, redact=["subject"])
async def send(user: int, subject: str = "hi") -> str:
    if user == 13:
        raise ValueError("unlucky")
    return f"{user}:{subject}"


@app.task(queue="mail")
async def add_up(status: BatchStatus) -> int:
    return status.total


@app.task
async def sleep(seconds: float, mark: str) -> str:
    await current_job().progress(1, 4, "asleep")
    Path(mark).touch()
    await asyncio.sleep(seconds)
    return "rested"


@app.every("1h", id="hourly", args=[7, "tick"])
@app.task(name="ticked")
async def ticked(user: int, subject: str) -> str:
    return f"{user}:{subject}"


@app.task
async def chat(lines: int = 5, pause: float = 0.0) -> None:
    for n in range(lines):
        current_job().log(f"line {n}")
        await asyncio.sleep(pause)


@app.task
def block(seconds: float, mark: str) -> None:
    Path(mark).touch()
    time.sleep(seconds)
"""

IDLE = """
import asyncio
from tasks import app

async def main():
    async with app:
        await app.run_until_idle()

asyncio.run(main())
print("null")
"""
PROCESSES = {"worker", "serve", "dev", "engine"}  #: commands that are processes, with children or until a signal comes
TIMEOUT = 60  #: seconds


class Shell:
    """A directory with an application in it, and an environment that names both server and namespace."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.namespace = "cli-" + secrets.token_hex(6)
        (folder / "tasks.py").write_text(TASKS)
        ours = {"PENSTOCK_URL": url, "PENSTOCK_APP": "tasks:app", "NAMESPACE": self.namespace}
        self.environment = os.environ | ours

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        """A process from its very beginning."""
        return subprocess.Popen(
            [sys.executable, "-m", "penstock.cli", *arguments],
            cwd=self.folder,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, code: int = 0, **environment: str) -> tuple[str, str]:
        """Run a command that ends with this exit code; its stdout and stderr."""
        if arguments[0] in PROCESSES and "--help" not in arguments:
            process = self.start(*arguments, **environment)
            out, err = process.communicate(timeout=TIMEOUT)
            actual = process.returncode
        else:
            with self.inside(**environment):
                result = CliRunner(catch_exceptions=False).invoke(main, list(arguments), prog_name="penstock")
            actual, out, err = result.exit_code, result.stdout, result.stderr
        assert actual == code, f"{arguments}: {actual}\n{out}\n{err}"
        return out, err

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "-o", "json", code=code)[0])

    def script(self, text: str) -> Any:
        """What a program beside the application prints, as JSON."""
        out = io.StringIO()
        with self.inside(), contextlib.redirect_stdout(out):
            exec(compile(text, "script", "exec"), {"__name__": "script"})
        return json.loads(out.getvalue())

    @contextmanager
    def inside(self, **environment: str) -> Iterator[None]:
        """Here and now as in a process that was started there; afterwards nothing of it is left."""
        before = dict(os.environ), Path.cwd(), sys.path[:], set(sys.modules), sys.dont_write_bytecode
        loggers = [logging.getLogger(name) for name in ("", "penstock", "penstock.embedded")]
        handlers, levels = loggers[0].handlers[:], [logger.level for logger in loggers]
        os.environ.clear()
        os.environ.update(self.environment | environment)
        os.chdir(self.folder)
        sys.path.insert(0, str(self.folder))
        sys.dont_write_bytecode = True
        importlib.invalidate_caches()
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before[0])
            os.chdir(before[1])
            sys.path[:], sys.dont_write_bytecode = before[2], before[4]
            for name in [name for name in sys.modules if name not in before[3] and self._is_here(name)]:
                del sys.modules[name]
            loggers[0].handlers[:] = handlers
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)

    def _is_here(self, module: str) -> bool:
        return str(getattr(sys.modules[module], "__file__", "")).startswith(str(self.folder))

    @contextmanager
    def worker(self, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
        process = self.start("worker", *arguments)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    @contextmanager
    def working(self, *queues: str) -> Iterator[None]:
        """A worker in a thread of this process, for those that only need one to be there."""
        with self.inside():
            app = importlib.import_module("tasks").app
        begun, over = threading.Event(), threading.Event()

        async def work() -> None:
            async with app, app.worker(queues=list(queues) or None):
                begun.set()
                await asyncio.to_thread(over.wait)

        thread = threading.Thread(target=lambda: asyncio.run(work()))
        thread.start()
        try:
            assert begun.wait(TIMEOUT)
            yield
        finally:
            over.set()
            thread.join(TIMEOUT)

    def work_off(self) -> None:
        """Run all that is ready."""
        self.script(IDLE)

    def mark(self) -> Path:
        return self.folder / ("mark-" + secrets.token_hex(4))
