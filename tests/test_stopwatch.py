"""The stopwatch tells a slow script from one during which the server could not run."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.engine.engine import Engine
from tests.costs import slow_each_time, slow_scripts
from tests.engine.factories import raw
from tests.servers import Server
from tests.stopwatch import Lap, Stopwatch

linux = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="it does not tell what a thread did")
BURN = "local start = os.clock() while os.clock() - start < tonumber(ARGV[1]) do end"


async def _burn(engine: Engine, stopwatch: Stopwatch, seconds: float) -> None:
    """A script that takes so much of a CPU."""

    async def burn(client: Any) -> None:
        async with stopwatch.lap():
            await client.eval(BURN, 0, seconds)

    await engine.script_client.ask(burn)


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


@linux
async def test_a_script_that_takes_long_of_a_cpu_is_slow(watched_engine: Engine, stopwatch: Stopwatch) -> None:
    await _burn(watched_engine, stopwatch, 0.2)
    assert len(await slow_scripts(watched_engine, stopwatch)) == 1
    assert stopwatch.longest > 100_000


@linux
async def test_a_script_that_takes_long_because_the_server_could_not_run_is_not(
    watched_engine: Engine, watched_server: Server, stopwatch: Stopwatch
) -> None:
    async with _mostly_stopped(watched_server):
        while not stopwatch.laps:
            await _burn(watched_engine, stopwatch, 0.005)
    assert await slow_scripts(watched_engine, stopwatch) == []


@linux
async def test_the_calls_of_an_engine_are_timed(watched_engine: Engine, stopwatch: Stopwatch) -> None:
    await watched_engine.promote()
    assert stopwatch.longest > 0


async def test_a_long_script_that_nobody_timed_is_slow(watched_engine: Engine, stopwatch: Stopwatch) -> None:
    await (await raw(watched_engine)).eval(BURN, 0, 0.05)
    assert len(await slow_scripts(watched_engine, stopwatch)) == 1


@linux
@pytest.mark.parametrize(("slow_fills", "found"), [(1, 0), (3, 1)])
async def test_a_slow_measurement_is_repeated_and_one_that_is_slow_each_time_stays(
    watched_server: Server, watched_engine: Engine, stopwatch: Stopwatch, slow_fills: int, found: int
) -> None:
    left = [0.1] * slow_fills + [0.0] * 3

    async def fill() -> None:
        await _burn(watched_engine, stopwatch, left.pop(0))

    await fill()
    assert len(await slow_each_time(watched_server, watched_engine, stopwatch, fill)) == found


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
