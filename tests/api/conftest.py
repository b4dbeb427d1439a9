"""An app on a real server for each test, and nothing left of it at the end."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock import Penstock
from penstock.engine.repair.audit import audit
from tests.conftest import namespace
from tests.engine.factories import raw


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """The single server, or what `on_both` asks for."""
    return str(request.getfixturevalue(getattr(request, "param", "single")).url)


@pytest.fixture
async def unhandled() -> AsyncIterator[list[dict[str, Any]]]:
    """What reached the event loop because nobody awaited it; nothing may."""
    found: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: found.append(context))
    yield found
    loop.set_exception_handler(None)
    assert found == []


@pytest.fixture
async def app(url: str, unhandled: list[dict[str, Any]]) -> AsyncIterator[Penstock]:
    """An app of its own namespace; whatever the test did, every invariant holds at its end."""
    made = Penstock(namespace(), url=url)
    try:
        yield made
        assert await audit(made.client.engine) == []
    finally:
        engine = made.client.engine
        await (await raw(engine)).delete(*engine.all_keys())
        await made.aclose()
