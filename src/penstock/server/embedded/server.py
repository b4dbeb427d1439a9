"""The embedded server: started by its first user, shared by all, stopped after the last.

No state can be stale: who is alive is known from locks that the kernel frees with their process (see ``daemon``).
"""

import contextlib
import fcntl
import logging
import os
import signal
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import Unavailable
from penstock.model.ownership import resolved
from penstock.server.embedded import launch
from penstock.server.embedded.daemon import (
    POLL_INTERVAL,
    SERVER,
    START,
    USERS,
    WATCHER,
    is_same_file,
    open_lock,
    owner_at,
    signal_owner_at,
)
from penstock.server.embedded.paths import OTHER_SERVER, make_data_dir, refuse_foreign, refuse_unsafe, unwritable
from penstock.server.embedded.probe import Status, displaced_server, is_ready, probe

PROGRESS_TIMEOUT = 10.0  # seconds without progress; loading data is progress
SOCKET_TIMEOUT = 1.0  # seconds for which a server may be missing from its socket: it may be about to open or close it
# Seconds for the server to end. Then it is killed, which loses at most the writes behind an fsync that is under way.
END_TIMEOUT = 3.0
MAX_STARTS = 5
log = logging.getLogger("penstock.embedded")


class EmbeddedServer:
    """One user of a data directory's server, at most until this process ends."""

    def __init__(self, data: Path, *, announce: bool = True) -> None:
        self._users: int | None = None
        self._socket = Path()  #: of the server that was used last
        self._releases = 0
        self._data = resolved(data)
        self._is_announced = not announce
        reference = weakref.WeakMethod(self.release)
        # A forked child is a user only once it asks for the server itself.
        os.register_at_fork(after_in_child=lambda: (release := reference()) and release())

    def __del__(self) -> None:
        self.release()

    def ensure(self) -> Path:
        """Return the socket of a server that answers, started if need be; it stays until ``release``."""
        releases = self._releases
        refuse_unsafe(self._data)
        refuse_foreign(self._data)
        if (displaced := self._displaced()) is not None:
            return displaced
        make_data_dir(self._data)
        try:
            self._join()
            socket = _Starter(self._data).run()
            if owner_at(self._data, WATCHER) is None:
                launch.start_watcher(self._data)
        except OSError as error:
            raise unwritable(self._data, error) from error
        self._announce(socket)
        self._socket = socket
        if self._releases != releases:
            self._leave()  # released by another thread while this one waited
        return socket

    def _displaced(self) -> Path | None:
        """The socket of the server that this uses, if it still runs while its directory is gone.

        Its users stay with it, because only it has their data; nobody else may start a second one.
        """
        if self._users is None or is_same_file(self._users, self._data / USERS):
            return None
        pid = displaced_server(self._data)
        if pid is None or not is_ready(self._socket, pid):
            return None
        log.error("%s", displaced_error(self._data, pid))
        return self._socket

    def release(self) -> None:
        """Stop being a user."""
        self._releases += 1
        self._leave()

    def _leave(self) -> None:
        # Closed, not unlocked: a child that was forked meanwhile shares the lock and keeps it.
        users, self._users = self._users, None
        if users is not None:
            os.close(users)

    def _join(self) -> None:
        if self._users is not None and is_same_file(self._users, self._data / USERS):
            return
        lock = open_lock(self._data, USERS)
        deadline = time.monotonic() + PROGRESS_TIMEOUT
        # Only the watcher holds it exclusively, while it stops a server that nobody uses.
        while not _take(lock, fcntl.LOCK_SH):
            if time.monotonic() > deadline:
                os.close(lock)
                raise Unavailable(f"The embedded server in {self._data} is being stopped for too long: try again.")
            time.sleep(POLL_INTERVAL)
        os.utime(lock)
        self._leave()
        self._users = lock

    def _announce(self, socket: Path) -> None:
        if not self._is_announced:
            log.warning(
                "Using an embedded server, for development: its data is in %s, its socket %s", self._data, socket
            )
        self._is_announced = True


