"""Data directories of embedded servers, and programs that use them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.server.embedded.server import EmbeddedServer
from tests.server.embedded.helpers import User, clean


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A data directory whose server and watcher end with the test."""
    data = tmp_path / "data"
    yield data
    clean(data)


@pytest.fixture
def embedded(data: Path) -> Iterator[EmbeddedServer]:
    embedded = EmbeddedServer(data)
    yield embedded
    embedded.release()


@pytest.fixture
def start_user(data: Path) -> Iterator[Callable[..., User]]:
    users: list[User] = []

    def start(folder: Path = data, **environment: str) -> User:
        users.append(User(folder, **environment))
        users[-1].send("wait")
        return users[-1]

    yield start
    for user in users:
        user.kill()
