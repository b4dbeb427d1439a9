"""The process of one job: it runs that job, tells its worker how it ended, and ends.

Frames of msgpack come and go on a socket. It does not watch for the end of its worker: who started it kills it then.
"""

import asyncio
import contextvars
import importlib
import importlib.util
import logging
import os
import socket
import struct
import sys
import threading
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from penstock.api.context import JobContext, enter
from penstock.api.program import Program
from penstock.api.task import Task
from penstock.engine.answers import Lease
from penstock.engine.record.record import read_running
from penstock.errors import BadOption, PayloadTooLarge, PenstockError
from penstock.model.codec import encode_result, open_envelope, storable
from penstock.model.control_flow import Bury, Retry, Snooze
from penstock.worker.executors.parent_death import watch_parent
from penstock.worker.outcome import Raised, describe_error, names_of

log = logging.getLogger("penstock.worker")

_LENGTH: Final = struct.Struct("<I")
_LONGEST_LINE: Final = 100_000  #: characters of a log line that is passed on
_LONGEST_NAME: Final = 1_000  #: and of each name that is passed on with it
_RECORD: Final = ("name", "levelno", "levelname", "created", "process", "job", "task", "attempt")
_pack = msgspec.msgpack.Encoder(enc_hook=str).encode
_unpack = msgspec.msgpack.Decoder().decode


class Home(msgspec.Struct, array_like=True, frozen=True):
    """Where a task is defined."""

    module: str
    file: str  #: of a module that runs as a program; else empty
    qualname: str
    task: str


class JobOrder(msgspec.Struct, array_like=True, frozen=True):
    """A job to run."""

    home: Home
    id: str
    header: bytes
    payload: bytes


class Frames:
    """The worker's side of the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self) -> list[Any]:
        (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
        found: list[Any] = _unpack(await self._reader.readexactly(length))
        return found

    def write(self, value: Any) -> None:
        self._writer.write(_frame(value))

    def close(self) -> None:
        self._writer.close()


def _frame(value: Any) -> bytes:
    raw = _pack(value)
    return _LENGTH.pack(len(raw)) + raw


class Parent:
    """The process' side of it: one order, and words in answer to what was said."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._stream = sock.makefile("rb")
        self._lock = threading.RLock()  # what is said may log, or be interrupted by a signal handler that does

    def say(self, word: str, *values: Any) -> None:
        self.send(_frame([word, *values]))

    def send(self, frame: bytes) -> None:
        with self._lock:
            self._socket.sendall(frame)

    def order(self) -> JobOrder:
        return msgspec.convert(self._read(), JobOrder)

    def _read(self) -> list[Any]:
        head = self._stream.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            os._exit(1)  # whoever gives the orders is gone
        found: list[Any] = _unpack(self._stream.read(_LENGTH.unpack(head)[0]))
        return found

    def progress(self, _worker: str, _job_id: str, _number: int, text: str) -> "Answer":
        """What a job's context asks of the engine, asked through the worker."""
        return Answer(self, text)

    def ask(self, text: str) -> str:
        with self._lock:
            self.say("progress", text)
            word: str = self._read()[1]
        if word.startswith("failed "):
            raise PenstockError(word.removeprefix("failed "))
        return word


class Answer:
    """Awaited or not, it blocks this process for a moment: nothing else runs in it."""

    def __init__(self, parent: Parent, text: str) -> None:
        self._parent, self._text = parent, text

    def __await__(self) -> Any:
        return self._parent.ask(self._text)
        yield

    def sync(self) -> str:
        return self._parent.ask(self._text)


class LogForwarder(logging.Handler):
    """Log records go to the worker, which writes them as it writes its own."""

    def __init__(self) -> None:
        super().__init__()
        self.parent: Parent | None = None  #: none while modules are imported: the worker has written what that logs

    def emit(self, record: logging.LogRecord) -> None:
        if self.parent is None:
            return
        try:
            told = {name: _plain(found) for name in _RECORD if (found := getattr(record, name, None)) is not None}
            frame = _frame(["log", told | {"msg": storable(self.format(record), _LONGEST_LINE)}])
        except Exception:  # noqa: BLE001  (as any handler does with a record that cannot be formatted)
            self.handleError(record)
        else:
            self.parent.send(frame)


def _plain(value: Any) -> int | float | str:
    """What a job put into a record, as something that can be sent."""
    is_number = type(value) is float or (type(value) is int and abs(value) < 2**63)
    return value if is_number else storable(str(value), _LONGEST_NAME)


