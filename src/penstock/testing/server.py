"""The server of a test run: one for all of its processes, in a directory of its own, gone with the last of them."""

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

from penstock.server.embedded.launch import LINGER_VARIABLE
from penstock.server.embedded.server import EmbeddedServer

VARIABLE = "PENSTOCK_TEST_URL"  #: a server to test on instead


def serve(folder: Path) -> tuple[str, EmbeddedServer]:
    """The URL of an embedded server with its data there, and a hold on it: it ends soon after the last release."""
    user = EmbeddedServer(folder, announce=False)
    before = os.environ.get(LINGER_VARIABLE)
    os.environ[LINGER_VARIABLE] = before or "0.5"
    try:
        return f"unix://{user.ensure()}", user
    finally:
        if before is None:
            del os.environ[LINGER_VARIABLE]


@cache
def default_url() -> str:
    """$PENSTOCK_TEST_URL, or a server that this process starts with the first use and leaves with its end."""
    if given := os.environ.get(VARIABLE):
        return given
    folder = Path(tempfile.mkdtemp(prefix="penstock-testing-"))
    url, user = serve(folder)
    atexit.register(_end, user, folder)
    return url


def _end(user: EmbeddedServer, folder: Path) -> None:
    user.release()
    shutil.rmtree(folder, ignore_errors=True)
