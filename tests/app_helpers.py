"""What tests ask an app and its server: waiting for a condition, counting commands and connections."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from penstock import Job, Penstock
from penstock.engine.repair.audit import audit
from tests.engine.factories import raw
from tests.servers import Server

#: For the handful of tests that run on the single server and on the cluster.
on_both = pytest.mark.parametrize("url", ["single", "cluster"], indirect=True)


async def eventually(condition: Callable[[], Any], *, within: float = 5.0) -> Any:
    """Poll until the condition, plain or awaitable, gives something true."""
    async with asyncio.timeout(within):
        while True:
            value = condition()
            if isinstance(value, Awaitable):
                value = await value
            if value:
                return value
            await asyncio.sleep(0.005)


async def in_state(job: Job[Any], *states: str, within: float = 5.0) -> None:
    """Until the job is in one of these states."""
    await eventually(lambda: _is_in(job, states), within=within)


async def _is_in(job: Job[Any], states: tuple[str, ...]) -> bool:
    return (await job.status()).state in states


@contextlib.asynccontextmanager
async def twin(app: Penstock) -> AsyncIterator[Penstock]:
    """The same app as another process has it: nothing in common but the namespace."""
    other = Penstock(app.name, url=app.settings.url)
    try:
        yield other
    finally:
        await other.aclose()


@contextlib.asynccontextmanager
async def own_app(server: Server, name: str, **settings: Any) -> AsyncIterator[Penstock]:
    """An app on a server that the test stops or kills; the audit at its end is part of the test."""
    app = Penstock(name, url=server.url, **settings)
    try:
        yield app
        assert await audit(app.client.engine) == []
    finally:
        await app.aclose()


async def stats(app: Penstock, command: str) -> int:
    """How often the server has been given this command, scripts' own calls left out."""
    client = await raw(app.client.engine)
    statistics = (await client.info("commandstats")).get(f"cmdstat_{command}", {"calls": 0})
    return int(statistics["calls"])


async def commands(app: Penstock) -> int:
    """How many commands clients have sent to the server, but for pings; this question is one of them."""
    client = await raw(app.client.engine)
    statistics = await client.info("commandstats")
    scripts = ("evalsha", "fcall", "eval", "function|load")
    sent = (*scripts, "ssubscribe", "sunsubscribe", "info", "client|setname", "client|setinfo")
    return sum(int(statistics[f"cmdstat_{name}"]["calls"]) for name in sent if f"cmdstat_{name}" in statistics)


async def kill_connections(app: Penstock) -> None:
    """Cut off everybody but this app's own connection that says so."""
    client = await raw(app.client.engine)
    for kind in ("normal", "pubsub"):
        await client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


async def connections(app: Penstock) -> int:
    """How many connections Penstock has to the server, all apps of all processes together."""
    client = await raw(app.client.engine)
    return sum(1 for connection in await client.client_list() if connection["name"] == "penstock")


async def remove_all(app: Penstock) -> None:
    """Delete all that is stored of the app, and close it."""
    client = await app.client.endpoint.client()
    await client.delete(*app.client.engine.all_keys())
    await app.aclose()
