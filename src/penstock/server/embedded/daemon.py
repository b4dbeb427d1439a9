"""Background processes: the embedded server, and the watcher that stops it after its last user.

This file is also run by its path, with nothing but the standard library: as a module it would import the whole
application, which takes ten times as long and stays in memory. Lock files in the data directory show who is there; the
kernel frees each with the process that holds it, so none is ever stale:

- ``users.lock``   flock, shared: every process that uses the server
- ``start.lock``   flock, exclusive: the process that starts or stops a server
- ``server.lock``, ``watcher.lock``   record locks, whose owner's pid the kernel reports: the server, the watcher

If the directory is removed these go with it, but its server lives on. So the server also owns a record lock outside of
the directory, named after its path (`paths.path_lock`).
"""

import errno
import fcntl
import os
import signal
import stat
import struct
import sys
import time
from pathlib import Path

USERS = "users.lock"
START = "start.lock"
SERVER = "server.lock"
WATCHER = "watcher.lock"
LOG = "server.log"
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

# struct flock: where the kernel puts the owner of a conflicting lock.
FLOCK_LAYOUT = "qqihh" if sys.platform == "darwin" else "hhqqi"
STOP_TIMEOUT = 10.0  # seconds; then the server is killed
POLL_INTERVAL = 0.02  # seconds


def open_lock(data: Path, name: str) -> int:
    return open_own(data / name, os.O_RDWR | os.O_CREAT)


def open_own(path: Path, flags: int) -> int:
    """Open a file that is ours alone. A link, or a file that others own or may write to, could be anybody's trap."""
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    info = os.fstat(file)
    if stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & OTHERS_WRITE:
        return file
    os.close(file)
    raise PermissionError(errno.EPERM, "it belongs to somebody else, or others may write to it", str(path))


def owner(lock: int) -> int | None:
    """The pid of the process that owns a record lock, 0 or less if it is in another container."""
    question = {"l_type": fcntl.F_WRLCK, "l_whence": os.SEEK_SET, "l_start": 0, "l_len": 0, "l_pid": 0}
    answer = _unpack(fcntl.fcntl(lock, fcntl.F_GETLK, _pack(question)))
    return None if answer["l_type"] == fcntl.F_UNLCK else answer["l_pid"]


def owner_at(data: Path, name: str) -> int | None:
    lock = open_lock(data, name)
    try:
        return owner(lock)
    finally:
        os.close(lock)


def signal_owner(lock: int, number: signal.Signals) -> None:
    """Send a signal to the owner of a record lock, but not to a new process with the same pid."""
    pid = owner(lock)
    if pid is None or pid <= 0:
        return
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError):
        handle = None  # not Linux, an old kernel, or gone
    # If it still owns the lock after the handle was opened, the handle is its own.
    if owner(lock) == pid:
        _send(pid, handle, number)
    if handle is not None:
        os.close(handle)


def _send(pid: int, handle: int | None, number: signal.Signals) -> None:
    try:
        if handle is None:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        pass  # it ended by itself


def signal_owner_at(data: Path, name: str, number: signal.Signals) -> None:
    lock = open_lock(data, name)
    try:
        signal_owner(lock, number)
    finally:
        os.close(lock)


def stop(lock: int) -> None:
    """End the server and wait until it is gone; what was written is on disk or with the kernel."""
    signal_owner(lock, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT
    while (owner(lock) or 0) > 0:
        if time.monotonic() > deadline:
            signal_owner(lock, signal.SIGKILL)
        time.sleep(POLL_INTERVAL)


def serve(data: Path, path_lock: Path, command: list[str]) -> None:
    """Turn this process into the server, which owns ``server.lock`` and the lock of its path until it ends."""
    locks = open_lock(data, SERVER), open_lock(path_lock.parent, path_lock.name)
    # If the second was removed between being opened and owned, the caller tries again.
    if all(map(_own, locks)) and is_same_file(locks[1], path_lock):
        for lock in locks:
            os.set_inheritable(lock, True)  # noqa: FBT003 - its only form
        os.execv(command[0], command)  # noqa: S606 - the binary that was found for this


def watch(data: Path, linger: float, path_lock: Path) -> None:
    """Stop the server when nobody has used it for so many seconds, whether its users ended or were killed."""
    users, start, server, watcher = (open_lock(data, name) for name in (USERS, START, SERVER, WATCHER))
    if not _own(watcher):
        return
    while not (_was_unused(users, linger) and _take_all(users, start)):
        pass
    stop(server)
    if _own(open_lock(path_lock.parent, path_lock.name)):  # else it serves a new directory at this path
        path_lock.unlink(missing_ok=True)
    # Before the other locks: a new user that gets those must see that there is no watcher any more.
    fcntl.lockf(watcher, fcntl.LOCK_UN)


def is_same_file(lock: int, path: Path) -> bool:
    """Whether the file of an open lock is still at its path."""
    try:
        return os.path.samestat(os.fstat(lock), path.stat())
    except FileNotFoundError:
        return False


def _own(lock: int) -> bool:
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False  # another process already does what this one was started for
    return True


def _was_unused(users: int, linger: float) -> bool:
    fcntl.flock(users, fcntl.LOCK_EX)
    last = os.fstat(users).st_mtime_ns
    fcntl.flock(users, fcntl.LOCK_UN)
    time.sleep(linger)
    # Each new user touches the file: if one came and went meanwhile, the time starts again.
    return os.fstat(users).st_mtime_ns == last


def _take_all(users: int, start: int) -> bool:
    fcntl.flock(start, fcntl.LOCK_EX)
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(start, fcntl.LOCK_UN)
        return False
    return True


def _pack(values: dict[str, int]) -> bytes:
    return struct.pack(FLOCK_LAYOUT, *(values[name] for name in _names()))


def _unpack(raw: bytes) -> dict[str, int]:
    return dict(zip(_names(), struct.unpack_from(FLOCK_LAYOUT, raw), strict=True))


def _names() -> tuple[str, ...]:
    if sys.platform == "darwin":
        return ("l_start", "l_len", "l_pid", "l_type", "l_whence")
    return ("l_type", "l_whence", "l_start", "l_len", "l_pid")


def detach(data: Path) -> None:
    """Drop the terminal, directory and signal settings of the user who started this."""
    os.umask(0o077)
    os.chdir(data)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    log = open_own(data / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)


def main(role: str, folder: str, *rest: str) -> None:
    """Go on as a grandchild of the caller, which waits only until the work has started."""
    data = Path(folder)
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        sys.exit(os.read(reading, 4096).decode() or 0)
    os.close(reading)
    try:
        detach(data)
        if role == "serve":
            serve(data, Path(rest[0]), list(rest[1:]))
    except OSError as error:
        os.write(writing, str(error).encode())
    os.close(writing)
    if role == "watch":
        watch(data, float(rest[0]), Path(rest[1]))


if __name__ == "__main__":
    main(*sys.argv[1:])
