"""The process of one job: it runs the job, sends its outcome to the worker, and ends.

Messages are frames of msgpack on a socket. It does not watch for the end of its worker: the fork server kills it then.
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
from penstock.model.payload_codec import Codecs
from penstock.worker.executors.parent_death import watch_parent
from penstock.worker.outcome import Hide, Raised, describe_error, hide_arguments, hide_nothing, names_of

log = logging.getLogger("penstock.worker")

_FRAME_LENGTH: Final = struct.Struct("<I")
_MAX_LOG_TEXT: Final = 100_000  #: characters of a log line that is passed on
_MAX_LOG_NAME: Final = 1_000  #: and of each name that is passed on with it
_LOG_FIELDS: Final = ("name", "levelno", "levelname", "created", "process", "job", "task", "attempt")
_pack = msgspec.msgpack.Encoder(enc_hook=str).encode
_unpack = msgspec.msgpack.Decoder().decode


class TaskLocation(msgspec.Struct, array_like=True, frozen=True):
    """Where a task is defined."""

    module: str
    file: str  #: of a module that runs as a program; else empty
    qualname: str
    task: str


class JobOrder(msgspec.Struct, array_like=True, frozen=True):
    """A job to run."""

    location: TaskLocation
    id: str
    header: bytes
    payload: bytes


class Frames:
    """The worker's side of the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self) -> list[Any]:
        (length,) = _FRAME_LENGTH.unpack(await self._reader.readexactly(_FRAME_LENGTH.size))
        message: list[Any] = _unpack(await self._reader.readexactly(length))
        return message

    def write(self, value: Any) -> None:
        self._writer.write(_frame(value))

    def close(self) -> None:
        self._writer.close()


def _frame(value: Any) -> bytes:
    raw = _pack(value)
    return _FRAME_LENGTH.pack(len(raw)) + raw


class Parent:
    """The process's side of the socket: it reads one order, and answers to progress."""

    codecs = Codecs("")  #: none: its worker seals what it says, and has opened its payload

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._stream = sock.makefile("rb")
        self._lock = threading.RLock()  # sending may log, or be interrupted by a signal handler that logs

    def send(self, word: str, *values: Any) -> None:
        self.send_frame(_frame([word, *values]))

    def send_frame(self, frame: bytes) -> None:
        with self._lock:
            self._socket.sendall(frame)

    def read_order(self) -> JobOrder:
        return msgspec.convert(self._read(), JobOrder)

    def _read(self) -> list[Any]:
        head = self._stream.read(_FRAME_LENGTH.size)
        if len(head) < _FRAME_LENGTH.size:
            os._exit(1)  # the worker is gone
        message: list[Any] = _unpack(self._stream.read(_FRAME_LENGTH.unpack(head)[0]))
        return message

    def progress(self, _worker: str, _job_id: str, _number: int, text: str) -> "ProgressAnswer":
        """Stands in for the engine's method: the worker sends the progress."""
        return ProgressAnswer(self, text)

    def send_progress(self, text: str) -> str:
        with self._lock:
            self.send("progress", text)
            word: str = self._read()[1]
        if word.startswith("failed "):
            raise PenstockError(word.removeprefix("failed "))
        return word


class ProgressAnswer:
    """Awaited or not, it blocks this process for a moment; nothing else runs in it."""

    def __init__(self, parent: Parent, text: str) -> None:
        self._parent, self._text = parent, text

    def __await__(self) -> Any:
        return self._parent.send_progress(self._text)
        yield

    def sync(self) -> str:
        return self._parent.send_progress(self._text)


class LogForwarder(logging.Handler):
    """Sends log records to the worker, which writes them like its own."""

    def __init__(self) -> None:
        super().__init__()
        self.parent: Parent | None = None  #: None during imports, whose records the worker has written already

    def emit(self, record: logging.LogRecord) -> None:
        if self.parent is None:
            return
        try:
            fields = {name: _plain(value) for name in _LOG_FIELDS if (value := getattr(record, name, None)) is not None}
            frame = _frame(["log", fields | {"msg": storable(self.format(record), _MAX_LOG_TEXT)}])
        except Exception:  # noqa: BLE001  (as any handler does with a record that cannot be formatted)
            self.handleError(record)
        else:
            self.parent.send_frame(frame)


def _plain(value: Any) -> int | float | str:
    """A value from a log record as plain data that can be sent."""
    is_number = type(value) is float or (type(value) is int and abs(value) < 2**63)
    return value if is_number else storable(str(value), _MAX_LOG_NAME)


def find(location: TaskLocation) -> Task[..., Any, Any]:
    """The task from its module, with decorators applied."""
    module = load(location)
    for value in vars(module).values():
        if isinstance(value, Task) and value.name == location.task:
            return value
    value = module
    for name in location.qualname.split("."):
        value = getattr(value, name, None)
    if isinstance(value, Task):
        return value
    for value in vars(module).values():  # a task that only its app knows
        program = getattr(value, "program", None)
        task = program.tasks.get(location.task) if isinstance(program, Program) else None
        if task is not None and task.function.__qualname__ == location.qualname:
            return task
    raise BadOption(
        f"{location.task}: a process finds no such task in {location.module!r}; keep it under a name of the module"
    )


