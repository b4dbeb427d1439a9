"""Workers as real processes, for each test."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.servers import Server, running
from tests.worker.harness import Crew, crew_at


@pytest.fixture
async def crew(tmp_path: Path, url: str) -> AsyncIterator[Crew]:
    async with crew_at(tmp_path, url) as made:
        yield made


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that the test stops or kills; it keeps its data."""
    with running(Server("--appendonly", "yes", "--appendfsync", "always")) as server:
        yield server
