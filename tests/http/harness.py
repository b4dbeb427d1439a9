"""The service on a real port, asked by a real client."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import uvicorn

from penstock import Penstock
from tests.api.looks import eventually


@contextlib.asynccontextmanager
async def listening(asgi: Any, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """A server of its own on a free port; the port."""
    config = uvicorn.Config(asgi, host=host, port=0, log_config=None, ws="none", lifespan="off", access_log=False)
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    running = asyncio.create_task(server.serve())
    try:
        await eventually(lambda: server.started)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        server.force_exit = True
        await running


@contextlib.asynccontextmanager
async def serving(app: Penstock, **credentials: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with listening(app.asgi(**credentials)) as port, client_at(port) as client:
        yield client


@contextlib.asynccontextmanager
async def client_at(port: int, host: str = "127.0.0.1", **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30, **options) as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
