"""Where an embedded server may keep its data, and where its socket and its locks go."""

import hashlib
import os
import shlex
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import UnsuitableServer
from penstock.model.ownership import user_name
from penstock.server.embedded.daemon import LOG, OTHERS_WRITE, SERVER, START, USERS, WATCHER, open_own
from penstock.server.urls import MAX_SOCKET_PATH_BYTES

POINTER_FILE = "server.json"

OTHER_SERVER = "set $PENSTOCK_URL to the URL of a Redis or Valkey server"
_ELSEWHERE = f"or name a directory of your own, embedded:///some/directory, or {OTHER_SERVER}"
_AOF_FOLDER = "appendonlydir"
_OUR_FILES = (USERS, START, SERVER, WATCHER, LOG, POINTER_FILE, _AOF_FOLDER)
MOUNTS_FILE = Path("/proc/self/mountinfo")
# Other machines do not see locks on these, or not reliably. 9p is missing because gVisor shows its disk as one.
NETWORK_FILE_SYSTEMS = frozenset(
    {"afs", "beegfs", "ceph", "cifs", "coda", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb2"}
    | {"smb3", "smbfs", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs", "fuse.rclone", "fuse.s3fs"}
    | {"fuse.smbnetfs", "fuse.sshfs"}
)


def refuse_unsafe(data: Path) -> None:
    """Raise where an embedded server would be a mistake."""
    if os.environ.get("PENSTOCK_ENV", "").lower() == "production":
        raise UnsuitableServer(
            "The embedded server is for development, and $PENSTOCK_ENV is production: "
            f"{OTHER_SERVER} that is run for it."
        )
    kind = filesystem(data)
    if kind in NETWORK_FILE_SYSTEMS:
        raise UnsuitableServer(
            f"The embedded server cannot keep its data in {data}, which is on a network file system ({kind}): name a "
            f"local directory, embedded:///some/directory, or {OTHER_SERVER}."
        )


def filesystem(path: Path) -> str | None:
    """The type of the file system that a path is on; None where it is unknown."""
    try:
        lines = MOUNTS_FILE.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    mounts = [(Path(_unescape(fields[4])), fields) for fields in map(str.split, lines)]
    # The longest mount point above the path; of several with the same path, the last covers the others.
    above = [(len(point.parts), at, fields) for at, (point, fields) in enumerate(mounts) if path.is_relative_to(point)]
    fields = max(above)[2] if above else []
    return fields[fields.index("-") + 1] if "-" in fields else None


def _unescape(text: str) -> str:
    for code in ("040", "011", "012", "134"):
        text = text.replace(f"\\{code}", chr(int(code, 8)))
    return text


def make_data_dir(data: Path) -> None:
    """Make the directory if it is not there, and raise if it is somebody else's."""
    try:
        data.parent.mkdir(parents=True, exist_ok=True)
        try:
            data.mkdir(mode=0o700)
        except FileExistsError:
            refuse_foreign(data)
        else:
            # It may be created beside pyproject.toml, and does not belong into a repository.
            os.write(ignore := open_own(data / ".gitignore", os.O_WRONLY | os.O_CREAT), b"*\n")
            os.close(ignore)
    except OSError as error:
        raise unwritable(data, error) from error


def refuse_foreign(data: Path) -> None:
    """Raise if others own the directory or a file in it, or may write there.

    They could put locks and a socket of theirs there and read what is enqueued, or have the server load their jobs.
    """
    for path in (data, *(data / name for name in _OUR_FILES), *(data / _AOF_FOLDER).glob("*")):
        try:
            info = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        if problem := _problem(data, path, info):
            raise UnsuitableServer(f"The embedded server does not use {data}: {problem}")


def _problem(data: Path, path: Path, info: os.stat_result) -> str:
    """What is wrong with a file of the data directory, and what to do; empty if it is ours alone."""
    owner, me = info.st_uid, os.geteuid()
    if owner != me:
        whose = f"{path} belongs to user {user_name(owner)}, who could read and change the jobs of user {user_name(me)}"
        return f"{whose}, as whom this program runs. Run it as {user_name(owner)}, {_ELSEWHERE}."
    if stat.S_ISLNK(info.st_mode):
        return f"{path} is a symbolic link. Remove it, {_ELSEWHERE}."
    if info.st_mode & OTHERS_WRITE:
        mode, close = stat.S_IMODE(info.st_mode), f"chmod -R go-w {shlex.quote(str(data))}"
        return f"others may write to {path} (mode {mode:04o}). Run {close}, {_ELSEWHERE}."
    return ""


def unwritable(data: Path, error: OSError) -> UnsuitableServer:
    return UnsuitableServer(
        f"The embedded server cannot keep its data in {data} ({error.strerror}): make that a directory of yours with "
        f"room on its disk, or name another, embedded:///some/directory, or {OTHER_SERVER}."
    )


def path_lock(data: Path) -> Path:
    """The lock of the server that serves this path, outside of the directory, which may have been removed.

    It must be the same for all users of one machine, so it is not below `$XDG_RUNTIME_DIR`.
    """
    name = hashlib.blake2b(os.fsencode(data), digest_size=8).hexdigest() + ".lock"
    shared = (Path(folder, f"penstock-{os.geteuid()}") for folder in ("/tmp", tempfile.gettempdir()))  # noqa: S108 - as below
    return next(filter(_is_private, shared), data) / name


def socket_path(data: Path) -> Path:
    """The socket of a data directory; its path must be short, because socket addresses end at 107 bytes."""
    # Named after the directory's inode, too: a server whose directory was removed deletes its socket as it ends, which
    # must not be the socket of a new directory at the same path.
    identity = f"{data.stat().st_ino if data.exists() else 0}".encode() + os.fsencode(data)
    name = hashlib.blake2b(identity, digest_size=8).hexdigest() + ".sock"
    for folder in _runtime_dirs(data):
        path = folder / name
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES and _is_private(folder):
            return path
    raise UnsuitableServer(
        "There is no directory for the embedded server's socket: set $XDG_RUNTIME_DIR to a directory with a short "
        f"path that only you can enter, or {OTHER_SERVER}."
    )


def _runtime_dirs(data: Path) -> Iterator[Path]:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if Path(runtime).is_absolute() and _is_private(Path(runtime), make=False):
        yield Path(runtime, "penstock")
    yield Path(tempfile.gettempdir(), f"penstock-{os.geteuid()}")
    yield Path("/tmp", f"penstock-{os.geteuid()}")  # noqa: S108 - used only when it is ours alone
    yield data


def _is_private(folder: Path, *, make: bool = True) -> bool:
    """Whether a directory is ours and closed to others, who could otherwise put their own socket there."""
    try:
        if make:
            folder.mkdir(mode=0o700, exist_ok=True)
        info = folder.lstat()
    except OSError:
        return False
    is_ours = stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid()
    return is_ours and not info.st_mode & 0o077 and os.access(folder, os.W_OK)
