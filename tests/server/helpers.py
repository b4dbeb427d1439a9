"""Servers and conditions that the tests of the server layer share."""

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis

from penstock.errors import PenstockError
from penstock.server.embedded.binary import find_binary
from penstock.server.endpoint import Endpoint
from penstock.server.urls import parse
from tests.server.fakes import Answer, serving
from tests.servers import free_pair

SLOT_KEY = b"penstock:{test}:meta"
T = TypeVar("T")


def until(condition: Callable[[], T], timeout: float = 10.0) -> T:
    """Poll until the condition is true, and return its value."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"still not true after {timeout} s"
        time.sleep(0.01)
    return value


def is_alive(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


class Server:
    """A real server on a TCP port of its own."""

    def __init__(self, folder: Path, *options: str, port: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = port or free_pair()
        self.process = subprocess.Popen(
            [str(find_binary()), "--port", str(self.port), "--save", "", "--appendonly", "yes", *options],
            stdout=subprocess.DEVNULL,
            cwd=folder,
        )
        try:
            until(self._listens)
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def ask(self, *command: str | int) -> object:
        with redis.Redis(port=self.port) as client:
            return client.execute_command(*command)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False


StartServer = Callable[..., Server]


def endpoint(url: str, **options: Any) -> Endpoint:
    return Endpoint(parse(url), slot_key=SLOT_KEY, **options)


def refusal(url: str, deadline: float = 0.3) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        endpoint(url, deadline=deadline).client_sync()
    return caught.value


def refusal_of(answer: Answer, scheme: str = "redis://", deadline: float = 0.3) -> PenstockError:
    with serving(answer) as port:
        return refusal(f"{scheme}127.0.0.1:{port}", deadline)
