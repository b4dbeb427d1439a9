"""What is known of a data directory's server right now, without taking anybody's word for it."""

import contextlib
import json
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from penstock.server.embedded.daemon import SERVER, owner_at
from penstock.server.embedded.paths import path_lock, socket_path

POINTER = "server.json"
PATIENCE = 1.0

State = Literal["ready", "loading", "silent", "unreachable", "down"]


@dataclass(frozen=True, slots=True)
class View:
    """``down``: no server lives; ``unreachable``: one lives, but not at its socket; ``silent``: it does not answer."""

    state: State
    pid: int = 0
    socket: Path = Path()
    loaded: int = 0  # bytes, while it is loading


def look(data: Path) -> View:
    """Find the server that owns the data directory's lock, and ask it how it is."""
    pid = owner_at(data, SERVER)
    if pid is None:
        return View("down")
    views = (_ask(path, pid) for path in _sockets(data))
    return next((view for view in views if view.state != "unreachable"), View("unreachable", pid))


def look_behind(data: Path) -> int | None:
    """The process that serves this path out of another directory, which was here and was removed or moved away."""
    lock = path_lock(data)
    pid = owner_at(lock.parent, lock.name) if lock.exists() else None
    return None if pid is None or (data.is_dir() and owner_at(data, SERVER) == pid) else pid


def is_ready(path: Path, pid: int) -> bool:
    """Whether this process answers at that socket."""
    return _ask(path, pid).state == "ready"


def point(data: Path, path: Path, pid: int | None) -> None:
    """Leave word of where the socket is: for people, tools, and users with another runtime directory."""
    draft = data / f"{POINTER}.new"
    draft.write_text(json.dumps({"socket": str(path), "pid": pid}) + "\n")
    draft.replace(data / POINTER)


def _sockets(data: Path) -> Iterator[Path]:
    # A hint only: it may be absent, old or spoilt.
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        yield Path(json.loads((data / POINTER).read_text())["socket"])
    yield socket_path(data)


def _ask(path: Path, pid: int) -> View:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(str(path))
            # Whoever answers must be the process that owns the lock; a socket's name proves nothing.
            if _peer(connection) != pid:
                return View("unreachable", pid)
            connection.sendall(b"INFO persistence\r\n")
            return _read(connection.recv(65536), View("ready", pid, path))
    except (TimeoutError, ConnectionResetError, BrokenPipeError):
        return View("silent", pid, path)
    except (OSError, ValueError):
        return View("unreachable", pid)


def _peer(connection: socket.socket) -> int:
    if sys.platform == "darwin":
        return connection.getsockopt(0, 2)  # SOL_LOCAL, LOCAL_PEERPID
    pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid)


def _read(reply: bytes, ready: View) -> View:
    if not reply:
        return View("silent", ready.pid, ready.socket)
    fields = dict(line.split(b":", 1) for line in reply.splitlines() if b":" in line)
    if fields.get(b"loading") == b"1" or reply.startswith(b"-LOADING"):
        return View("loading", ready.pid, ready.socket, int(fields.get(b"loading_loaded_bytes", b"0")))
    return ready