def used_lately(data: Path, seconds: float) -> bool:
    """Whether the embedded server there got a new user within the last so many seconds."""
    with contextlib.suppress(OSError):
        return time.time() - (data / USERS).stat().st_mtime < seconds
    return False


class _Starter:
    """Waits for a server that is ready; the process that gets ``start.lock`` starts or ends one if need be."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._starts = 0
        self._signals = iter((signal.SIGTERM,))
        self._log_offset = 0
        self._progress(loaded=0)

    def _progress(self, loaded: int) -> None:
        self._loaded = loaded
        self._give_up_at = time.monotonic() + PROGRESS_TIMEOUT
        self._end_at = time.monotonic() + SOCKET_TIMEOUT

    def run(self) -> Path:
        status = probe(self._data)
        if status.state == "ready":
            return status.socket
        with _start_lock(self._data) as lock:
            return self._wait(lock)

    def _wait(self, lock: int) -> Path:
        is_alone = False
        while (status := probe(self._data)).state != "ready":
            self._check(status)
            if is_alone:
                self._act(status)
            elif is_alone := _take(lock, fcntl.LOCK_EX):
                # The process that had the lock may have changed what was seen without it: probe again.
                self._end_at = time.monotonic() + SOCKET_TIMEOUT
                continue
            time.sleep(POLL_INTERVAL)
        return status.socket

    def _check(self, status: Status) -> None:
        if status.state == "loading" and status.loaded > self._loaded:
            self._progress(status.loaded)
        if time.monotonic() > self._give_up_at:
            raise launch.start_error(self._data, self._log(), _stuck(status))

    def _act(self, status: Status) -> None:
        if status.state == "down":
            if (pid := displaced_server(self._data)) is None:
                self._start()
            elif time.monotonic() > self._end_at:  # else it may be about to end
                raise displaced_error(self._data, pid)
        elif status.state == "unreachable":
            self._end(status)

    def _start(self) -> None:
        if self._starts:
            self._check_ended()
        self._starts += 1
        self._log_offset = launch.start_server(self._data)
        self._progress(loaded=0)

    def _check_ended(self) -> None:
        """Raise if the server ended right after its start, unless it may have been killed."""
        log = self._log()
        if self._starts == MAX_STARTS or launch.is_lasting(log):
            raise launch.start_error(self._data, log, "it ended as soon as it was started")

    def _log(self) -> str:
        return launch.read_log(self._data, self._log_offset) if self._starts else ""

    def _end(self, status: Status) -> None:
        """End a server that lost its socket, as when someone cleans up a directory of temporary files."""
        if status.pid <= 0:
            raise Unavailable(
                f"The data in {self._data} is used by an embedded server of another container: give each its own "
                f"directory, embedded:///some/directory, or {OTHER_SERVER}."
            )
        if time.monotonic() > self._end_at:
            signal_owner_at(self._data, SERVER, next(self._signals, signal.SIGKILL))
            self._end_at = time.monotonic() + END_TIMEOUT


def displaced_error(data: Path, pid: int) -> Unavailable:
    """The error for a server that goes on without its directory."""
    return Unavailable(
        f"The directory {data} was removed, moved or replaced while its embedded server (process {pid}) runs: what "
        "that server has is in its memory alone, or where the directory was moved to, and no second one is started "
        "beside it. Put the directory back if it was moved. Otherwise end the programs that use the server, which then "
        f"ends too, and use {data} anew: it begins empty. What the server still has can be read until then, in a "
        "program that is connected to it."
    )


def _stuck(status: Status) -> str:
    if status.state == "silent":
        return f"its process {status.pid} does not answer; if it stays so, end that process"
    return "it was not ready in time"


def _take(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _start_lock(data: Path) -> Iterator[int]:
    lock = open_lock(data, START)
    try:
        yield lock
    finally:
        # Unlocked, not only closed: a child that was forked meanwhile must not keep it.
        fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)
