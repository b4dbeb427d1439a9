"""The process that jobs' processes come from: `python -m penstock.worker.executors.fork_server`.

It imports what the tasks are in and runs nothing else of it, so that every job begins in the same clean process: a fork
of this one. Where a fork is not safe, on anything but Linux or once a module has started threads, each job begins in a
process started by exec instead, which imports those modules anew. Either leads a session of its own. When it ends, or
must, this process kills whatever it left in its group; when the worker ends, in any way, that of all.
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

from penstock.worker.executors.parent_death import hear_of_parent, tie_to_parent
from penstock.worker.executors.process_main import Home, LogForwarder, load, run_job

#: What is said on the socket, each with a number and a code, which only `ended` needs.
MESSAGE: Final = struct.Struct("<cIi")
READY: Final = b"r"  #: from here on jobs' processes are started at once
START: Final = b"s"  #: one for the socket that comes with it
KILL: Final = b"k"
ENDED: Final = b"e"  #: with the exit code, below zero for a signal


class Template:
    """Starts, kills and buries the processes of jobs, as its worker says."""

    def __init__(self, control: socket.socket, setup: dict[str, Any], teller: LogForwarder) -> None:
        self._control = control
        self._setup = setup
        self._teller = teller
        self._numbers: dict[int, int] = {}  #: those that live, by pid
        self._reading, self._writing = os.pipe()
        self._forks = sys.platform == "linux" and _is_single_threaded()

    def serve(self) -> NoReturn:
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        hear_of_parent()  # and no longer die with it: there may be jobs to be killed
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._reading, select.POLLIN)
        self._control.sendall(MESSAGE.pack(READY, 0, 0))
        while True:
            if os.getppid() != self._setup["parent"]:  # some process that the worker forked may keep the socket open
                self._leave()
            ready = {file for file, _ in poll.poll()}
            if self._reading in ready:
                with suppress(BlockingIOError):
                    os.read(self._reading, 4096)
                self._bury()
            if self._control.fileno() in ready:
                self._obey()

    def _obey(self) -> None:
        message, files = b"", list[int]()
        with suppress(OSError):
            message, files, _, _ = socket.recv_fds(self._control, MESSAGE.size, 1)
        if len(message) < MESSAGE.size:
            self._leave()
        word, number, _ = MESSAGE.unpack(message)
        if word == START:
            self._start(number, files[0])
        else:
            for pid in [pid for pid, found in self._numbers.items() if found == number]:
                _kill(pid)

    def _start(self, number: int, file: int) -> None:
        try:
            pid = self._forked(file) if self._forks else self._spawned(file)
        except OSError as error:
            self._say(number, error.errno or 1)
        else:
            self._numbers[pid] = number
        finally:
            os.close(file)

    def _forked(self, file: int) -> int:
        if pid := os.fork():
            return pid
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for inherited in (self._control.fileno(), self._reading, self._writing):
                os.close(inherited)
            tie_to_parent(self._setup["pid"])
            run_job(socket.socket(fileno=file), self._teller)
        finally:
            os._exit(1)

    def _spawned(self, file: int) -> int:
        os.set_inheritable(file, True)  # noqa: FBT003 - by place only
        setup = json.dumps(self._setup | {"parent": os.getpid(), "socket": file, "job": True})
        return os.posix_spawn(sys.executable, [sys.executable, *self._setup["flags"], *_MODULE, setup], os.environ)

    def _bury(self) -> None:
        """Clean up after those that have ended."""
        for pid, number in list(self._numbers.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                _kill_group(pid)  # what it has started and left behind
                del self._numbers[pid]
                self._say(number, os.waitstatus_to_exitcode(status))

    def _say(self, number: int, code: int) -> None:
        try:
            self._control.sendall(MESSAGE.pack(ENDED, number, code))
        except OSError:
            self._leave()

    def _leave(self) -> NoReturn:
        for pid in self._numbers:
            _kill(pid)
        os._exit(0)


_MODULE: Final = ("-m", "penstock.worker.executors.fork_server")


def _kill(pid: int) -> None:
    """A job's process and its group; one that is just being started may not lead it yet."""
    _kill_group(pid)
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _is_single_threaded() -> bool:
    """Whether a fork is safe; libraries that stop their threads for a fork are given the chance to do so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads, which is what is asked here
        if (pid := os.fork()) == 0:
            os._exit(0)
    os.waitpid(pid, 0)
    return len(list(Path("/proc/self/task").iterdir())) == 1


def _import(homes: Iterable[Home]) -> None:
    for home in homes:
        with suppress(BaseException):  # the job hears of it
            load(home)


def main() -> None:
    setup = json.loads(sys.argv[1])
    tie_to_parent(setup["parent"])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # the worker decides; not SIG_IGN, which programs started here inherit
    if "job" in setup:
        os.setsid()
    sys.path[:] = setup["path"]
    teller = LogForwarder()
    logging.basicConfig(level=logging.INFO, handlers=[teller])
    sock = socket.socket(fileno=setup["socket"])
    if "job" in setup or sys.platform == "linux":
        _import(msgspec.convert(setup["homes"], list[Home]))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or every fork would write it
    gc.freeze()  # what was imported is shared with every fork
    if "job" in setup:
        run_job(sock, teller)
    Template(sock, setup | {"pid": os.getpid()}, teller).serve()


if __name__ == "__main__":
    main()
