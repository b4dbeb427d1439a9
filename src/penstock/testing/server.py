"""The server of a test run: one for all its processes, in a directory of its own; it ends with the last of them."""

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

from penstock.server.embedded.launch import LINGER_VARIABLE
from penstock.server.embedded.server import EmbeddedServer

VARIABLE = "PENSTOCK_TEST_URL"  #: the URL of a server to test on instead


def serve(folder: Path) -> tuple[str, EmbeddedServer]:
    """The URL of an embedded server with its data in `folder`, and its handle; it ends soon after the last release."""
    server = EmbeddedServer(folder, announce=False)
    before = os.environ.get(LINGER_VARIABLE)
    os.environ[LINGER_VARIABLE] = before or "0.5"
    try:
        return f"unix://{server.ensure()}", server
    finally:
        if before is None:
            del os.environ[LINGER_VARIABLE]


@cache
def default_url() -> str:
    """$PENSTOCK_TEST_URL, or a server that this process starts at the first use and ends at its exit."""
    if url := os.environ.get(VARIABLE):
        return url
    folder = Path(tempfile.mkdtemp(prefix="penstock-testing-"))
    url, server = serve(folder)
    atexit.register(_end, server, folder)
    return url


def _end(server: EmbeddedServer, folder: Path) -> None:
    server.release()
    shutil.rmtree(folder, ignore_errors=True)
