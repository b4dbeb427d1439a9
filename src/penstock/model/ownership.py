"""Who owns a file, and whether somebody else could have put it there."""

import os
import pwd
import stat
from pathlib import Path
from typing import Final

_ROOT: Final = 0


def user_name(uid: int) -> str:
    """The name of a user, or the number of one without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"number {uid}"


def is_trusted(file: Path) -> bool:
    """Whether only the user of this process, or root, can have written a file and the link that leads to it."""
    try:
        link, target = file.lstat(), file.stat()
    except OSError:
        return False
    trusted = (_ROOT, os.geteuid())
    return link.st_uid in trusted and target.st_uid in trusted and not target.st_mode & stat.S_IWOTH


def resolved(path: Path) -> Path:
    """The path without links, except a last one that somebody else made: whoever opens it is to see that."""
    folder = path.parent.resolve() / path.name
    try:
        link = folder.lstat()
    except OSError:
        return folder.resolve()
    return folder if stat.S_ISLNK(link.st_mode) and link.st_uid not in {_ROOT, os.geteuid()} else folder.resolve()
