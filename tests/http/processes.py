"""`penstock serve` as a process of its own."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.servers import wait_for

TASKS = """
import asyncio
import os

from penstock import Penstock

app = Penstock(os.environ["NAMESPACE"])


@app.task(name="add", queue="sums")
async def add(x: int = 0, y: int = 0) -> int:
    return x + y


@app.task(name="tell")
async def tell(status: dict[str, object]) -> None: ...


@app.every("1h", id="hourly")
@app.task(name="tick")
async def tick() -> None: ...
"""


class Serve:
    """The process, and where it listens."""

    def __init__(
        self, folder: Path, url: str, name: str, *arguments: str, tasks: str = TASKS, **environment: str
    ) -> None:
        (folder / "tasks.py").write_text(tasks)
        self.log = folder / "serve.log"
        ours = {"PENSTOCK_URL": url, "NAMESPACE": name}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock.cli", "serve", "--port", "0", *arguments],
                cwd=folder,
                env=os.environ | ours | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def output(self) -> str:
        return self.log.read_text()

    @property
    def port(self) -> int:
        return int(wait_for(lambda: re.search(r"serves http://\S+?:(\d+) ", self.output), timeout=30)[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def end(self, how: int = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        return self.process.wait(timeout=30)


@contextlib.contextmanager
def serve(
    folder: Path, url: str, name: str, *arguments: str, tasks: str = TASKS, **environment: str
) -> Iterator[Serve]:
    started = Serve(folder, url, name, *arguments, tasks=tasks, **environment)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()
