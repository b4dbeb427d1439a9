"""Very many dead jobs: grouped, listed and retried by filter, in short scripts and in the memory of one page."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from penstock.api.selection import Selection, choose
from penstock.client.client import Client
from penstock.engine.engine import Engine
from penstock.engine.read.dead_groups import DeadGroups
from penstock.engine.read.listing import Filter, Listing
from tests.conftest import namespace, open_engine
from tests.costs import RUNS, TOO_LONG_US, slow_scripts
from tests.engine.factories import LIFE, new_job
from tests.servers import Server, running
from tests.stopwatch import Stopwatch

ROOM_KIB = 30 * 1024  #: that a listing of all may take more than one of a page
ERRORS = 20
MANY = int(os.environ.get("DEAD_JOBS", "1000000"))


@pytest.fixture
def server() -> Iterator[Server]:
    settings = ("--appendonly", "no", "--slowlog-log-slower-than", str(TOO_LONG_US), "--slowlog-max-len", "1000")
    with running(Server(*settings)) as one:
        yield one


@pytest.fixture
async def engine(server: Server) -> AsyncIterator[Engine]:
    made = open_engine(server.url, namespace())
    yield made
    await made.script_client.endpoint.aclose()


def _error(number: int) -> str:
    return json.dumps({"type": f"Error{number % ERRORS}", "message": f"no {number} of 'it'", "traceback": ""})


async def _bury(engine: Engine, number: int) -> None:
    await engine.register("w", LIFE)
    for page in range(number // 100):
        jobs = [new_job(queue="mail" if page % 10 else "rare", task=f"tasks:{page % 3}") for _ in range(100)]
        await engine.enqueue(jobs)
        leased = await engine.lease("w", page + 1, want=100, answered=page)
        rows = [(lease.id, page + 1, "failed", _error(i)) for i, lease in enumerate(leased.leases)]
        await engine.bury("w", rows)


def _memory(engine: Engine, server: Server, *arguments: str) -> tuple[int, int]:
    """Lines that a command printed, and the KiB that it had at most."""
    command = [sys.executable, "-m", "penstock.cli", *arguments, "--namespace", engine.keys.namespace]
    process = subprocess.Popen([*command, "--url", server.url], stdout=subprocess.PIPE)
    assert process.stdout is not None
    lines = sum(1 for _ in process.stdout)
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return lines, usage.ru_maxrss


@pytest.mark.parametrize("number", [2_000, pytest.param(MANY, marks=(pytest.mark.long, pytest.mark.timeout(3_600)))])
async def test_the_dead_are_grouped_listed_and_retried_page_by_page(
    engine: Engine, server: Server, number: int
) -> None:
    await _bury(engine, number)
    groups = await DeadGroups(engine).groups()
    assert {group.count for group in groups} == {number // ERRORS}
    assert len(groups) == ERRORS
    rare = number // 10
    assert sum(group.count for group in await DeadGroups(engine).groups(Filter(queue="rare"))) == rare

    listed = 0
    async for _ in Listing(engine).each(Filter(state="dead")):
        listed += 1
    assert listed == number

    few = await asyncio.to_thread(_memory, engine, server, "job", "ls", "--state", "dead", "-o", "json")
    all_ = await asyncio.to_thread(
        _memory, engine, server, "job", "ls", "--state", "dead", "-o", "json", "--limit", str(number)
    )
    print(f"listing 50: {few[1]:,} KiB; listing {number:,}: {all_[1]:,} KiB")
    assert (few[0], all_[0]) == (51, number + 1)
    assert all_[1] < few[1] + ROOM_KIB

    client: Any = await engine.script_client.endpoint.client()
    await client.slowlog_reset()
    await client.config_resetstat()
    cpu, calls = await _spent(engine)
    hub = Client(engine.keys.namespace, server.url, 5.0)
    stopwatch = Stopwatch(hub.engine, server, TOO_LONG_US)
    assert await Selection(lambda: hub, choose(queue="rare", state="dead")).retry() == rare
    assert await Selection(lambda: hub, choose(group=groups[0].group)).retry() == groups[0].count - rare // ERRORS
    used, made = await _spent(engine)
    slow = await slow_scripts(hub.engine, stopwatch)
    await hub.aclose()
    each = (used - cpu) / (made - calls)
    print(f"{made - calls:,} pages retried, {each * 1000:.2f} ms of the server's CPU each")
    assert each * 1_000_000 < TOO_LONG_US
    if number == MANY:
        assert slow == []


async def _spent(engine: Engine) -> tuple[float, int]:
    """Seconds of CPU that the server had, and scripts that it ran."""
    client: Any = await engine.script_client.endpoint.client()
    used, stats = await client.info("cpu"), await client.info("commandstats")
    return used["used_cpu_user"] + used["used_cpu_sys"], sum(stats[name]["calls"] for name in RUNS if name in stats)
