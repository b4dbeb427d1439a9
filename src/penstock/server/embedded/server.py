"""The embedded server: started by whoever needs it first, shared by all, stopped after the last.

Nothing here is ever stale: who is alive is told by locks that the kernel frees with their process (see ``daemon``).
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
from penstock.server.embedded import launch
from penstock.server.embedded.daemon import POLL, SERVER, START, USERS, WATCHER, open_lock, owner_at, signal_owner_at
from penstock.server.embedded.paths import INSTEAD, make_data_dir, refuse_unsafe, unwritable
from penstock.server.embedded.probe import View, is_ready, look, look_behind

# Without any progress; loading much data is progress.
DEADLINE = 10.0
# How long a server that lives may be missing from its socket: it may be about to open or close it.
GRACE = 1.0
# How long it may take to end; then it is killed, which loses no more than the writes that an fsync under way holds up.
LONGEST_END = 3.0
STARTS = 5
log = logging.getLogger("penstock.embedded")


class EmbeddedServer:
    """One user of a data directory's server, who lives no longer than this process."""

    def __init__(self, data: Path, *, announce: bool = True) -> None:
        self._users: int | None = None
        self._socket = Path()  #: of the server that was found last
        self._releases = 0
        self._data = data.resolve()
        self._announced = not announce
        alive = weakref.WeakMethod(self.release)
        # A forked child is a user only once it asks for the server itself.
        os.register_at_fork(after_in_child=lambda: (release := alive()) and release())

    def __del__(self) -> None:
        self.release()

    def ensure(self) -> Path:
        """Give the socket of a server that answers, and start one if need be; until ``release`` it stays."""
        releases = self._releases
        refuse_unsafe(self._data)
        if (left := self._left_behind()) is not None:
            return left
        make_data_dir(self._data)
        try:
            self._join()
            socket = _Starter(self._data).run()
            if owner_at(self._data, WATCHER) is None:
                launch.watcher(self._data)
        except OSError as error:
            raise unwritable(self._data, error) from error
        self._announce(socket)
        self._socket = socket
        if self._releases != releases:
            self._leave()  # released by another thread while this one waited
        return socket

    def _left_behind(self) -> Path | None:
        """The socket of the server that this uses, if its directory is gone while it still runs.

        All who use it stay with it, as it alone has their data, and nobody else begins a second one.
        """
        if self._users is None or _is_same(self._users, self._data / USERS):
            return None
        pid = look_behind(self._data)
        if pid is None or not is_ready(self._socket, pid):
            return None
        log.error("%s", displaced(self._data, pid))
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
        if self._users is not None and _is_same(self._users, self._data / USERS):
            return
        lock = open_lock(self._data, USERS)
        end = time.monotonic() + DEADLINE
        # Only the watcher takes it exclusively, while it stops a server that nobody uses.
        while not _take(lock, fcntl.LOCK_SH):
            if time.monotonic() > end:
                os.close(lock)
                raise Unavailable(f"The embedded server in {self._data} is being stopped for too long: try again.")
            time.sleep(POLL)
        os.utime(lock)
        self._leave()
        self._users = lock

    def _announce(self, socket: Path) -> None:
        if not self._announced:
            log.warning(
                "Using an embedded server, for development: its data is in %s, its socket %s", self._data, socket
            )
        self._announced = True


def used_lately(data: Path, seconds: float) -> bool:
    """Whether somebody has used the embedded server there within this time."""
    with contextlib.suppress(OSError):
        return time.time() - (data / USERS).stat().st_mtime < seconds
    return False


class _Starter:
    """One wait for a server that is ready; whoever gets ``start.lock`` does what it takes."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._starts = 0
        self._signals = iter((signal.SIGTERM,))
        self._log_from = 0
        self._progress(loaded=0)

    def _progress(self, loaded: int) -> None:
        self._loaded = loaded
        self._late = time.monotonic() + DEADLINE
        self._lost = time.monotonic() + GRACE

    def run(self) -> Path:
        view = look(self._data)
        if view.state == "ready":
            return view.socket
        with _start_lock(self._data) as lock:
            return self._wait(lock)

    def _wait(self, lock: int) -> Path:
        alone = False
        while (view := look(self._data)).state != "ready":
            self._check(view)
            if alone:
                self._act(view)
            elif alone := _take(lock, fcntl.LOCK_EX):
                # Whatever was seen without the lock may have been changed by who had it: look again.
                self._lost = time.monotonic() + GRACE
                continue
            time.sleep(POLL)
        return view.socket

    def _check(self, view: View) -> None:
        if view.state == "loading" and view.loaded > self._loaded:
            self._progress(view.loaded)
        if time.monotonic() > self._late:
            raise launch.trouble(self._data, self._last_words(), _stuck(view))

    def _act(self, view: View) -> None:
        if view.state == "down":
            if (pid := look_behind(self._data)) is None:
                self._start()
            elif time.monotonic() > self._lost:  # else it may be about to end
                raise displaced(self._data, pid)
        elif view.state == "unreachable":
            self._end(view)

    def _start(self) -> None:
        if self._starts:
            self._wonder()
        self._starts += 1
        self._log_from = launch.server(self._data)
        self._progress(loaded=0)

    def _wonder(self) -> None:
        """Give up on a server that ended after its start, unless it may have been killed."""
        words = self._last_words()
        if self._starts == STARTS or launch.is_hopeless(words):
            raise launch.trouble(self._data, words, "it ended as soon as it was started")

    def _last_words(self) -> str:
        return launch.last_words(self._data, self._log_from) if self._starts else ""

    def _end(self, view: View) -> None:
        """End a server that lost its socket, as when someone cleans up a directory of temporary files."""
        if view.pid <= 0:
            raise Unavailable(
                f"The data in {self._data} is used by an embedded server of another container: give each its own "
                f"directory, embedded:///some/directory, or {INSTEAD}."
            )
        if time.monotonic() > self._lost:
            signal_owner_at(self._data, SERVER, next(self._signals, signal.SIGKILL))
            self._lost = time.monotonic() + LONGEST_END


def displaced(data: Path, pid: int) -> Unavailable:
    """Make one error of what is known of a server that goes on without its directory."""
    return Unavailable(
        f"The directory {data} was removed, moved or replaced while its embedded server (process {pid}) runs: what "
        "that server has is in its memory alone, or where the directory was moved to, and no second one is started "
        "beside it. Put the directory back if it was moved. Otherwise end the programs that use the server, which then "
        f"ends too, and use {data} anew: it begins empty. What the server still has can be read until then, in a "
        "program that is connected to it."
    )


def _stuck(view: View) -> str:
    if view.state == "silent":
        return f"its process {view.pid} does not answer; if it stays so, end that process"
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


def _is_same(lock: int, path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(lock), path.stat())
    return False
