"""Embedded servers in tests: their processes, users and answers, and scripts that stand for their binary."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import redis

from penstock.server.embedded.daemon import SERVER, WATCHER, owner_at
from penstock.server.embedded.paths import path_lock, socket_path
from tests.server.helpers import until

USER = Path(__file__).with_name("user.py")

# The promise is 2 s; a loaded machine gets more before the test complains.
SOON = 5.0


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    begin = time.monotonic()
    yield
    taken = time.monotonic() - begin
    print(f"took {taken:.3f} s")
    assert taken < seconds


def ping(path: Path) -> bool:
    with redis.Redis(unix_socket_path=str(path)) as client:
        return bool(client.ping())


def write(path: Path, key: str, value: str) -> None:
    with redis.Redis(unix_socket_path=str(path)) as client:
        client.set(key, value)


def read(path: Path, key: str) -> object:
    with redis.Redis(unix_socket_path=str(path)) as client:
        return client.get(key)


def config(path: Path, name: str) -> object:
    with redis.Redis(unix_socket_path=str(path), decode_responses=True) as client:
        return client.config_get(name)[name]


def script(folder: Path, text: str) -> Path:
    path = folder / "server"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return path


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


StartUser = Callable[..., User]
