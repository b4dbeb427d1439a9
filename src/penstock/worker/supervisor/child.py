"""A supervisor's view of one child: its process, its messages, and its shared state."""

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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.worker import outcome
from penstock.worker.settle import FinishedRun
from penstock.worker.supervisor import ipc
from penstock.worker.supervisor.shared_state import STATE_LEFT, STATE_UP, SharedState, slots_for

log = logging.getLogger("penstock.worker")


@dataclass(frozen=True, slots=True)
class ChildSetup:
    """The settings that a child is started with."""

    app: str | None = None
    url: str | None = field(default=None, repr=False)  #: it may have a password
    namespace: str | None = None
    concurrency: int | None = None
    queues: str | None = None
    lease: float = 10.0
    grace: float = 25.0
    max_jobs: int | None = None
    level: str = "INFO"
    form: str = "table"


class Child:
    """One process that runs jobs, or waits until it may."""

    def __init__(self, setup: ChildSetup, module: str, on_message: Callable[["Child"], None]) -> None:
        self._on_message = on_message
        self.shared_file = SharedState.make_file()
        self.socket, theirs = socket.socketpair()
        with theirs:
            numbers = map(str, (os.getpid(), theirs.fileno(), self.shared_file))
            flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001  (as multiprocessing does)
            self.process = subprocess.Popen(  # noqa: S603  (this very Python)
                [sys.executable, *flags, "-m", module, *numbers],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), self.shared_file],
                process_group=0,
            )
        # Everybody on the machine can read the arguments of a process, and the URL may have a password.
        ipc.send(self.socket, "setup", asdict(setup))
        self.started_at = time.monotonic()
        self.hello: dict[str, Any] | None = None
        self.failure = ""  #: why its app could not be imported
        self.is_working = False  #: whether it runs jobs
        self.is_leaving = False  #: whether it takes no more jobs
        self.is_dismissed = False  #: whether it is not needed and has run no job
        self.killed_for: list[str] | None = None  #: the jobs that it is killed for; only these are charged
        self.registered: tuple[dict[str, Any], list[str]] | None = None  #: its info and queues
        self.is_stalled = False
        self.stuck: list[FinishedRun] = []
        self.shared_state: SharedState | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.listening = asyncio.create_task(self._listen())

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def worker(self) -> str:
        """The name under which it leases; empty before it does."""
        return self.shared_state.worker if self.shared_state is not None and self.is_working else ""

    @property
    def is_up(self) -> bool:
        return self.shared_state is not None and self.shared_state.state == STATE_UP

    @property
    def has_left(self) -> bool:
        return self.shared_state is not None and self.shared_state.state == STATE_LEFT

    def renewed(self, worker: str, valid_until: float) -> None:
        """The lease of this name lasts at least until then."""
        if self.shared_state is not None and self.worker == worker:
            self.shared_state.valid_until = valid_until

    def start_work(self) -> None:
        self.is_working, self.started_at = True, time.monotonic()
        self.send("go")

    def send(self, word: str, *values: Any) -> None:
        if self._writer is None:
            ipc.send(self.socket, word, *values)
        else:
            self._writer.write(ipc.encode(word, *values))

    def kill(self) -> None:
        """End it and everything that it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def dismiss(self) -> None:
        """End a child that has not begun to run jobs."""
        self.is_dismissed = True
        self.kill()

    def close(self) -> None:
        self.listening.cancel()
        if self._writer is not None:
            self._writer.transport.abort()
        self.socket.close()
        if self.shared_state is not None:
            self.shared_state.close()
            self.shared_state = None
        os.close(self.shared_file)

    async def _listen(self) -> None:
        reader, self._writer = await asyncio.open_connection(sock=self.socket, limit=2**24)
        try:
            while line := await reader.readline():
                self._receive(json.loads(line))
                self._on_message(self)
        except OSError:
            pass  # it died while it wrote

    def _receive(self, message: list[Any]) -> None:
        match message:
            case ["hello", hello]:
                self.hello = hello
                self.shared_state = SharedState(self.shared_file, slots_for(hello["concurrency"]))
            case ["failed", text]:
                self.failure = text
            case ["named", _, info, queues]:
                self.registered = (info, queues)
            case ["leaving", why]:
                self.is_leaving = True
                log.info("child %d takes no more jobs: %s", self.pid, why)
            case ["settle", worker, number, job_id, [kind, *values]]:
                self.stuck.append(FinishedRun(worker, number, job_id, getattr(outcome, kind)(*values)))


def memory_of(pid: int) -> int:
    """Resident memory of a process in bytes; 0 if that is not known."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        output = subprocess.run(  # noqa: S603
            ["/bin/ps", "-o", "rss=", "-p", str(pid)], capture_output=True, check=True, timeout=1
        )
        return int(output.stdout) * 1024
    return 0
