"""The audit's rules for `heads`: the queues that a worker of all queues reads, with the place to begin at.

No ready job of a queue that can be leased from may come before its place in `heads`. The place may be too low, and a
queue without jobs may have one: lease corrects both.
"""

import math
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from penstock.engine.engine import Engine
from penstock.engine.keys import SEPARATOR, head
from penstock.engine.read.views import setting_of

Found = tuple[str, str | bytes, str]  #: rule, subject, text
_PAGE: Final = 100  #: queues that are compared in one call


async def check_heads(
    engine: Engine, heads: dict[bytes, float], known: set[str], ready: Sequence[str]
) -> AsyncIterator[Found]:
    """`known`: all names of queues; `ready`: names of queues with ready jobs."""
    for name, score in heads.items():
        if name.decode(errors="replace") not in known:
            yield "heads", name, "is no queue that is known"
        elif not 0 <= score < math.inf:
            yield "heads", name, f"has {score}, which is no place in line"
    async for finding in _wrongly_spared(engine):
        yield finding
    for at in range(0, len(ready), _PAGE):
        for finding in await _passed_over(engine, ready[at : at + _PAGE]):
            yield finding


async def _wrongly_spared(engine: Engine) -> AsyncIterator[Found]:
    """`meta` may tell enqueue that `heads` needs no update for a queue; then `heads` must really have it."""

    async def ask(client: Any) -> Any:
        line = await client.hget(engine.keys("meta"), "headed")
        async with client.pipeline(transaction=True) as pipe:
            pipe.hget(engine.keys("meta"), "headed")
            pipe.zscore(engine.keys("heads"), (line or b"").partition(SEPARATOR.encode())[0])
            again, score = await pipe.execute()
        return (line.decode(), score) if line and again == line else None

    spared = await engine.script_client.ask(ask)
    if spared is not None:
        line, score = spared
        queue, _, priority = line.partition(SEPARATOR)
        if not priority.isdigit() or score is None or score >= head(int(priority) + 1, 0):
            yield "headed", "meta", f"says that jobs of {queue!r} are looked for, which is so from {score} on"


async def _passed_over(engine: Engine, names: Sequence[str]) -> list[Found]:
    """The queues that a worker would skip although their jobs could be leased."""

    async def ask(client: Any) -> list[Any]:
        async with client.pipeline(transaction=True) as pipe:
            for queue in names:
                pipe.zrange(engine.keys("ready"), f"[{queue}{SEPARATOR}", f"({queue} ", bylex=True, offset=0, num=1)
                pipe.zscore(engine.keys("heads"), queue)
                pipe.hget(engine.keys("queues"), queue)
                pipe.hget(engine.keys("counts"), f"{queue}{SEPARATOR}running")
            answers: list[Any] = await pipe.execute()
            return answers

    answers = await engine.script_client.ask(ask)
    findings: list[Found] = []
    for i, queue in enumerate(names):
        members, score, setting, running = answers[i * 4 : i * 4 + 4]
        paused, limit, _ = setting_of((setting or b"").decode())
        closed = paused or (limit is not None and int(running or 0) >= limit)
        place = _place_of(members[0], queue) if members else None
        if place is not None and not closed and (score is None or score > place):
            findings.append(("heads", queue, f"has jobs from {place} on, but is looked at from {score} on"))
    return findings


def _place_of(member: bytes, queue: str) -> int | None:
    """The place of a queue's first ready job; None if it cannot be read, which other rules report."""
    text = member[len(queue.encode()) + 1 :].partition(SEPARATOR.encode())[0]
    try:
        return head(int(text[:2]), int(text[2:14], 16)) if len(text) == 14 else None
    except ValueError:
        return None
