"""A supervisor's view of one child: its process, what it said, and what it noted."""

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from penstock.worker import outcome
from penstock.worker.settle import SettledRun
from penstock.worker.supervisor import ipc
from penstock.worker.supervisor.shared_state import LEFT, UP, SharedState, slots_for

log = logging.getLogger("penstock.worker")


@dataclass(frozen=True, slots=True)
class ChildSetup:
    """What a child is told when it is started."""

    app: str | None = None
    url: str | None = None
    namespace: str | None = None
    concurrency: int | None = None
    queues: str | None = None
    lease: float = 10.0
    grace: float = 25.0
    max_jobs: int | None = None
    level: str = "INFO"
    form: str = "table"
    parent: int = 0
    socket: int = 0
    notes: int = 0


class Child:
    """One process that runs jobs, or waits until it may."""

    def __init__(self, setup: ChildSetup, program: str, changed: Callable[["Child"], None]) -> None:
        self._changed = changed
        self.notes_file = SharedState.make_file()
        self.socket, theirs = socket.socketpair()
        with theirs:
            told = replace(setup, parent=os.getpid(), socket=theirs.fileno(), notes=self.notes_file)
            flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001  (as multiprocessing does)
            self.process = subprocess.Popen(  # noqa: S603  (this very Python)
                [sys.executable, *flags, "-m", program, json.dumps(asdict(told))],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), self.notes_file],
                process_group=0,
            )
        self.born = time.monotonic()
        self.hello: dict[str, Any] | None = None
        self.failure = ""  #: why its app could not be imported
        self.going = False  #: it was told to run jobs
        self.leaving = False  #: it takes no more
        self.dismissed = False  #: it has run nothing and is not needed any more
        self.condemned: list[str] | None = None  #: we kill it because of these jobs; nobody else is to blame
        self.node: tuple[dict[str, Any], list[str]] | None = None  #: what it registered
        self.stalled = False
        self.stuck: list[SettledRun] = []
        self.notes: SharedState | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.listening = asyncio.create_task(self._listen())

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def worker(self) -> str:
        """The name under which it leases; empty before it does."""
        return self.notes.worker if self.notes is not None and self.going else ""

    @property
    def up(self) -> bool:
        return self.notes is not None and self.notes.state == UP

    @property
    def left(self) -> bool:
        return self.notes is not None and self.notes.state == LEFT

    def renewed(self, worker: str, valid_until: float) -> None:
        """The lease of this name lasts until then at least."""
        if self.notes is not None and self.worker == worker:
            self.notes.valid_until = valid_until

    def go(self) -> None:
        self.going, self.born = True, time.monotonic()
        self.say("go")

    def say(self, word: str, *values: Any) -> None:
        if self._writer is None:
            ipc.send(self.socket, word, *values)
        else:
            self._writer.write(ipc.packed(word, *values))

    def kill(self) -> None:
        """End it and everything that it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def dismiss(self) -> None:
        """End one that was not told to run jobs."""
        self.dismissed = True
        self.kill()

    def close(self) -> None:
        self.listening.cancel()
        if self._writer is not None:
            self._writer.transport.abort()
        self.socket.close()
        if self.notes is not None:
            self.notes.close()
            self.notes = None
        os.close(self.notes_file)

    async def _listen(self) -> None:
        reader, self._writer = await asyncio.open_connection(sock=self.socket, limit=2**24)
        try:
            while line := await reader.readline():
                self._heard(json.loads(line))
                self._changed(self)
        except OSError:
            pass  # it died while it spoke

    def _heard(self, message: list[Any]) -> None:
        match message:
            case ["hello", hello]:
                self.hello = hello
                self.notes = SharedState(self.notes_file, slots_for(hello["concurrency"]))
            case ["failed", text]:
                self.failure = text
            case ["named", _, info, queues]:
                self.node = (info, queues)
            case ["leaving", why]:
                self.leaving = True
                log.info("child %d takes no more jobs: %s", self.pid, why)
            case ["settle", worker, number, job_id, [kind, *values]]:
                self.stuck.append(SettledRun(worker, number, job_id, getattr(outcome, kind)(*values)))


def memory_of(pid: int) -> int:
    """Bytes of memory that a process has; 0 if that cannot be told."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        said = subprocess.run(  # noqa: S603
            ["/bin/ps", "-o", "rss=", "-p", str(pid)], capture_output=True, check=True, timeout=1
        )
        return int(said.stdout) * 1024
    return 0
