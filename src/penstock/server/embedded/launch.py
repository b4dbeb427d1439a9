"""Starting the embedded server and its watcher, and saying why that failed."""

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
from penstock.server.embedded.paths import INSTEAD, path_lock, socket_path
from penstock.server.embedded.probe import point

LINGER_VARIABLE = "PENSTOCK_EMBEDDED_LINGER"
DEFAULT_LINGER = "5"
LONGEST_LOG = 1 << 20
TAIL_LINES = 8
_AOF = "appendonly.aof"
_EMPTY_BASE = 512  # bytes; such a file without any data has about a hundred

# The manual of what each failure's text in the log means, most particular first.
MEANINGS = (
    ("No space left on device", "The disk is full: make room on it."),
    ("Permission denied", "The directory or a file in it belongs to someone else: change that, or name another."),
    ("reading the append only file", "Its append-only file is damaged. To cut off the damaged end, run: {repair}"),
    ("Wrong signature", "Its data is damaged: move {data}/appendonlydir away to begin anew, or restore it."),
    ("Can't handle RDB format", "Its data was written by a newer server: install that, or name another directory."),
)


def server(data: Path) -> int:
    """Start a server; give the place in the log where its own words begin."""
    begin = _trim_log(data / daemon.LOG)
    refuse_lost_manifest(data)
    socket = socket_path(data)
    _run(data, "serve", str(path_lock(data)), str(find_binary()), *_options(socket))
    point(data, socket, daemon.owner_at(data, daemon.SERVER))
    return begin


def watcher(data: Path) -> None:
    linger = os.environ.get(LINGER_VARIABLE) or DEFAULT_LINGER
    try:
        _run(data, "watch", str(float(linger)), str(path_lock(data)))
    except ValueError:
        raise BadOption(f"${LINGER_VARIABLE} is {linger!r}, which is no number of seconds.") from None


def refuse_lost_manifest(data: Path) -> None:
    """Refuse to start where there are data files without the list of them: the server would begin empty, in silence."""
    folder = data / "appendonlydir"
    if (folder / f"{_AOF}.manifest").exists() or not any(map(_has_data, folder.glob(f"{_AOF}.*"))):
        return
    raise Unavailable(
        f"The embedded server in {data} was not started: {folder} has data files, but not {_AOF}.manifest, which lists "
        "them: a server would begin empty and leave them unread. Restore that file from where the directory was "
        f"copied from, or move {folder} away to begin anew."
    )


def _has_data(file: Path) -> bool:
    """Whether it has more than a server that was killed during its very first start leaves behind."""
    return ".manifest" not in file.name and file.stat().st_size > (_EMPTY_BASE if ".base." in file.name else 0)


def last_words(data: Path, begin: int) -> str:
    """Read what the server wrote to its log since it was started."""
    with contextlib.suppress(OSError), (data / daemon.LOG).open("rb") as log:
        log.seek(begin)
        return log.read().decode(errors="replace").strip()
    return ""


def is_hopeless(words: str) -> bool:
    """Whether another start would end the same way; a server that was killed says nothing of the kind."""
    return any(sign in words for sign, _ in MEANINGS)


def trouble(data: Path, words: str, problem: str) -> Unavailable:
    """Make one error of what is known: the problem, what to do, and the server's last words."""
    last = "".join(f"\n  {line}" for line in words.splitlines()[-TAIL_LINES:])
    return CannotConnect(f"The embedded server in {data} did not start: {problem}. {_advice(data, words)}{last}")


def _advice(data: Path, words: str) -> str:
    for sign, meaning in MEANINGS:
        if sign in words:
            return meaning.format(data=data, repair=_repair(data, words))
    return f"See {data / daemon.LOG}, or {INSTEAD}."


def _repair(data: Path, words: str) -> str:
    """Spell the command that repairs the file which the log names; the server's program does it under another name."""
    named = re.search(r"reading the append only file ([^\s:]+)", words)
    file = data / "appendonlydir" / (named[1] if named else "FILE")
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


def _run(data: Path, role: str, *arguments: str) -> None:
    # -I -S: nothing of the user's environment, and a start of 20 ms. The new session keeps Ctrl-C away.
    command = [_python(), "-I", "-S", daemon.__file__, role, str(data), *arguments]
    try:
        done = subprocess.run(  # noqa: S603 - our own file
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
    # Killed, as when someone ends all that belongs to the server: the caller sees that there is none, and tries again.
    if done.returncode > 0:
        raise _cannot_start(data, done.stderr.strip())


def _cannot_start(data: Path, problem: str) -> Unavailable:
    return CannotConnect(f"The embedded server in {data} cannot be started ({problem}): {INSTEAD}.")


def _python() -> str:
    # Where Python is part of another program, such as uWSGI, that program is what `sys.executable` names.
    if Path(sys.executable or "-").name.startswith("python"):
        return sys.executable
    return str(Path(sys.exec_prefix, "bin", "python3"))


def _trim_log(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        size = path.stat().st_size
        if size < LONGEST_LOG:
            return size
        path.replace(path.with_suffix(".log.1"))
    return 0
