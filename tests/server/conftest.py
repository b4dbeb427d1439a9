import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.helpers import Server


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PENSTOCK_EMBEDDED_LINGER", "0.3")
    # Programs that tests start import the same package and tests.
    here = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{here / 'src'}:{here}")


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    running: list[Server] = []

    def start(*options: str, port: int = 0) -> Server:
        running.append(Server(tmp_path / f"server{len(running)}", *options, port=port))
        return running[-1]

    yield start
    for server in running:
        server.stop()
