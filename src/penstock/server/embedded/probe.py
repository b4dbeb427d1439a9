"""The state of a data directory's server right now: from locks and the server itself, as files may be old."""

import contextlib
import json
import os
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from penstock.server.embedded.daemon import SERVER, open_own, owner_at
from penstock.server.embedded.paths import POINTER_FILE, path_lock, socket_path

ANSWER_TIMEOUT = 1.0  # seconds

State = Literal["ready", "loading", "silent", "unreachable", "down"]


@dataclass(frozen=True, slots=True)
class Status:
    """``down``: no server runs; ``unreachable``: one runs, but not at its socket; ``silent``: it does not answer."""

    state: State
    pid: int = 0
    socket: Path = Path()
    loaded: int = 0  # bytes, while it is loading


def probe(data: Path) -> Status:
    """Find the server that owns the data directory's lock, and ask for its state."""
    pid = owner_at(data, SERVER)
    if pid is None:
        return Status("down")
    statuses = (_ask(path, pid) for path in _sockets(data))
    return next((status for status in statuses if status.state != "unreachable"), Status("unreachable", pid))


def displaced_server(data: Path) -> int | None:
    """The process that serves this path from another directory, which was here and was removed or moved away."""
    lock = path_lock(data)
    pid = owner_at(lock.parent, lock.name) if lock.exists() else None
    return None if pid is None or (data.is_dir() and owner_at(data, SERVER) == pid) else pid


def is_ready(path: Path, pid: int) -> bool:
    """Whether this process accepts commands at that socket."""
    return _ask(path, pid).state == "ready"


def write_pointer(data: Path, path: Path, pid: int | None) -> None:
    """Write where the socket is, for people, tools, and users with another runtime directory."""
    draft = data / f"{POINTER_FILE}.new"
    with open(open_own(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:  # noqa: PTH123 - an open file
        file.write(json.dumps({"socket": str(path), "pid": pid}) + "\n")
    draft.replace(data / POINTER_FILE)


def _sockets(data: Path) -> Iterator[Path]:
    # Only a hint: it may be missing, old or damaged.
    with (
        contextlib.suppress(OSError, ValueError, TypeError, KeyError),
        open(open_own(data / POINTER_FILE, os.O_RDONLY)) as file,  # noqa: PTH123 - an open file
    ):
        yield Path(json.load(file)["socket"])
    yield socket_path(data)


def _ask(path: Path, pid: int) -> Status:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_TIMEOUT)
            connection.connect(str(path))
            # The process that listens must be the one that owns the lock, and ours: anybody can create a socket of
            # that name.
            if _peer(connection) != (pid, os.geteuid()):
                return Status("unreachable", pid)
            connection.sendall(b"INFO persistence\r\n")
            return _read(connection.recv(65536), Status("ready", pid, path))
    except (TimeoutError, ConnectionResetError, BrokenPipeError):
        return Status("silent", pid, path)
    except (OSError, ValueError):
        return Status("unreachable", pid)


def _peer(connection: socket.socket) -> tuple[int, int]:
    """The process at the other end, and its user."""
    if sys.platform == "darwin":
        _, uid = struct.unpack_from("2I", connection.getsockopt(0, 1, 76))  # SOL_LOCAL, LOCAL_PEERCRED: a struct xucred
        return connection.getsockopt(0, 2), int(uid)  # LOCAL_PEERPID
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid), int(uid)


def _read(reply: bytes, ready: Status) -> Status:
    if not reply:
        return Status("silent", ready.pid, ready.socket)
    fields = dict(line.split(b":", 1) for line in reply.splitlines() if b":" in line)
    if fields.get(b"loading") == b"1" or reply.startswith(b"-LOADING"):
        return Status("loading", ready.pid, ready.socket, int(fields.get(b"loading_loaded_bytes", b"0")))
    return ready
