"""The service on a real port, asked by a real client."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import uvicorn

from penstock import Penstock
from penstock.http.access import Access
from penstock.http.route_table import make_service
from penstock.http.service import Service
from penstock.http.this_machine import OPEN
from tests.app_helpers import eventually


@contextlib.asynccontextmanager
async def listening(asgi: Any, host: str = "127.0.0.1", buffer: int = 0, **options: Any) -> AsyncIterator[int]:
    """A server of its own on a free port; the port. With `buffer` the system takes few bytes from it at once."""
    config = uvicorn.Config(asgi, log_config=None, ws="none", lifespan="off", access_log=False, **options)
    place = socket.socket()
    if buffer:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
    place.bind((host, 0))
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    running = asyncio.create_task(server.serve([place]))
    try:
        await eventually(lambda: server.started)
        yield int(place.getsockname()[1])
    finally:
        server.should_exit = True
        server.force_exit = True
        await running
        place.close()


def open_service(app: Penstock) -> Service:
    """The service of `penstock serve --open`: everybody on this machine is an admin."""
    return make_service(app.program, Access(this_machine=OPEN))


@contextlib.asynccontextmanager
async def serving(app: Penstock, **credentials: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the service with these credentials; without any, of the open one."""
    service = app.asgi(**credentials) if credentials else open_service(app)
    async with listening(service) as port, client_at(port) as client:
        yield client


@contextlib.asynccontextmanager
async def client_at(port: int, host: str = "127.0.0.1", **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30, **options) as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
