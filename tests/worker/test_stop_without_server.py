"""Stopping while the server is gone takes the grace and at most two seconds more."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Penstock
from tests.app_helpers import in_state
from tests.conftest import namespace
from tests.servers import Server
from tests.worker.harness import crew_at

GRACE = 1.0  # seconds
BUSY = 3.0  # seconds that a busy machine may take for what should take none


def _killed(server: Server) -> None:
    server.kill()


def _stopped(server: Server) -> None:
    """It answers nothing, and closes no connection."""
    os.kill(server.process.pid, signal.SIGSTOP)


@pytest.mark.parametrize("fate", [_killed, _stopped])
async def test_leaving_a_worker_ends_in_time(own_server: Server, fate: Callable[[Server], None]) -> None:
    app = Penstock(namespace(), url=own_server.url)
    go = asyncio.Event()

    @app.task
    async def until_told() -> None:
        await go.wait()

    @app.task
    async def endless() -> None:
        await asyncio.Event().wait()

    async with app.worker(grace=GRACE):
        for job in (await until_told.enqueue(), await endless.enqueue()):
            await in_state(job, "running")
        fate(own_server)
        go.set()
        began = time.monotonic()
    took = time.monotonic() - began
    assert GRACE <= took < GRACE + 2 + BUSY
    own_server.kill()
    await app.aclose()


def test_no_thread_keeps_the_program_from_ending(own_server: Server) -> None:
    """Not even the one that renews, which waits for an answer of the server."""

    async def program() -> float:
        app = Penstock(namespace(), url=own_server.url)
        async with app.worker(grace=0.1, lease="300ms"):
            _stopped(own_server)
            await asyncio.sleep(0.3)  # it renews every 100 ms
            return time.monotonic()

    assert time.monotonic() - asyncio.run(program()) < 0.1 + 2 + BUSY


@pytest.mark.parametrize("fate", [_killed, _stopped])
async def test_a_supervisor_ends_in_time(tmp_path: Path, own_server: Server, fate: Callable[[Server], None]) -> None:
    async with crew_at(tmp_path, own_server.url) as crew:
        worker = await crew.started("-c", "4", "--grace", f"{GRACE:g}s")
        await crew.tasks.until.enqueue("go")
        await crew.tasks.until.enqueue("never")
        await crew.until_started(2)
        fate(own_server)
        crew.let_end("go")
        began = time.monotonic()
        assert await crew.stop(worker, within=30) == 0
        assert time.monotonic() - began < GRACE + 2 + BUSY, crew.log()
        own_server.kill()
        own_server.restart()
        await crew.app.client.engine.init()
