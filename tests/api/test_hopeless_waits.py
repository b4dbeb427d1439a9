"""Waiting without a time-out ends when waiting cannot help: a wrong password, a layout that is not known."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from penstock import Penstock
from penstock.errors import CannotConnect, PenstockError, SchemaMismatch
from tests.conftest import namespace
from tests.engine.factories import raw
from tests.servers import Server, running

Wait = Callable[[Penstock, Any], Any]

WAITS: dict[str, Wait] = {
    "result": lambda app, batch: app.hub.waiter.wait("a"),
    "result_sync": lambda app, batch: asyncio.to_thread(app.hub.wait_sync, "a", None),
    "batch": lambda app, batch: batch.wait(),
    "events": lambda app, batch: anext(app.events()),
}


@pytest.fixture
async def opened() -> AsyncIterator[tuple[Server, Penstock, Any]]:
    with running(Server("--appendonly", "no")) as server:
        app = Penstock(namespace(), url=server.url)

        @app.task
        async def nothing() -> None: ...

        async with app:
            await nothing.using(id="a").enqueue()
            batch = app.batch()
            await batch.add(nothing.call())
            yield server, app, batch


def _lock(server: Server) -> None:
    """Another password from now on, and nobody stays connected."""
    with server.client() as client:
        client.config_set("requirepass", "other")
        for kind in ("pubsub", "normal"):
            client.execute_command("CLIENT", "KILL", "TYPE", kind)


@pytest.mark.parametrize("way", WAITS)
async def test_a_wrong_password_ends_every_wait(opened: tuple[Server, Penstock, Any], way: str) -> None:
    server, app, batch = opened
    waiting = asyncio.ensure_future(WAITS[way](app, batch))
    await asyncio.wait([waiting], timeout=0.3)
    assert not waiting.done()
    await asyncio.to_thread(_lock, server)
    with pytest.raises(CannotConnect, match="password"):
        async with asyncio.timeout(8):
            await waiting
    with pytest.raises(CannotConnect, match="password"):  # and of who begins to wait now
        async with asyncio.timeout(8):
            await WAITS[way](app, batch)


@pytest.mark.parametrize("way", ["result", "result_sync", "batch"])
async def test_a_layout_that_is_not_known_ends_a_wait(opened: tuple[Server, Penstock, Any], way: str) -> None:
    _, app, batch = opened
    await (await raw(app.hub.engine)).hset(app.hub.engine.keys("meta"), "schema", "99")
    with pytest.raises(SchemaMismatch, match="layout 99"):
        async with asyncio.timeout(8):
            await WAITS[way](app, batch)


async def test_a_server_that_is_away_for_a_while_is_waited_for(opened: tuple[Server, Penstock, Any]) -> None:
    server, app, _ = opened
    app.hub.engine.link.deadline = 0.3
    waiting = asyncio.ensure_future(app.hub.waiter.wait("a"))
    await asyncio.wait([waiting], timeout=0.2)
    server.kill()
    await asyncio.wait([waiting], timeout=1)
    server.restart()
    async with asyncio.timeout(10):
        assert (await waiting).state == "missing"
    with pytest.raises(PenstockError):
        await app.get_job("a")
