"""`executor="process"`: jobs in processes of their own, which can be killed and die with this one."""

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.context import JobContext
from penstock.options import module_name
from penstock.task import Task
from penstock.worker.outcome import NotStarted, ProcessDied
from penstock.worker.process import Frames, Home, Order, rebuild

log = logging.getLogger("penstock.worker")

FEWEST: Final = 4  #: processes at once, however few cores there are: some jobs wait for others


class Processes:
    """Starts processes when jobs need them, keeps them for the next, and kills those whose job must end."""

    def __init__(self, most: int) -> None:
        self._most = min(most, max(FEWEST, os.cpu_count() or 1))
        self._idle: deque[_Process] = deque()
        self._all: set[_Process] = set()
        self._room = asyncio.Semaphore(self._most)
        self._closing = asyncio.Event()

    def close_doors(self) -> None:
        """Whoever still waits for a process gets none."""
        self._closing.set()

    async def take(self) -> "_Process":
        """One that is ready to run a job; neither the wait for it nor its start is part of the job's time."""
        await self._enter()
        try:
            while self._idle:
                process = self._idle.pop()
                if process.alive:
                    return process
                self._all.discard(process)
            process = _Process()
            self._all.add(process)
            await process.ready()
        except BaseException:
            self._room.release()
            raise
        return process

    async def _enter(self) -> None:
        entering = asyncio.ensure_future(self._room.acquire())
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait((entering, closing), return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            if entering.done():
                self._room.release()
            raise
        finally:
            entered = entering.done()
            entering.cancel()
            closing.cancel()
        if not entered:
            raise NotStarted("the worker stops")

    async def give_back(self, process: "_Process") -> None:
        """For the next job, or killed if it is not done with this one."""
        try:
            if process.alive and not process.busy:
                self._idle.append(process)
            else:
                await process.end()
                self._all.discard(process)
        finally:
            self._room.release()

    async def close(self) -> None:
        await asyncio.gather(*(process.end() for process in self._all), return_exceptions=True)
        self._all.clear()
        self._idle.clear()


class _Process:
    """One process and the socket to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001  (as multiprocessing does)
            setup = json.dumps({"path": sys.path, "parent": os.getpid(), "socket": theirs.fileno()})
            self._process = subprocess.Popen(  # noqa: S603  (this very Python)
                [sys.executable, *flags, "-m", "penstock.worker.process", setup],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._socket = ours
        self._frames: Frames | None = None
        self.busy = False

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    async def ready(self) -> None:
        """Until it has been started; it says so by itself."""
        reader, writer = await asyncio.open_connection(sock=self._socket)
        self._frames = Frames(reader, writer)
        await self._next()

    async def run(self, task: Task[..., Any, Any], context: JobContext) -> bytes:
        """The result, packed; or what was raised there, or ProcessDied."""
        assert self._frames is not None
        lease = context.lease
        self.busy = True
        self._frames.write(Order(_home(task), lease.id, msgspec.msgpack.encode(lease.found), lease.payload))
        while True:
            word, *values = await self._next()
            match word:
                case "done":
                    self.busy = False
                    return bytes(values[0])
                case "raised":
                    self.busy = False
                    raise rebuild(values)
                case "progress":
                    await self._progress(context, values[0])
                case "log":
                    record = logging.makeLogRecord(values[0])
                    logging.getLogger(record.name).handle(record)

    async def _progress(self, context: JobContext, text: str) -> None:
        assert self._frames is not None
        try:
            self._frames.write(["word", await context.report(text)])
        except Exception as error:  # noqa: BLE001  (it is the job's to hear of)
            self._frames.write(["word", f"failed {error}"])

    async def _next(self) -> list[Any]:
        assert self._frames is not None
        try:
            return await self._frames.read()
        except (OSError, EOFError):
            raise ProcessDied(_cause(await self._end())) from None

    async def end(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._end()

    async def _end(self) -> int:
        if self._frames is not None:
            self._frames.close()
        self._socket.close()
        while (code := self._process.poll()) is None:  # noqa: ASYNC110  (a process is no event)
            await asyncio.sleep(0.005)
        return code


def _cause(code: int) -> str:
    return f"the process of the job {died(code)}"


def died(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _home(task: Task[..., Any, Any]) -> Home:
    """Where another process finds this task."""
    function = task.function
    module = function.__module__
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None) if module == "__main__" and not getattr(main, "__spec__", None) else None
    return Home(module_name(module), str(Path(file).resolve()) if file else "", function.__qualname__, task.name)