def find(home: Home) -> Task[..., Any, Any]:
    """The task, with everything that its module makes of it."""
    module = load(home)
    for found in vars(module).values():
        if isinstance(found, Task) and found.name == home.task:
            return found
    found = module
    for name in home.qualname.split("."):
        found = getattr(found, name, None)
    if isinstance(found, Task):
        return found
    for value in vars(module).values():  # a task that only its app knows
        program = getattr(value, "program", None)
        task = program.tasks.get(home.task) if isinstance(program, Program) else None
        if task is not None and task.function.__qualname__ == home.qualname:
            return task
    raise BadOption(f"{home.task}: a process finds no such task in {home.module!r}; keep it under a name of the module")


def load(home: Home) -> Any:
    """The module of a task."""
    if not home.file:
        return importlib.import_module(home.module)
    if home.module not in sys.modules:
        spec = importlib.util.spec_from_file_location(home.module, Path(home.file))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[home.module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[home.module])
    return sys.modules[home.module]


class Host:
    """Runs one order within the app's lifespan.

    An async function runs on the loop of this process. Any other runs without one, as it would in a thread.
    """

    def __init__(self, parent: Parent, runner: asyncio.Runner) -> None:
        self._parent = parent
        self._runner = runner
        self._around = contextvars.copy_context()
        self._stack = AsyncExitStack()
        self._is_inside = False  #: a lifespan; a function that needs no loop gets none, as that takes as long as a fork

    def run(self, order: JobOrder) -> None:
        try:
            task = find(order.home)
        except BaseException as error:  # noqa: BLE001  (a module may fail in any way)
            return self._parent.say("missing", *_taken_apart(error))
        try:
            result = self._result(order, task)
        except BaseException as error:  # noqa: BLE001  (whatever it was, the worker hears of it)
            self._parent.say("raised", *_taken_apart(error))
        else:
            self._parent.say("done", result)

    def leave(self) -> None:
        """End the lifespan; the job has ended, so an error here is only logged."""
        try:
            if self._is_inside:
                self._await(self._stack.aclose())
        except Exception:
            log.exception("the lifespan of the app failed at its end, in the process of a job")

    def _result(self, order: JobOrder, task: Task[..., Any, Any]) -> bytes:
        envelope = open_envelope(order.payload)
        args, kwargs = task.signature.decode(envelope.args, envelope.status)
        found = read_running(order.header)
        lease = Lease(order.id, found, order.payload, found.ready)
        context = JobContext(lease, "", 0, self._parent, self._state(task))
        self._around.run(enter, context)
        if task.is_async or task.options.executor == "async":
            value = self._await(_called(task, args, kwargs))
        else:
            value = self._around.run(task.function, *args, **kwargs)
        if context.unsent:
            self._await(context.flush())
        try:
            return encode_result(value)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError, PayloadTooLarge) as error:
            raise Bury("result_not_storable") from error

    def _state(self, task: Task[..., Any, Any]) -> Any:
        """What the app's lifespan gives in this process."""
        program = task.program
        if program is None or program.lifespan is None:
            return None
        self._is_inside = True
        return self._await(self._stack.enter_async_context(program.lifespan()))

    def _await(self, work: Coroutine[Any, Any, Any]) -> Any:
        value, error = self._runner.run(_caught(work), context=self._around)
        if error is not None:
            raise error
        return value


async def _caught(work: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """A loop does not survive SystemExit and KeyboardInterrupt; as values they pass."""
    try:
        return await work, None
    except BaseException as error:  # noqa: BLE001  (raised again outside of the loop)
        return None, error


async def _called(task: Task[..., Any, Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = task.function(*args, **kwargs)
    return await value if task.is_async else value


def _taken_apart(error: BaseException) -> list[Any]:
    try:
        delay, reason = getattr(error, "delay", None), storable(str(getattr(error, "reason", "")), 200)
        kind = next((kind.__name__ for kind in (Retry, Snooze, Bury) if isinstance(error, kind)), "")
        names = sorted(storable(name, 500) for name in names_of(error))
    except BaseException:  # noqa: BLE001  (an error that cannot be asked what it is, is a failure like any other)
        kind, delay, reason, names = "", None, "", []
    return [kind, delay, reason, names, describe_error(error)]


def rebuild(values: list[Any]) -> BaseException:
    """What was raised in a process, as far as it can travel."""
    kind, delay, reason, names, described = values
    match kind:
        case "Retry":
            return Retry() if delay is None else Retry(delay / 1000)
        case "Snooze":
            return Snooze(delay / 1000)
        case "Bury":
            return Bury(reason)
    return Raised(frozenset(names), described)


def run_job(sock: socket.socket, teller: LogForwarder) -> NoReturn:
    """One job, from its order to the end of this process."""
    parent = Parent(sock)
    watch_parent(os.getppid())
    parent.say("ready", os.getpid())
    order = parent.order()
    teller.parent = parent
    with asyncio.Runner() as runner:
        host = Host(parent, runner)
        host.run(order)
        host.leave()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # whatever the job did to it
            stream.flush()
    os._exit(0)
