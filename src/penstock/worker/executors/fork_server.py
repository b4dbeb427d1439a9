"""The process that starts the processes of jobs: `python -m penstock.worker.executors.fork_server`.

It imports the modules of the tasks and runs none of them, so that each job begins in the same clean process: a fork of
this one. Where a fork is not safe (not on Linux, or a module has started threads), each job gets a process started by
exec instead, which imports the modules again. Either leads a session of its own. When a job's process ends or is
killed, this process kills whatever it left in its group; when the worker ends, in any way, it does so for all.
"""

import gc
import json
import logging
import os
import select
import signal
import socket
import struct
import sys
import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from penstock.worker.executors.parent_death import signal_on_parent_death, tie_to_parent
from penstock.worker.executors.process_main import LogForwarder, TaskLocation, load, run_job

#: A message on the socket: a word, the number of a process, and a code that only `ENDED` uses.
MESSAGE: Final = struct.Struct("<cIi")
READY: Final = b"r"  #: the modules are imported
START: Final = b"s"  #: start a process with the socket that comes along
KILL: Final = b"k"
ENDED: Final = b"e"  #: with the exit code, below zero for a signal


class ForkServer:
    """Starts, kills and reaps the processes of jobs, as its worker says."""

    def __init__(self, control: socket.socket, setup: dict[str, Any], log_forwarder: LogForwarder) -> None:
        self._control = control
        self._setup = setup
        self._log_forwarder = log_forwarder
        self._numbers: dict[int, int] = {}  #: pid → number of each process that is alive
        self._wake_read, self._wake_write = os.pipe()  #: a byte for each SIGCHLD
        self._can_fork = sys.platform == "linux" and _is_single_threaded()

    def serve(self) -> NoReturn:
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal_on_parent_death()  # instead of dying with it: there may be jobs to kill
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        self._control.sendall(MESSAGE.pack(READY, 0, 0))
        while True:
            if os.getppid() != self._setup["parent"]:  # the socket may stay open in a process that the worker forked
                self._exit()
            ready = {file for file, _ in poll.poll()}
            if self._wake_read in ready:
                with suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
                self._reap()
            if self._control.fileno() in ready:
                self._handle_message()

    def _handle_message(self) -> None:
        message, files = b"", list[int]()
        with suppress(OSError):
            message, files, _, _ = socket.recv_fds(self._control, MESSAGE.size, 1)
        if len(message) < MESSAGE.size:
            self._exit()
        word, number, _ = MESSAGE.unpack(message)
        if word == START:
            self._start(number, files[0])
        else:
            for pid in [pid for pid, own in self._numbers.items() if own == number]:
                _kill(pid)

    def _start(self, number: int, file: int) -> None:
        try:
            pid = self._fork(file) if self._can_fork else self._spawn(file)
        except OSError as error:
            self._send_ended(number, error.errno or 1)
        else:
            self._numbers[pid] = number
        finally:
            os.close(file)

    def _fork(self, file: int) -> int:
        if pid := os.fork():
            return pid
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for inherited in (self._control.fileno(), self._wake_read, self._wake_write):
                os.close(inherited)
            tie_to_parent(self._setup["pid"])
            run_job(socket.socket(fileno=file), self._log_forwarder)
        finally:
            os._exit(1)

    def _spawn(self, file: int) -> int:
        os.set_inheritable(file, True)  # noqa: FBT003 - positional only
        setup = json.dumps(self._setup | {"parent": os.getpid(), "socket": file, "job": True})
        return os.posix_spawn(sys.executable, [sys.executable, *self._setup["flags"], *_MODULE, setup], os.environ)

    def _reap(self) -> None:
        """Clean up after processes that have ended."""
        for pid, number in list(self._numbers.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                _kill_group(pid)  # processes that the job started and left
                del self._numbers[pid]
                self._send_ended(number, os.waitstatus_to_exitcode(status))

    def _send_ended(self, number: int, code: int) -> None:
        try:
            self._control.sendall(MESSAGE.pack(ENDED, number, code))
        except OSError:
            self._exit()

    def _exit(self) -> NoReturn:
        for pid in self._numbers:
            _kill(pid)
        os._exit(0)


_MODULE: Final = ("-m", "penstock.worker.executors.fork_server")


def _kill(pid: int) -> None:
    """Kill a job's process and its group, which it may not lead yet if it has just been started."""
    _kill_group(pid)
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _is_single_threaded() -> bool:
    """Whether a fork is safe. One fork is tried first, as some libraries stop their threads for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads, which is the question here
        if (pid := os.fork()) == 0:
            os._exit(0)
    os.waitpid(pid, 0)
    return len(list(Path("/proc/self/task").iterdir())) == 1


def _import_modules(locations: Iterable[TaskLocation]) -> None:
    for location in locations:
        with suppress(BaseException):  # the job will fail with it
            load(location)


def main() -> None:
    setup = json.loads(sys.argv[1])
    tie_to_parent(setup["parent"])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # the worker decides; not SIG_IGN, which programs started here inherit
    if "job" in setup:
        os.setsid()
    sys.path[:] = setup["path"]
    log_forwarder = LogForwarder()
    logging.basicConfig(level=logging.INFO, handlers=[log_forwarder])
    sock = socket.socket(fileno=setup["socket"])
    if "job" in setup or sys.platform == "linux":
        _import_modules(msgspec.convert(setup["locations"], list[TaskLocation]))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or every fork would write it again
    gc.freeze()  # what was imported is shared with every fork
    if "job" in setup:
        run_job(sock, log_forwarder)
    ForkServer(sock, setup | {"pid": os.getpid()}, log_forwarder).serve()


if __name__ == "__main__":
    main()
