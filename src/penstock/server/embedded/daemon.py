"""What runs beside the users' processes: starting the embedded server, and stopping it after its last user.

This file is also run by its path, with nothing but the standard library: as a module it would import the whole
application, which takes ten times as long and stays in memory. Three lock files in the data directory say who is there,
and the kernel frees each with the process that holds it, so that nothing is ever stale:

- ``users.lock``   flock, shared: every process that uses the server
- ``start.lock``   flock, exclusive: whoever starts or stops a server
- ``server.lock``, ``watcher.lock``   record locks, of which the kernel tells the owner's pid: the server, the watcher

These go with the directory if somebody removes it, but its server lives on. So there is one more record lock, outside
of it and named after its path: the server that was started for this path owns it.
"""

import fcntl
import os
import signal
import struct
import sys
import time
from pathlib import Path

USERS = "users.lock"
START = "start.lock"
SERVER = "server.lock"
WATCHER = "watcher.lock"
LOG = "server.log"

# struct flock: where the kernel puts the owner of a conflicting lock.
LAYOUT = "qqihh" if sys.platform == "darwin" else "hhqqi"
LONGEST_STOP = 10.0
POLL = 0.02


def open_lock(data: Path, name: str) -> int:
    return os.open(data / name, os.O_RDWR | os.O_CREAT, 0o600)


def owner(lock: int) -> int | None:
    """Ask the kernel which process owns a record lock; 0 or less is one in another container."""
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
    """Send a signal to the owner of a record lock, and to no process that got its pid meanwhile."""
    pid = owner(lock)
    if pid is None or pid <= 0:
        return
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError):
        handle = None  # not Linux, an old kernel, or gone
    # Still the owner after the handle was made: then the handle is of the owner.
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
    """End the server and wait until it is gone; what was written is on disk or in the kernel's hands."""
    signal_owner(lock, signal.SIGTERM)
    late = time.monotonic() + LONGEST_STOP
    while (owner(lock) or 0) > 0:
        if time.monotonic() > late:
            signal_owner(lock, signal.SIGKILL)
        time.sleep(POLL)


def serve(data: Path, path_lock: Path, command: list[str]) -> None:
    """Become the server, which owns ``server.lock`` and the lock of its path for as long as it lives."""
    locks = open_lock(data, SERVER), open_lock(path_lock.parent, path_lock.name)
    # The second may have been removed between being opened and owned: whoever started this tries again.
    if all(map(_own, locks)) and _is_at(path_lock, locks[1]):
        for lock in locks:
            os.set_inheritable(lock, True)  # noqa: FBT003 - its only form
        os.execv(command[0], command)  # noqa: S606 - the binary that was found for this


def watch(data: Path, linger: float, path_lock: Path) -> None:
    """Stop the server when its last user has been gone for a while, however it went."""
    users, start, server, watcher = (open_lock(data, name) for name in (USERS, START, SERVER, WATCHER))
    if not _own(watcher):
        return
    while not (_left_alone(users, linger) and _take_all(users, start)):
        pass
    stop(server)
    if _own(open_lock(path_lock.parent, path_lock.name)):  # else another directory has taken the place of this one
        path_lock.unlink(missing_ok=True)
    # First of all locks: a newcomer that gets the others must see that nobody watches any more.
    fcntl.lockf(watcher, fcntl.LOCK_UN)


def _is_at(path: Path, lock: int) -> bool:
    try:
        return os.path.samestat(os.fstat(lock), path.stat())
    except FileNotFoundError:
        return False


def _own(lock: int) -> bool:
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False  # another process does already what this one was started for
    return True


def _left_alone(users: int, linger: float) -> bool:
    fcntl.flock(users, fcntl.LOCK_EX)
    last = os.fstat(users).st_mtime_ns
    fcntl.flock(users, fcntl.LOCK_UN)
    time.sleep(linger)
    # Each user touches the file as it comes: one that came and went again gets a linger of its own.
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
    return struct.pack(LAYOUT, *(values[name] for name in _names()))


def _unpack(raw: bytes) -> dict[str, int]:
    return dict(zip(_names(), struct.unpack_from(LAYOUT, raw), strict=True))


def _names() -> tuple[str, ...]:
    if sys.platform == "darwin":
        return ("l_start", "l_len", "l_pid", "l_type", "l_whence")
    return ("l_type", "l_whence", "l_start", "l_len", "l_pid")


def detach(data: Path) -> None:
    """Leave the user's session, terminal, directory and signals behind."""
    os.umask(0o077)
    os.chdir(data)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    log = os.open(data / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)


def main(role: str, folder: str, *rest: str) -> None:
    """Go on as a grandchild of the caller, who waits only until the work has begun."""
    data = Path(folder)
    begun, tell = os.pipe()
    if os.fork():
        os.close(tell)
        sys.exit(os.read(begun, 4096).decode() or 0)
    os.close(begun)
    try:
        detach(data)
        if role == "serve":
            serve(data, Path(rest[0]), list(rest[1:]))
    except OSError as error:
        os.write(tell, str(error).encode())
    os.close(tell)
    if role == "watch":
        watch(data, float(rest[0]), Path(rest[1]))


if __name__ == "__main__":
    main(*sys.argv[1:])
