"""The port on which a worker shows its health: on this machine only, unless a host is named."""

import socket
from pathlib import Path

import click
import pytest

from penstock.cli.worker import listen_address
from tests.cli.shell import Shell
from tests.servers import Server


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("8080", ("127.0.0.1", 8080)),
        (":8080", ("127.0.0.1", 8080)),
        ("0.0.0.0:8080", ("0.0.0.0", 8080)),
        ("localhost:0", ("localhost", 0)),
        ("[::]:8080", ("::", 8080)),
    ],
)
def test_only_this_machine_may_ask_unless_a_host_is_named(text: str, found: tuple[str, int]) -> None:
    assert listen_address(text) == found


@pytest.mark.parametrize("text", ["", "http", "8080:", "127.0.0.1:65536"])
def test_a_text_that_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="use a port, or host:port"):
        listen_address(text)


def test_a_port_in_use_is_a_failure_that_says_what_to_do(tmp_path: Path, single: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        _, err = Shell(tmp_path, single.url).run("worker", "--health-port", str(port), code=1)
    assert err == f"Error: port {port} of 127.0.0.1 is in use: choose another with --health-port\n"
