"""The process in which jobs run, under `penstock worker`: `python -m penstock.cli.child_main`.

It imports the app, says so, and waits until the supervisor has a use for it. Whatever ends the supervisor ends it too.
"""

import asyncio
import logging
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from msgspec.structs import astuple

from penstock.app import Penstock
from penstock.cli.exit_codes import CliError, code_of
from penstock.cli.logs import configure_logging
from penstock.cli.target import Target
from penstock.cli.terminal import echo
from penstock.engine import scripts
from penstock.errors import PenstockError
from penstock.server.urls import parse
from penstock.worker.executors.parent_death import die, tie_to_parent
from penstock.worker.heartbeat import SupervisedHeartbeat
from penstock.worker.supervisor import ipc
from penstock.worker.supervisor.child import ChildSetup
from penstock.worker.supervisor.shared_state import STATE_LEFT, STATE_UP, SharedState, slots_for
from penstock.worker.supervisor.stack_dump import dump_on_signal
from penstock.worker.worker import Worker

log = logging.getLogger("penstock.worker")


@dataclass(slots=True)
class Inbox:
    """The supervisor's messages, received in a thread of their own and kept until a loop handles them."""

    go: threading.Event
    kept: list[list[Any]]
    loop: asyncio.AbstractEventLoop | None = None
    handle: Any = None

    def receive(self, message: list[Any]) -> None:
        if message[0] == "go":
            self.go.set()
        elif self.loop is None:
            self.kept.append(message)
        else:
            with suppress(RuntimeError):  # the loop is closed: this process is about to end
                self.loop.call_soon_threadsafe(self.handle, message)

    def deliver_to(self, handle: Any) -> None:
        """From now on messages are handled on this loop."""
        self.loop, self.handle = asyncio.get_running_loop(), handle
        for message in self.kept:
            self.loop.call_soon(handle, message)


def main() -> None:
    parent, socket_file, shared_file = map(int, sys.argv[1:])
    tie_to_parent(parent)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which programs that jobs start would inherit
    sock = socket.socket(fileno=socket_file)
    inbox, messages = Inbox(threading.Event(), []), ipc.receive(sock)
    setup = _setup(messages)
    ipc.listen(messages, inbox.receive, die)
    configure_logging(setup.level, setup.form)
    app, worker, shared_state = _prepare(setup, sock, shared_file)
    inbox.go.wait()
    code = 0
    try:
        with asyncio.Runner(loop_factory=_new_loop()) as runner:
            runner.run(_work(app, worker, shared_state, inbox, sock))
    except PenstockError as error:
        log.error("the worker could not start: %s", error)  # noqa: TRY400  (an error of ours says what to do)
        code = int(code_of(error))
    except BaseException:
        log.exception("the worker could not start")
        code = 1
    _leave(code)


def _new_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where it is installed."""
    try:
        import uvloop  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    return uvloop.new_event_loop


def _leave(code: int) -> NoReturn:
    """End this process, even if threads or tasks do not end."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _setup(messages: Iterator[list[Any]]) -> ChildSetup:
    """What the supervisor sends first."""
    message = next(messages, None)
    if message is None:
        die()  # the supervisor is gone
    return ChildSetup(**message[1])


def _prepare(setup: ChildSetup, sock: socket.socket, shared_file: int) -> tuple[Penstock, Worker, SharedState]:
    """Import the app and send what it is; if that fails, this process ends with an exit code that says why."""
    try:
        app = Target(setup.app, setup.url, setup.namespace).import_app()
        concurrency = setup.concurrency or app.settings.concurrency
        shared_state = SharedState(shared_file, slots_for(concurrency))
        heartbeat = SupervisedHeartbeat(shared_state, lambda *words: ipc.send(sock, *words))
        worker = Worker(
            app.program,
            queues=setup.queues,
            concurrency=concurrency,
            lease=round(setup.lease * 1000),
            grace=setup.grace,
            heartbeat=heartbeat,
        )
        worker.quota = setup.max_jobs or worker.quota
        hello = _hello(app, concurrency, setup)
    except (PenstockError, CliError) as error:
        echo(f"Error: {error}", err=True)
        ipc.send(sock, "failed", str(error))
        os._exit(code_of(error))
    scripts.load()  # now, so that a spare takes a dead child's place at once
    shared_state.beat()
    ipc.send(sock, "hello", hello)
    return app, worker, shared_state


def _hello(app: Penstock, concurrency: int, setup: ChildSetup) -> dict[str, Any]:
    settings = app.settings
    return {
        "namespace": app.name,
        "url": settings.url,
        "server": str(parse(settings.url)),
        "deadline": settings.deadline / 1000,
        "concurrency": concurrency,
        "queues": setup.queues or ",".join(settings.queues),
        "app": setup.app or settings.app or "",
        "tasks": [[name, task.options.queue] for name, task in sorted(app.tasks.items())],
    }


class _Run:
    """The worker of this process, from `go` to its end."""

    def __init__(self, worker: Worker, sock: socket.socket, grace: float) -> None:
        self._worker = worker
        self._socket = sock
        self._grace = grace
        self._end = asyncio.Event()

    def handle(self, message: list[Any]) -> None:
        match message:
            case ["cancel", job_id]:
                self._worker.cancel(job_id)
            case ["lost", name]:
                self._worker.lose_name(name)
            case ["leave", why]:
                self.leave(why)
            case ["stop"]:
                if self._end.is_set():  # it was leaving anyway, and took its time
                    asyncio.get_running_loop().call_later(self._grace, self._worker.cut)
                self._end.set()
            case ["hurry"]:
                self._worker.grace = 0
                self._worker.cut()
                self._end.set()

    def leave(self, why: str) -> None:
        """Take no more jobs, and finish those that run however long they take; a spare takes the place."""
        if not self._end.is_set():
            self._worker.grace = None
            ipc.send(self._socket, "leaving", why)
            self._end.set()

    async def until_end(self) -> None:
        overran = asyncio.create_task(self._worker.overran.wait())
        end = asyncio.create_task(self._end.wait())
        while not end.done():
            poll = None if math.isinf(self._worker.quota) else 0.2
            await asyncio.wait((overran, end), timeout=poll, return_when=asyncio.FIRST_COMPLETED)
            if overran.done():
                self.leave("a job's thread goes on although its time is over")
            elif self._worker.is_spent:
                self.leave("it has run as many jobs as it may")
        overran.cancel()


async def _work(app: Penstock, worker: Worker, shared_state: SharedState, inbox: Inbox, sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    run = _Run(worker, sock, worker.grace or 0)
    loop.add_signal_handler(signal.SIGTERM, run.leave, "SIGTERM")
    dump_on_signal(loop)
    async with worker:
        inbox.deliver_to(run.handle)
        shared_state.state = STATE_UP
        ipc.send(sock, "up")
        await run.until_end()
    for finished in worker.stuck:
        outcome = [type(finished.outcome).__name__, *astuple(finished.outcome)]
        ipc.send(sock, "settle", finished.worker, finished.number, finished.id, outcome)
    with suppress(Exception):
        await asyncio.wait_for(app.aclose(), 2)
    shared_state.state = STATE_LEFT
    _leave(0)


if __name__ == "__main__":
    main()
