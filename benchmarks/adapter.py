"""The harness's side of the line protocol, and the workers beside it."""

import itertools
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import processes
from benchmarks.environments import ROOT, compiled
from benchmarks.marks import Marks
from benchmarks.systems import System

LIMIT = 30.0  #: seconds for any answer of an adapter

_unique = itertools.count(1)


class Failed(Exception):
    """A system did not do what it was asked to, in time."""


class Place:
    """Where one system is measured: its programs, a server, a folder, and the marks of its jobs."""

    def __init__(self, system: System, programs: Path, url: str, folder: Path) -> None:
        self.system, self._programs, self._url, self._folder = system, programs, url, folder
        self.marks = Marks.create(folder / "marks")
        self._next = 0

    def numbers(self, count: int) -> int:
        """Reserve so many job numbers; the first of them."""
        first, self._next = self._next, self._next + count
        return first

    def start(self, *command: str, pipes: int | None = None) -> "subprocess.Popen[str]":
        environment = {
            **compiled(os.environ),
            "PATH": f"{self._programs}:{os.environ.get('PATH', '')}",
            "PYTHONPATH": str(ROOT),
            "BENCH_URL": self._url,
            "BENCH_MARKS": str(self._folder / "marks"),
        }
        filled = [word.format(url=self._url, unique=f"bench{next(_unique)}") for word in command]
        program = str(self._programs / filled[0])
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                [program, *filled[1:]],
                cwd=ROOT,
                env=environment,
                stdin=pipes or subprocess.DEVNULL,
                stdout=pipes or log,
                stderr=log,
                start_new_session=True,
                text=True,
            )

    def last_words(self) -> str:
        """The end of what the system wrote, to explain a failure."""
        lines = [line for line in (self._folder / "log").read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1][:200] if lines else ""

    def started(self, first: int, count: int, limit: float) -> float:
        """Wait until all these jobs have started; when the last one did."""
        until = time.monotonic() + limit
        unseen = first
        while unseen < first + count:
            if self.marks.started(unseen):
                unseen += 1
            elif time.monotonic() > until:
                raise Failed(f"only {unseen - first:,} of {count:,} jobs within {limit:g} s; {self.last_words()}")
            else:
                time.sleep(0.01)
        return max(map(self.marks.started, range(first, first + count)))


class Adapter:
    """A process in the environment of the system that sends jobs on request."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._process = place.start("python", "-m", "benchmarks.adapters", place.system.name, pipes=subprocess.PIPE)
        try:
            hello = self.ask("hello")
        except BaseException:
            self.end()
            raise
        self.kinds: frozenset[str] = frozenset(hello["kinds"])
        self.ways: frozenset[str] = frozenset(hello["ways"])

    @property
    def kind(self) -> str:
        """The plainest kind of job that the system runs."""
        return "async" if "async" in self.kinds else "thread"

    def ask(self, verb: str, *, limit: float = LIMIT, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": verb, **arguments}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise Failed(f"its adapter ended: {self._place.last_words()}") from error
        answer: dict[str, Any] = json.loads(self._line(verb, limit))
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def _line(self, verb: str, limit: float) -> str:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(limit):
                raise Failed(f"no answer to {verb} within {limit:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise Failed(f"its adapter ended: {self._place.last_words()}")
        return line

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        processes.end(self._process.pid)
        self._process.wait()
        self._process.stdout.close()


class Workers:
    """Worker processes of the system, which can be held still while their queue is filled."""

    def __init__(self, place: Place, number: int) -> None:
        self._processes = [place.start(*place.system.worker) for _ in range(number)]

    def pids(self) -> list[int]:
        return [pid for process in self._processes for pid in processes.tree(process.pid)]

    def hold(self) -> None:
        processes.send(self.pids(), signal.SIGSTOP)

    def go(self) -> None:
        processes.send(self.pids(), signal.SIGCONT)

    def kill(self) -> None:
        processes.send(self.pids(), signal.SIGKILL)

    def end(self) -> None:
        self.go()
        for process in self._processes:
            processes.end(process.pid)
            process.wait()


@contextmanager
def sending(place: Place) -> Iterator[Adapter]:
    adapter = Adapter(place)
    try:
        yield adapter
    finally:
        adapter.end()


@contextmanager
def working(place: Place, number: int = 1) -> Iterator[Workers]:
    workers = Workers(place, number)
    try:
        yield workers
    finally:
        workers.end()
