"""Starting the embedded server and its watcher, and the errors when that fails."""

import contextlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from penstock.errors import BadOption, CannotConnect, Unavailable
from penstock.server.embedded import daemon
from penstock.server.embedded.binary import environment, find_binary
from penstock.server.embedded.paths import OTHER_SERVER, path_lock, socket_path
from penstock.server.embedded.probe import write_pointer

LINGER_VARIABLE = "PENSTOCK_EMBEDDED_LINGER"
DEFAULT_LINGER = "5"
MAX_LOG_BYTES = 1 << 20
SHOWN_LOG_LINES = 8
_AOF = "appendonly.aof"
_EMPTY_BASE_BYTES = 512  # a base file without any data has about a hundred

# Texts in the log of failures that last, and what to do; the most specific first.
ADVICE = (
    ("No space left on device", "The disk is full: make room on it."),
    ("Permission denied", "The directory or a file in it belongs to someone else: change that, or name another."),
    ("reading the append only file", "Its append-only file is damaged. To cut off the damaged end, run: {repair}"),
    ("Wrong signature", "Its data is damaged: move {data}/appendonlydir away to begin anew, or restore it."),
    ("Can't handle RDB format", "Its data was written by a newer server: install that, or name another directory."),
)


def start_server(data: Path) -> int:
    """Start a server; return the offset in the log at which its lines begin."""
    offset = _trim_log(data / daemon.LOG)
    refuse_lost_manifest(data)
    socket = socket_path(data)
    _run_daemon(data, "serve", str(path_lock(data)), str(find_binary()), *_options(socket))
    write_pointer(data, socket, daemon.owner_at(data, daemon.SERVER))
    return offset


def start_watcher(data: Path) -> None:
    linger = os.environ.get(LINGER_VARIABLE) or DEFAULT_LINGER
    try:
        _run_daemon(data, "watch", str(float(linger)), str(path_lock(data)))
    except ValueError:
        raise BadOption(f"${LINGER_VARIABLE} is {linger!r}, which is no number of seconds.") from None


def refuse_lost_manifest(data: Path) -> None:
    """Raise where there are data files without their manifest: the server would silently start empty."""
    folder = data / "appendonlydir"
    if (folder / f"{_AOF}.manifest").exists() or not any(map(_has_data, folder.glob(f"{_AOF}.*"))):
        return
    raise Unavailable(
        f"The embedded server in {data} was not started: {folder} has data files, but not {_AOF}.manifest, which lists "
        "them: a server would begin empty and leave them unread. Restore that file from where the directory was "
        f"copied from, or move {folder} away to begin anew."
    )


def _has_data(file: Path) -> bool:
    """Whether the file has more than is left by a server that was killed during its first start."""
    return ".manifest" not in file.name and file.stat().st_size > (_EMPTY_BASE_BYTES if ".base." in file.name else 0)


def read_log(data: Path, offset: int) -> str:
    """Read what the server wrote to its log since it was started."""
    with contextlib.suppress(OSError), open(daemon.open_own(data / daemon.LOG, os.O_RDONLY), "rb") as log:  # noqa: PTH123 - an open file
        log.seek(offset)
        return log.read().decode(errors="replace").strip()
    return ""


def is_lasting(log: str) -> bool:
    """Whether another start would fail the same way; a server that was killed logs nothing of the kind."""
    return any(sign in log for sign, _ in ADVICE)


def start_error(data: Path, log: str, problem: str) -> Unavailable:
    """The error for a failed start: the problem, what to do, and the last lines of the log."""
    last = "".join(f"\n  {line}" for line in log.splitlines()[-SHOWN_LOG_LINES:])
    return CannotConnect(f"The embedded server in {data} did not start: {problem}. {_advice(data, log)}{last}")


def _advice(data: Path, log: str) -> str:
    for sign, advice in ADVICE:
        if sign in log:
            return advice.format(data=data, repair=_repair(data, log))
    return f"See {data / daemon.LOG}, or {OTHER_SERVER}."


def _repair(data: Path, log: str) -> str:
    """The command that repairs the file named in the log; the server's binary does it when run under another name."""
    match = re.search(r"reading the append only file ([^\s:]+)", log)
    file = data / "appendonlydir" / (match[1] if match else "FILE")
    return f"(exec -a valkey-check-aof {shlex.quote(str(find_binary()))} --fix {shlex.quote(str(file))})"


def _options(socket: Path) -> list[str]:
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "daemonize": "no",
        "save": "",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "aof-use-rdb-preamble": "yes",
        "maxmemory-policy": "noeviction",
    }
    return [text for name, value in options.items() for text in (f"--{name}", value)]


def _run_daemon(data: Path, role: str, *arguments: str) -> None:
    # -I -S: ignore the user's environment, and start in 20 ms. The new session keeps Ctrl-C away.
    command = [_python(), "-I", "-S", daemon.__file__, role, str(data), *arguments]
    try:
        result = subprocess.run(  # noqa: S603 - our own file
            command,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            start_new_session=True,
            check=False,
        )
    except OSError as error:
        raise _cannot_start(data, str(error)) from error
    # Below 0 it was killed, as when someone ends all processes of the server: the caller finds none and tries again.
    if result.returncode > 0:
        raise _cannot_start(data, result.stderr.strip())


def _cannot_start(data: Path, problem: str) -> Unavailable:
    return CannotConnect(f"The embedded server in {data} cannot be started ({problem}): {OTHER_SERVER}.")


def _python() -> str:
    # Where Python is embedded in another program, such as uWSGI, `sys.executable` is that program.
    if Path(sys.executable or "-").name.startswith("python"):
        return sys.executable
    return str(Path(sys.exec_prefix, "bin", "python3"))


def _trim_log(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        size = path.stat().st_size
        if size < MAX_LOG_BYTES:
            return size
        path.replace(path.with_suffix(".log.1"))
    return 0
