"""Two builds of Penstock: that of this repository, and a copy of it in which the header of a job has one field more."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import penstock
from tests.conftest import namespace
from tests.worker.harness import tree

PACKAGE = Path(penstock.__file__).parent
PROGRAM = Path(__file__).with_name("build_program.py")
_LAST_FIELD_ENDS = "\n    @property\n    def attempt"
_NEW_FIELD = '    shade: str = ""\n'


class Build:
    """A build with a program that runs under it, and workers."""

    def __init__(self, name: str, source: Path, folder: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.namespace = environment["NAMESPACE"]
        self._folder = folder
        self._environment = os.environ | environment | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
        self._processes: list[subprocess.Popen[Any]] = []
        self._log = folder / f"{name}.log"
        self._program = self._start("program.py", stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def _start(self, *command: str, **pipes: int) -> "subprocess.Popen[str]":
        with self._log.open("a") as log:
            options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log} | pipes
            options |= {"cwd": self._folder, "env": self._environment, "text": True}
            process: subprocess.Popen[str] = subprocess.Popen([sys.executable, *command], **options)
        self._processes.append(process)
        return process

    def ask(self, command: str, *arguments: Any) -> Any:
        """What a function of `build_program.py` answers in this build."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(json.dumps([command, *arguments]) + "\n")
        self._program.stdin.flush()
        line = self._program.stdout.readline()
        assert line, f"{self.name}: {command}{arguments}\n{self._log.read_text()[-5000:]}"
        return json.loads(line)

    def call(self, verb: str, *arguments: Any, **options: Any) -> Any:
        """What a verb of the engine answers in this build."""
        return self.ask("call", verb, arguments, options)

    def start_worker(self, *options: str) -> "subprocess.Popen[str]":
        return self._start("-m", "penstock.cli", "worker", "program:app", "--lease", "2s", *options)

    def close(self) -> None:
        for process in self._processes:
            for pid in (process.pid, *tree(process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.communicate()


@contextlib.contextmanager
def two_builds(folder: Path, url: str) -> Iterator[tuple[Build, Build]]:
    """Today's build and the next one, on one namespace of this server."""
    copy = folder / "next" / "penstock"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    header = copy / "model" / "header.py"
    text = header.read_text("utf-8")
    assert text.count(_LAST_FIELD_ENDS) == 1
    header.write_text(text.replace(_LAST_FIELD_ENDS, f"{_NEW_FIELD}{_LAST_FIELD_ENDS}"), "utf-8")
    shutil.copy(PROGRAM, folder / "program.py")
    environment = {"NAMESPACE": namespace(), "SERVER": url}
    builds: list[Build] = []
    try:
        builds.append(Build("today", PACKAGE.parent, folder, environment))
        builds.append(Build("next", copy.parent, folder, environment))
        yield builds[0], builds[1]
    finally:
        for build in builds:
            build.close()
