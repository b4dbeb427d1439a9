"""A process that runs one job after the other for a worker: `python -m penstock.worker.process`.

Frames of msgpack come and go on a socket. A thread reads them, so that the end of the worker is seen while a job runs.
"""

import asyncio
import importlib
import importlib.util
import json
import logging
import os
import queue
import signal
import socket
import struct
import sys
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.codec import encode_result, open_envelope, storable
from penstock.context import JobContext, enter
from penstock.engine.answers import Lease
from penstock.errors import BadOption, PayloadTooLarge, PenstockError
from penstock.steer import Bury, Retry, Snooze
from penstock.stored import read_running
from penstock.task import Task
from penstock.worker.outcome import Raised, describe, names_of
from penstock.worker.tether import tie_to_parent

_LENGTH: Final = struct.Struct("<I")
_LONGEST_LINE: Final = 100_000  #: characters of a log line that is passed on
_pack = msgspec.msgpack.Encoder(enc_hook=str).encode
_unpack = msgspec.msgpack.Decoder().decode


class Home(msgspec.Struct, array_like=True, frozen=True):
    """Where a task is defined."""

    module: str
    file: str  #: of a module that runs as a program; else empty
    qualname: str
    task: str


class Order(msgspec.Struct, array_like=True, frozen=True):
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
    """The process' side of it: orders, and words in answer to what was said."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._lock = threading.Lock()
        self.orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._words: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="penstock-parent", daemon=True).start()

    def say(self, word: str, *values: Any) -> None:
        with self._lock:
            self._socket.sendall(_frame([word, *values]))

    def _listen(self) -> None:
        try:
            with self._socket.makefile("rb") as stream:
                while head := stream.read(_LENGTH.size):
                    raw = stream.read(_LENGTH.unpack(head)[0])
                    found = _unpack(raw)
                    if found[0] == "word":
                        self._words.put(found[1])
                    else:
                        self.orders.put(msgspec.convert(found, Order))
        finally:
            os._exit(1)  # whoever gave the orders is gone

    def progress(self, _worker: str, _job_id: str, _number: int, text: str) -> "Answer":
        """What a job's context asks of the engine, asked through the worker."""
        return Answer(self, text)

    def ask(self, text: str) -> str:
        self.say("progress", text)
        word = self._words.get()
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


class Teller(logging.Handler):
    """Log records go to the worker, which writes them as it writes its own."""

    def __init__(self, parent: Parent) -> None:
        super().__init__()
        self._parent = parent

    def emit(self, record: logging.LogRecord) -> None:
        fields = ("name", "levelno", "levelname", "created", "process", "job", "task", "attempt")
        told = {name: getattr(record, name) for name in fields if hasattr(record, name)}
        try:
            text = storable(self.format(record), _LONGEST_LINE)
        except Exception:  # noqa: BLE001  (as any handler does with a record that cannot be formatted)
            self.handleError(record)
        else:
            self._parent.say("log", told | {"msg": text})


def find(home: Home) -> Task[..., Any, Any]:
    """The task, with everything that its module makes of it."""
    module = _load(home)
    for found in vars(module).values():
        if isinstance(found, Task) and found.name == home.task:
            return found
    found = module
    for name in home.qualname.split("."):
        found = getattr(found, name, None)
    if isinstance(found, Task):
        return found
    raise BadOption(f"{home.task}: a process finds no such task in {home.module!r}; keep it under a name of the module")


def _load(home: Home) -> Any:
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
    """Runs orders one by one; each app's lifespan is entered once."""

    def __init__(self, parent: Parent) -> None:
        self._parent = parent
        self._states: dict[int, Any] = {}
        self._stack = AsyncExitStack()

    async def run(self, order: Order) -> None:
        try:
            result = await self._result(order)
        except BaseException as error:  # noqa: BLE001  (whatever it was, the worker hears of it)
            self._parent.say("raised", *_taken_apart(error))
        else:
            self._parent.say("done", result)

    async def _result(self, order: Order) -> bytes:
        task = find(order.home)
        envelope = open_envelope(order.payload)
        args, kwargs = task.signature.decode(envelope.args, envelope.status)
        found = read_running(order.header)
        lease = Lease(order.id, found, order.payload, found.ready)
        context = JobContext(lease, "", 0, self._parent, await self._state(task))
        context.tags = tuple(envelope.tags)
        enter(context)
        value = task.function(*args, **kwargs)
        if task.is_async:
            value = await value
        await context.flush()
        try:
            return encode_result(value)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError, PayloadTooLarge) as error:
            raise Bury("result_not_storable") from error

    async def _state(self, task: Task[..., Any, Any]) -> Any:
        """What the app's lifespan gives in this process."""
        program = task.program
        if program is None or program.lifespan is None:
            return None
        if id(program) not in self._states:
            self._states[id(program)] = await self._stack.enter_async_context(program.lifespan())
        return self._states[id(program)]


def _taken_apart(error: BaseException) -> list[Any]:
    try:
        delay, reason = getattr(error, "delay", None), storable(str(getattr(error, "reason", "")), 200)
        kind = next((kind.__name__ for kind in (Retry, Snooze, Bury) if isinstance(error, kind)), "")
        names = sorted(storable(name, 500) for name in names_of(error))
    except BaseException:  # noqa: BLE001  (an error that cannot be asked what it is, is a failure like any other)
        kind, delay, reason, names = "", None, "", []
    return [kind, delay, reason, names, describe(error)]


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


async def serve(parent: Parent) -> None:
    host = Host(parent)
    parent.say("ready")
    while True:
        await host.run(await asyncio.to_thread(parent.orders.get))


def main() -> None:
    setup = json.loads(sys.argv[1])
    tie_to_parent(setup["parent"])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # the worker decides; not SIG_IGN, which programs started here inherit
    sys.path[:] = setup["path"]
    parent = Parent(socket.socket(fileno=setup["socket"]))
    logging.basicConfig(level=logging.INFO, handlers=[Teller(parent)])
    asyncio.run(serve(parent))


if __name__ == "__main__":
    main()
