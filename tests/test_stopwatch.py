"""A script that keeps the server busy is told from one during which the server could not run."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.engine.engine import Engine
from penstock.engine.link import Call
from penstock.engine.scripts import load
from tests.costs import slow_scripts
from tests.servers import Server
from tests.stopwatch import Lap, Stopwatch


async def _burn(engine: Engine, seconds: float) -> None:
    """A script that takes so much of a CPU."""
    text = f"local start = os.clock() while os.clock() - start < {seconds} do end return 'ok'"
    await Call(engine.link, replace(load()["init"], text=text, sha="0" * 40), (), bytes)


@contextlib.asynccontextmanager
async def _mostly_stopped(server: Server) -> AsyncIterator[None]:
    """It runs for a millisecond now and then."""

    async def stop_and_go() -> None:
        while True:
            server.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(0.02)
            server.process.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.001)

    stopping = asyncio.create_task(stop_and_go())
    try:
        yield
    finally:
        stopping.cancel()
        server.process.send_signal(signal.SIGCONT)


@pytest.fixture
def stopwatch(watched_engine: Engine) -> Stopwatch:
    if not isinstance(watched_engine.link.spy, Stopwatch):
        pytest.skip("this system does not tell what a thread did")
    return watched_engine.link.spy


async def test_a_script_that_takes_long_of_a_cpu_is_slow(watched_engine: Engine, stopwatch: Stopwatch) -> None:
    await _burn(watched_engine, 0.2)
    assert len(await slow_scripts(watched_engine)) == 1
    assert stopwatch.longest > 100_000


async def test_a_script_that_takes_long_because_the_server_could_not_run_is_not(
    watched_engine: Engine, watched_server: Server, stopwatch: Stopwatch
) -> None:
    await _burn(watched_engine, 0)
    async with _mostly_stopped(watched_server):
        while not stopwatch.laps:
            await _burn(watched_engine, 0.005)
    assert await slow_scripts(watched_engine) == []


async def test_a_long_script_that_nobody_timed_is_slow(watched_engine: Engine, stopwatch: Stopwatch) -> None:
    watched_engine.link.spy = None
    await _burn(watched_engine, 0.05)
    assert len(await slow_scripts(watched_engine)) == 1


@pytest.mark.parametrize(
    ("lap", "own"),
    [
        (Lap(passed=30_000, ran=25_000, waited=3_000, stolen=0), 25_000),
        (Lap(passed=30_000, ran=4_000, waited=0, stolen=20_000), 4_000),
        (Lap(passed=105_000, ran=80_000, waited=0, stolen=100_000), 5_000),
    ],
)
def test_time_that_was_both_run_and_stolen_was_stolen(lap: Lap, own: int) -> None:
    assert lap.own == own
