"""`executor="process"`: each job in a process of its own, which ends with it and can be killed."""

import asyncio
import itertools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from penstock.api.context import JobContext
from penstock.api.task import Task
from penstock.model.options import module_name
from penstock.worker.executors.fork_server import ENDED, KILL, MESSAGE, START
from penstock.worker.executors.process_main import Frames, JobOrder, TaskLocation, rebuild
from penstock.worker.outcome import NoProcess, NotFound, NotStarted, ProcessDied

log = logging.getLogger("penstock.worker")

MIN_PROCESSES: Final = 4  #: at once, however few cores there are, because some jobs wait for others
EXIT_TIMEOUT: Final = 5.0  #: seconds that a process and the app's lifespan in it get to end after the job
READ_TIMEOUT: Final = 1.0  #: seconds to read what a process had sent before its end


class Processes:
    """Gives each job a fresh process; only so many run at once."""

    def __init__(self, max_processes: int, tasks: Mapping[str, Task[..., Any, Any]]) -> None:
        self._tasks = tasks
        self._room = asyncio.Semaphore(min(max_processes, max(MIN_PROCESSES, os.cpu_count() or 1)))
        self._closing = asyncio.Event()
        self._starting: asyncio.Task[_ForkServerClient] | None = None

    def refuse_waiting(self) -> None:
        """Refuse a process to all jobs that wait for one."""
        self._closing.set()

    async def take(self, *, waits: bool = True) -> "_Process":
        """A process that is ready to run a job; neither the wait nor its start counts as the job's time.

        `waits`: wait while too many run.
        """
        if not waits:
            return await self._new_process()
        await self._wait_for_room()
        try:
            process = await self._new_process()
        except BaseException:
            self._room.release()
            raise
        process.takes_room = True
        return process

    async def give_back(self, process: "_Process") -> None:
        """Wait until the process has ended, with all processes that its job started."""
        try:
            await _end(process)
        finally:
            if process.takes_room:
                self._room.release()

    async def close(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            with suppress(BaseException):
                await (await self._starting).close()

    async def _wait_for_room(self) -> None:
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

    async def _new_process(self) -> "_Process":
        try:
            process = (await self._fork_server()).start()
            try:
                await process.ready()
            except BaseException:
                await _end(process)
                raise
        except (OSError, NoProcess) as error:
            log.error("no process for a job could be started: %s", error)  # noqa: TRY400  (the text says it all)
            raise NoProcess(str(error)) from None
        return process

    async def _fork_server(self) -> "_ForkServerClient":
        """The fork server that is there, or a new one; concurrent callers wait for the same one."""
        starting = self._starting
        if starting is None or (starting.done() and (starting.exception() or not starting.result().is_alive)):
            locations = {(place.module, place.file): place for place in map(location_of, self._tasks.values())}
            starting = self._starting = asyncio.create_task(_start_fork_server(list(locations.values())))
        return await asyncio.shield(starting)


async def _end(process: "_Process") -> None:
    """Wait for its end; a cancel only kills it: no process outlives its job, and no result is lost."""
    ending = asyncio.ensure_future(process.end())
    while not ending.done():
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            process.kill()


class _Process:
    """The process of one job and the socket to it."""

    def __init__(self, server: "_ForkServerClient", number: int, sock: socket.socket) -> None:
        self._server = server
        self._number = number
        self._socket = sock
        self._frames: Frames | None = None
        self._has_outcome = False  #: it has sent how its job ended
        self.takes_room = False
        self.pid = 0
        self.ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    async def ready(self) -> None:
        """Wait until it has started; it sends its process id then."""
        reader, writer = await asyncio.open_connection(sock=self._socket)
        self._frames = Frames(reader, writer)
        self.ended.add_done_callback(self._close_soon)
        try:
            _, self.pid = await self._frames.read()
        except (OSError, EOFError):
            raise NoProcess(f"it {died(await self._exit_code())} before it could run the job") from None

    async def run(self, task: Task[..., Any, Any], context: JobContext) -> bytes:
        """The packed result. It raises what the job raised, ProcessDied, or NotFound if the task is not found there."""
        assert self._frames is not None
        lease = context.lease
        self._frames.write(JobOrder(location_of(task), lease.id, lease.running.record, context.payload))
        while True:
            word, *values = await self._next(context)
            self._has_outcome = True
            match word:
                case "done":
                    return bytes(values[0])
                case "raised":
                    raise rebuild(values)
                case "missing":
                    raise NotFound from rebuild(values)
            self._has_outcome = False

    async def _next(self, context: JobContext | None) -> list[Any]:
        """The next message about its job's end; those before it, as log records, are handled here."""
        assert self._frames is not None
        while True:
            try:
                word, *values = await self._frames.read()
            except (OSError, EOFError):
                raise ProcessDied(f"the process of the job {died(await self._exit_code())}") from None
            match word:
                case "progress" if context is not None:
                    await self._progress(context, values[0])
                case "log":
                    record = logging.makeLogRecord(values[0])
                    logging.getLogger(record.name).handle(record)
                case _:
                    return [word, *values]

    async def _progress(self, context: JobContext, text: str) -> None:
        assert self._frames is not None
        try:
            self._frames.write(["word", await context.report(text)])
        except Exception as error:  # noqa: BLE001  (the job gets the error)
            self._frames.write(["word", f"failed {error}"])

    async def _exit_code(self) -> int | None:
        """Its exit code; if it only closed its socket, it is killed."""
        await asyncio.wait((self.ended,), timeout=READ_TIMEOUT)
        self.kill()
        return await self.ended

    def _close_soon(self, _ended: Any) -> None:
        """A process that left its group may keep the other end of the socket open."""
        assert self._frames is not None
        asyncio.get_running_loop().call_later(READ_TIMEOUT, self._frames.close)

    def kill(self) -> None:
        if not self.ended.done():
            self._server.kill(self._number)

    async def end(self) -> None:
        """It ends by itself if it has sent how its job ended; else it is killed."""
        if self._has_outcome:
            with suppress(TimeoutError, ProcessDied):
                async with asyncio.timeout(EXIT_TIMEOUT):
                    await self._next(None)
        self.kill()
        await self.ended
        if self._frames is not None:
            self._frames.close()
        self._socket.close()


async def _start_fork_server(locations: list[TaskLocation]) -> "_ForkServerClient":
    server = _ForkServerClient(locations)
    try:
        await server.ready()
    except BaseException:
        await server.close()
        raise
    return server


class _ForkServerClient:
    """The worker's side of the fork server."""

    def __init__(self, locations: list[TaskLocation]) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001  (as multiprocessing does)
            setup = {"path": sys.path, "flags": flags, "parent": os.getpid(), "socket": theirs.fileno()}
            setup["locations"] = [[place.module, place.file, place.qualname, place.task] for place in locations]
            # It leads a session: if the worker's whole group is killed, it still kills the processes of jobs.
            self._popen = subprocess.Popen(  # noqa: S603  (this very Python)
                [sys.executable, *flags, "-m", "penstock.worker.executors.fork_server", json.dumps(setup)],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._processes: dict[int, _Process] = {}
        self._numbers = itertools.count(1)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None

    @property
    def is_alive(self) -> bool:
        return self._listening is not None and not self._listening.done()

    async def ready(self) -> None:
        """Wait until it has imported the modules of the tasks."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._socket.dup())
        try:
            await self._reader.readexactly(MESSAGE.size)
        except (OSError, EOFError):
            raise NoProcess("the process that starts others ended while it imported the modules of the tasks") from None
        self._listening = asyncio.create_task(self._listen(self._reader))

    def start(self) -> _Process:
        ours, theirs = socket.socketpair()
        with theirs:
            number = next(self._numbers)
            process = self._processes[number] = _Process(self, number, ours)
            try:
                socket.send_fds(self._socket, [MESSAGE.pack(START, number, 0)], [theirs.fileno()])
            except OSError:
                self._process_ended(number, None)
                raise
        return process

    def kill(self, number: int) -> None:
        with suppress(OSError):  # the fork server is gone, and all processes with it
            self._socket.send(MESSAGE.pack(KILL, number, 0))

    async def close(self) -> None:
        """End it, and with it all processes that it has started."""
        self._socket.close()
        if self._writer is not None:
            self._writer.transport.abort()
        try:
            async with asyncio.timeout(READ_TIMEOUT):
                while self._popen.poll() is None:  # noqa: ASYNC110  (the end of a process sets no event)
                    await asyncio.sleep(0.005)
        except TimeoutError:
            self._popen.kill()
            self._popen.wait()
        if self._listening is not None:
            await asyncio.wait((self._listening,))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                word, number, code = MESSAGE.unpack(await reader.readexactly(MESSAGE.size))
                if word == ENDED:
                    self._process_ended(number, code)
        except (OSError, EOFError):
            pass
        finally:
            for number, process in list(self._processes.items()):
                with suppress(ProcessLookupError, PermissionError):
                    if process.pid:
                        os.killpg(process.pid, signal.SIGKILL)
                self._process_ended(number, None)

    def _process_ended(self, number: int, code: int | None) -> None:
        process = self._processes.pop(number, None)
        if process is not None and not process.ended.done():
            process.ended.set_result(code)


def died(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None:
        return "ended with the one that had started it"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def location_of(task: Task[..., Any, Any]) -> TaskLocation:
    """Where another process finds this task."""
    function = task.function
    module = function.__module__
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None) if module == "__main__" and not getattr(main, "__spec__", None) else None
    return TaskLocation(
        module_name(module), str(Path(file).resolve()) if file else "", function.__qualname__, task.name
    )
