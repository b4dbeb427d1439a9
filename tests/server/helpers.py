"""Servers, processes and conditions that the tests of the server layer share."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis

from penstock.errors import PenstockError
from penstock.server.embedded.binary import find_binary
from penstock.server.embedded.daemon import SERVER, WATCHER, owner_at
from penstock.server.embedded.paths import path_lock, socket_path
from penstock.server.endpoint import Endpoint
from penstock.server.urls import parse
from tests.server.fakes import Answer, serving
from tests.servers import free_pair

USER = Path(__file__).with_name("user.py")
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


def servers(data: Path) -> list[int]:
    """All server processes on the data directory's socket, whatever the lock files say."""
    return _processes(f"unixsocket:{socket_path(data)}")


def watchers(data: Path) -> list[int]:
    return _processes(f"daemon.py watch {data} ")


def _processes(words: str) -> list[int]:
    lines = subprocess.run(["ps", "-axww", "-o", "pid=,args="], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in lines.splitlines() if words in line + " "]


def server_pid(data: Path) -> int:
    pid = owner_at(data, SERVER)
    assert pid is not None, "no server"
    return pid


def watcher_pid(data: Path) -> int:
    return until(lambda: owner_at(data, WATCHER) or 0)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_all(data: Path) -> None:
    """Kill the watcher and the server, and wait until both are gone."""
    for pid in watchers(data) + servers(data):
        kill(pid)
    until(lambda: not watchers(data) + servers(data))


def clean(data: Path) -> None:
    kill_all(data)
    socket_path(data).unlink(missing_ok=True)
    path_lock(data).unlink(missing_ok=True)


class User:
    """A program that uses the embedded server; ``user.py`` lists its commands."""

    def __init__(self, data: Path, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(USER), str(data)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | environment,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, command: str) -> str:
        self.send(command)
        return self.read()

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> None:
        """Let it end by itself, and wait until it has."""
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate(timeout=20)


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


StartUser = Callable[..., User]
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
