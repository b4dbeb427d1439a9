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

import msgspec

from penstock.api.context import JobContext
from penstock.api.task import Task
from penstock.model.options import module_name
from penstock.worker.executors.fork_server import ENDED, KILL, MESSAGE, START
from penstock.worker.executors.process_main import Frames, Home, JobOrder, rebuild
from penstock.worker.outcome import NoProcess, NotFound, NotStarted, ProcessDied

log = logging.getLogger("penstock.worker")

FEWEST: Final = 4  #: processes at once, however few cores there are: some jobs wait for others
ENDING: Final = 5.0  #: seconds that a process gets to end by itself, with the app's lifespan, once its job has
SPEAKING: Final = 1.0  #: seconds until all that a process had said has been read after its end


class Processes:
    """Has a fresh process started for each job, at most so many at once."""

    def __init__(self, most: int, tasks: Mapping[str, Task[..., Any, Any]]) -> None:
        self._tasks = tasks
        self._room = asyncio.Semaphore(min(most, max(FEWEST, os.cpu_count() or 1)))
        self._closing = asyncio.Event()
        self._starting: asyncio.Task[_Starter] | None = None

    def close_doors(self) -> None:
        """Whoever still waits for a process gets none."""
        self._closing.set()

    async def take(self, *, waits: bool = True) -> "_Process":
        """One that is ready to run a job; neither the wait for it nor its start is part of the job's time.

        `waits`: until there are not too many.
        """
        if not waits:
            return await self._fresh()
        await self._enter()
        try:
            process = await self._fresh()
        except BaseException:
            self._room.release()
            raise
        process.takes_room = True
        return process

    async def give_back(self, process: "_Process") -> None:
        """Returns when it has ended, and whatever its job had started and left behind."""
        try:
            await _to_the_end(process)
        finally:
            if process.takes_room:
                self._room.release()

    async def close(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            with suppress(BaseException):
                await (await self._starting).close()

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

    async def _fresh(self) -> "_Process":
        try:
            process = (await self._starter()).start()
            try:
                await process.ready()
            except BaseException:
                await _to_the_end(process)
                raise
        except (OSError, NoProcess) as error:
            log.error("no process for a job could be started: %s", error)  # noqa: TRY400  (the text says it all)
            raise NoProcess(str(error)) from None
        return process

    async def _starter(self) -> "_Starter":
        """The one that is there, or a new one; whoever needs it meanwhile waits for the same."""
        starting = self._starting
        if starting is None or (starting.done() and (starting.exception() or not starting.result().alive)):
            homes = {(home.module, home.file): home for home in map(home_of, self._tasks.values())}
            starting = self._starting = asyncio.create_task(_started(list(homes.values())))
        return await asyncio.shield(starting)


async def _to_the_end(process: "_Process") -> None:
    """To be cancelled only hastens this: no process outlives its job, and no result is lost for it."""
    ending = asyncio.ensure_future(process.end())
    while not ending.done():
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            process.kill()


class _Process:
    """The process of one job and the socket to it."""

    def __init__(self, starter: "_Starter", number: int, sock: socket.socket) -> None:
        self._starter = starter
        self._number = number
        self._socket = sock
        self._frames: Frames | None = None
        self._said = False  #: how its job has ended
        self.takes_room = False
        self.pid = 0
        self.ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    async def ready(self) -> None:
        """Until it has been started; it says so by itself."""
        reader, writer = await asyncio.open_connection(sock=self._socket)
        self._frames = Frames(reader, writer)
        self.ended.add_done_callback(self._hang_up_soon)
        try:
            _, self.pid = await self._frames.read()
        except (OSError, EOFError):
            raise NoProcess(f"it {died(await self._code())} before it could run the job") from None

    async def run(self, task: Task[..., Any, Any], context: JobContext) -> bytes:
        """The result, packed; or what was raised there, ProcessDied, or NotFound if it does not find the task."""
        assert self._frames is not None
        lease = context.lease
        self._frames.write(JobOrder(home_of(task), lease.id, msgspec.msgpack.encode(lease.found), lease.payload))
        while True:
            word, *values = await self._next(context)
            self._said = True
            match word:
                case "done":
                    return bytes(values[0])
                case "raised":
                    raise rebuild(values)
                case "missing":
                    raise NotFound from rebuild(values)
            self._said = False

    async def _next(self, context: JobContext | None) -> list[Any]:
        """What it says of its job's end; what it says before is seen to."""
        assert self._frames is not None
        while True:
            try:
                word, *values = await self._frames.read()
            except (OSError, EOFError):
                raise ProcessDied(f"the process of the job {died(await self._code())}") from None
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
        except Exception as error:  # noqa: BLE001  (it is the job's to hear of)
            self._frames.write(["word", f"failed {error}"])

    async def _code(self) -> int | None:
        """How it ended; one that only closed its socket is killed."""
        await asyncio.wait((self.ended,), timeout=SPEAKING)
        self.kill()
        return await self.ended

    def _hang_up_soon(self, _ended: Any) -> None:
        """Some process that left its group may keep the other end of the socket open."""
        assert self._frames is not None
        asyncio.get_running_loop().call_later(SPEAKING, self._frames.close)

    def kill(self) -> None:
        if not self.ended.done():
            self._starter.kill(self._number)

    async def end(self) -> None:
        """It ends by itself if it has told how its job ended; else it is killed."""
        if self._said:
            with suppress(TimeoutError, ProcessDied):
                async with asyncio.timeout(ENDING):
                    await self._next(None)
        self.kill()
        await self.ended
        if self._frames is not None:
            self._frames.close()
        self._socket.close()


async def _started(homes: list[Home]) -> "_Starter":
    starter = _Starter(homes)
    try:
        await starter.ready()
    except BaseException:
        await starter.close()
        raise
    return starter


class _Starter:
    """The worker's side of the template."""

    def __init__(self, homes: list[Home]) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001  (as multiprocessing does)
            setup = {"path": sys.path, "flags": flags, "parent": os.getpid(), "socket": theirs.fileno()}
            setup["homes"] = [[home.module, home.file, home.qualname, home.task] for home in homes]
            # A session of its own: when all of the worker's group is killed, it still kills the processes of jobs.
            self._template = subprocess.Popen(  # noqa: S603  (this very Python)
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
    def alive(self) -> bool:
        return self._listening is not None and not self._listening.done()

    async def ready(self) -> None:
        """Until it has imported the modules of the tasks."""
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
                self._lost(number, None)
                raise
        return process

    def kill(self, number: int) -> None:
        with suppress(OSError):  # it is gone, and all others with it
            self._socket.send(MESSAGE.pack(KILL, number, 0))

    async def close(self) -> None:
        """Its end is that of all processes that it has started."""
        self._socket.close()
        if self._writer is not None:
            self._writer.transport.abort()
        try:
            async with asyncio.timeout(SPEAKING):
                while self._template.poll() is None:  # noqa: ASYNC110  (a process is no event)
                    await asyncio.sleep(0.005)
        except TimeoutError:
            self._template.kill()
            self._template.wait()
        if self._listening is not None:
            await asyncio.wait((self._listening,))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                word, number, code = MESSAGE.unpack(await reader.readexactly(MESSAGE.size))
                if word == ENDED:
                    self._lost(number, code)
        except (OSError, EOFError):
            pass
        finally:
            for number, process in list(self._processes.items()):
                with suppress(ProcessLookupError, PermissionError):
                    if process.pid:
                        os.killpg(process.pid, signal.SIGKILL)
                self._lost(number, None)

    def _lost(self, number: int, code: int | None) -> None:
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


def home_of(task: Task[..., Any, Any]) -> Home:
    """Where another process finds this task."""
    function = task.function
    module = function.__module__
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None) if module == "__main__" and not getattr(main, "__spec__", None) else None
    return Home(module_name(module), str(Path(file).resolve()) if file else "", function.__qualname__, task.name)
