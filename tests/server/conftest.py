import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.server.embedded.server import EmbeddedServer
from tests.server.helpers import Server, User, clean


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PENSTOCK_EMBEDDED_LINGER", "0.3")
    # Programs that tests start import the same package and tests.
    here = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{here / 'src'}:{here}")


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


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    running: list[Server] = []

    def start(*options: str, port: int = 0) -> Server:
        running.append(Server(tmp_path / f"server{len(running)}", *options, port=port))
        return running[-1]

    yield start
    for server in running:
        server.stop()
