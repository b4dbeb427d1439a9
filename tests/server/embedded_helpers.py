"""What the tests of the embedded server ask it, and scripts that stand for its binary."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import redis

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