def load(location: TaskLocation) -> Any:
    """The module of a task."""
    if not location.file:
        return importlib.import_module(location.module)
    if location.module not in sys.modules:
        spec = importlib.util.spec_from_file_location(location.module, Path(location.file))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[location.module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[location.module])
    return sys.modules[location.module]


class JobRunner:
    """Runs one job inside the app's lifespan.

    An async function runs on the loop of this process, any other without a loop, as it would in a thread.
    """

    def __init__(self, parent: Parent, runner: asyncio.Runner) -> None:
        self._parent = parent
        self._runner = runner
        self._context = contextvars.copy_context()
        self._stack = AsyncExitStack()
        self._has_lifespan = False  #: without one, no loop is made for it: that takes as long as a fork

    def run(self, order: JobOrder) -> None:
        try:
            task = find(order.location)
        except BaseException as error:  # noqa: BLE001  (a module may fail in any way)
            return self._parent.send("missing", *_error_values(error))
        try:
            result = self._result(order, task)
        except BaseException as error:  # noqa: BLE001  (whatever it was, the worker is told)
            self._parent.send("raised", *_error_values(error, _hide_of(order, task)))
        else:
            self._parent.send("done", result)

    def end_lifespan(self) -> None:
        """The job has ended, so an error of the lifespan is only logged."""
        try:
            if self._has_lifespan:
                self._await(self._stack.aclose())
        except Exception:
            log.exception("the lifespan of the app failed at its end, in the process of a job")

    def _result(self, order: JobOrder, task: Task[..., Any, Any]) -> bytes:
        envelope = open_envelope(order.payload)
        args, kwargs = task.signature.decode(envelope.args, envelope.status)
        record = read_running(order.header)
        lease = Lease(order.id, record, order.payload, record.ready)
        context = JobContext(lease, "", 0, self._parent, self._lifespan_state(task))
        self._context.run(enter, context)
        if task.is_async or task.options.executor == "async":
            value = self._await(_called(task, args, kwargs))
        else:
            value = self._context.run(task.function, *args, **kwargs)
        if context.unsent:
            self._await(context.flush())
        try:
            return encode_result(value)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError, PayloadTooLarge) as error:
            raise Bury("result_not_storable") from error

    def _lifespan_state(self, task: Task[..., Any, Any]) -> Any:
        """What the app's lifespan yields in this process."""
        program = task.program
        if program is None or program.lifespan is None:
            return None
        self._has_lifespan = True
        return self._await(self._stack.enter_async_context(program.lifespan()))

    def _await(self, work: Coroutine[Any, Any, Any]) -> Any:
        value, error = self._runner.run(_caught(work), context=self._context)
        if error is not None:
            raise error
        return value


async def _caught(work: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """Return SystemExit and KeyboardInterrupt as values: raised, they would end the loop."""
    try:
        return await work, None
    except BaseException as error:  # noqa: BLE001  (raised again outside of the loop)
        return None, error


async def _called(task: Task[..., Any, Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = task.function(*args, **kwargs)
    return await value if task.is_async else value


def _hide_of(order: JobOrder, task: Task[..., Any, Any]) -> Hide:
    try:
        return hide_arguments(open_envelope(order.payload), task.options.redact)
    except msgspec.MsgspecError:
        return hide_nothing


def _error_values(error: BaseException, hide: Hide = hide_nothing) -> list[Any]:
    try:
        delay, reason = getattr(error, "delay", None), storable(hide(str(getattr(error, "reason", ""))), 200)
        kind = next((kind.__name__ for kind in (Retry, Snooze, Bury) if isinstance(error, kind)), "")
        names = sorted(storable(name, 500) for name in names_of(error))
    except BaseException:  # noqa: BLE001  (an error that cannot be asked what it is, is a failure like any other)
        kind, delay, reason, names = "", None, "", []
    return [kind, delay, reason, names, describe_error(error, hide)]


def rebuild(values: list[Any]) -> BaseException:
    """The error that was raised in a process, as far as it can be sent."""
    kind, delay, reason, names, described = values
    match kind:
        case "Retry":
            return Retry() if delay is None else Retry(delay / 1000)
        case "Snooze":
            return Snooze(delay / 1000)
        case "Bury":
            return Bury(reason)
    return Raised(frozenset(names), described)


def run_job(sock: socket.socket, log_forwarder: LogForwarder) -> NoReturn:
    """Run one job, then end this process."""
    parent = Parent(sock)
    watch_parent(os.getppid())
    parent.send("ready", os.getpid())
    order = parent.read_order()
    log_forwarder.parent = parent
    with asyncio.Runner() as runner:
        job_runner = JobRunner(parent, runner)
        job_runner.run(order)
        job_runner.end_lifespan()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # whatever the job did to the stream
            stream.flush()
    os._exit(0)
