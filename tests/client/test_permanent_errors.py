"""Waiting without a time-out ends when waiting cannot help: a wrong password, a permission, an unknown layout."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from penstock import Batch, Job, Penstock
from penstock.api.events import Events
from penstock.errors import CannotConnect, JobNotFound, SchemaMismatch
from tests.conftest import namespace
from tests.engine.factories import raw
from tests.servers import Server, running


@dataclass
class Opened:
    """A server with an app, a job that nobody runs and a batch with another."""

    server: Server
    app: Penstock
    job: Job[None]
    batch: Batch


WAITS: dict[str, Callable[[Opened], Any]] = {
    "result": lambda opened: opened.job.result(),
    "result_sync": lambda opened: asyncio.to_thread(opened.job.result_sync),
    "batch": lambda opened: opened.batch.wait(),
    "batch_sync": lambda opened: asyncio.to_thread(opened.batch.wait_sync),
    "events": lambda opened: anext(opened.app.events()),
}


@pytest.fixture
async def opened() -> AsyncIterator[Opened]:
    with running(Server("--appendonly", "no")) as server:
        app = Penstock(namespace(), url=server.url)

        @app.task
        async def nothing() -> None: ...

        async with app:
            job = await nothing.enqueue()
            batch = app.batch()
            await batch.add(nothing.call())
            yield Opened(server, app, job, batch)


def _lock(server: Server) -> None:
    """Another password from now on, and nobody stays connected."""
    with server.client() as client:
        client.config_set("requirepass", "other")
        for kind in ("pubsub", "normal"):
            client.execute_command("CLIENT", "KILL", "TYPE", kind)


def _forbid(server: Server, *commands: str) -> None:
    """Nobody may use these from now on, and nobody stays connected."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "default", *(f"-{command}" for command in commands))
        for kind in ("pubsub", "normal"):
            client.execute_command("CLIENT", "KILL", "TYPE", kind)


async def _change_layout(app: Penstock) -> None:
    await (await raw(app.client.engine)).hset(app.client.engine.keys("meta"), "schema", "99")


@pytest.mark.parametrize("way", WAITS)
async def test_a_wrong_password_ends_every_wait(opened: Opened, way: str) -> None:
    waiting = asyncio.ensure_future(WAITS[way](opened))
    await asyncio.wait([waiting], timeout=0.3)
    assert not waiting.done()
    await asyncio.to_thread(_lock, opened.server)
    with pytest.raises(CannotConnect, match="password"):
        async with asyncio.timeout(8):
            await waiting
    with pytest.raises(CannotConnect, match="password"):  # and of who begins to wait now
        async with asyncio.timeout(8):
            await WAITS[way](opened)


@pytest.mark.parametrize("way", WAITS)
async def test_a_permission_that_is_refused_ends_every_wait(opened: Opened, way: str) -> None:
    waiting = asyncio.ensure_future(WAITS[way](opened))
    await asyncio.wait([waiting], timeout=0.3)
    assert not waiting.done()
    await asyncio.to_thread(_forbid, opened.server, "ssubscribe", "xread")
    with pytest.raises(CannotConnect, match=r"refuses.*check user, password and permissions"):
        async with asyncio.timeout(8):
            await waiting
    with pytest.raises(CannotConnect, match="permissions"):  # and of who begins to wait now
        async with asyncio.timeout(8):
            await WAITS[way](opened)


@pytest.mark.parametrize("way", WAITS)
async def test_a_layout_that_is_not_known_ends_a_wait(opened: Opened, way: str) -> None:
    await _change_layout(opened.app)
    with pytest.raises(SchemaMismatch, match="layout 99"):
        async with asyncio.timeout(8):
            await WAITS[way](opened)


async def test_a_layout_that_changes_ends_the_events(opened: Opened) -> None:
    events = opened.app.events(since="1h")
    assert (await anext(events)).kind == "enqueue"
    await _change_layout(opened.app)
    with pytest.raises(SchemaMismatch, match="layout 99"):
        await asyncio.wait_for(_all_of(events), 10)


async def _all_of(events: Events) -> None:
    async for _ in events:
        pass


async def test_a_server_that_is_away_for_a_while_is_waited_for(opened: Opened) -> None:
    server = opened.server
    opened.app.client.engine.script_client.deadline = 0.3
    waiting = asyncio.ensure_future(opened.job.result())
    await asyncio.wait([waiting], timeout=0.2)
    server.kill()
    await asyncio.wait([waiting], timeout=1)
    server.restart()
    async with asyncio.timeout(10):
        with pytest.raises(JobNotFound):
            await waiting
