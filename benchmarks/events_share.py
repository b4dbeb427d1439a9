"""What events cost the server: `python -m benchmarks.events_share`.

The same jobs go through the engine's scripts as they are and with the writing of events taken out, a round of each in
turn on one server; the time of the scripts is what `commandstats` says. Pages of 100 are a busy system, pages of 1 the
worst case: an entry of the stream for every call of every job.
"""

import asyncio
import re
import secrets
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.server import running
from penstock.engine import scripts
from penstock.engine.engine import Engine, NewJob
from penstock.engine.scripts import Scripts
from penstock.model.header import Header, new_id
from penstock.server.endpoint import Endpoint
from penstock.server.urls import parse

ROUNDS = 9
JOBS = 4_000
LUA = Path(scripts.__file__).parent / "lua"


def without_events(engine: Engine) -> Engine:
    """The same engine with scripts that write no events."""
    script_client: Any = engine.script_client
    changed = {name: _silent(LUA / f"{name}.lua") for name in ("lib/finish", "lib/push")}
    script_client._scripts = Scripts(test=False, changed=changed)  # noqa: SLF001  (nothing else needs this)
    return engine


def _silent(file: Path) -> str:
    text, count = re.subn(r"(if entry\[1\] then )?call\('XADD', keys\.events, [^\n]*\n", "\n", file.read_text("utf-8"))
    assert count, file
    return text


async def go_through(engine: Engine, page: int) -> float:
    """Microseconds of server time per job: enqueue, lease, complete."""
    client: Any = await engine.script_client.endpoint.client()
    worker = f"w-{secrets.token_hex(4)}"
    await engine.register(worker, 60_000)
    jobs = [NewJob(new_id(), Header(state="", task="shop.tasks:send"), b"x" * 100) for _ in range(JOBS * page // 100)]
    before = await _used(client)
    for number, start in enumerate(range(0, len(jobs), page), 1):
        await engine.enqueue(jobs[start : start + page])
        leased = await engine.lease(worker, number, want=page, answered=number - 1)
        await engine.complete(worker, [(lease.id, number, b"") for lease in leased.leases])
    return (await _used(client) - before) / len(jobs)


async def _used(client: Any) -> float:
    stats = await client.info("commandstats")
    return sum(float(stats.get(name, {}).get("usec", 0)) for name in ("cmdstat_evalsha", "cmdstat_fcall"))


async def measure(url: str, page: int) -> tuple[float, float]:
    """Medians with and without events."""
    engines = []
    for make in (lambda engine: engine, without_events):
        name = f"share-{secrets.token_hex(4)}"
        endpoint = Endpoint(parse(url), slot_key=f"penstock:{{{name}}}:meta".encode())
        engines.append(make(Engine(endpoint, name)))
    rounds: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS + 1):
        for times, engine in zip(rounds, engines, strict=True):
            times.append(await go_through(engine, page))
    for engine in engines:
        await engine.script_client.endpoint.aclose()
    return median(rounds[0][1:]), median(rounds[1][1:])


def main() -> None:
    with running() as (server, _):
        for page in (100, 10, 1):
            full, bare = asyncio.run(measure(server.url, page))
            print(f"pages of {page:>3}: {full:6.2f} us a job, {bare:6.2f} without events: {1 - bare / full:5.1%}")


if __name__ == "__main__":
    main()
