"""Requests that are split into parts: at most so many parts of one at a time, and a word when the last one is done.

    python examples/requests.py [FILE]

A line of the file is a request: how many of its parts may run at once, and the parts, `3:a:b:c:d:e`. What comes first
in the file has the higher priority; lines with # are comments. Each request is a batch. A worker in another process
works them off, and a listener in a third one, which runs nothing but their ends, says when each is done.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from penstock import BatchStatus, Penstock

SAMPLE = """\
# limit:part:part:...
1:first:second:third
3:a:b:c:d:e:f:g:h
# the last one has to wait, but not for ever
2:x:y:z
"""
FOLDER = Path(os.environ.setdefault("REQUESTS_FOLDER", tempfile.mkdtemp(prefix="requests-")))

app = Penstock("requests", url=os.environ.get("PENSTOCK_URL", f"embedded://{FOLDER}/data"))
running: Counter[str] = Counter()


@app.task(name="part", queue="parts")
async def part(request: str, limit: int, name: str) -> str:
    """Work on one part; all of a request run in this one process here, so it can see whether the limit is kept."""
    running[request] += 1
    assert running[request] <= limit, f"{running[request]} parts of {request} run at once"
    await asyncio.sleep(0.05)
    running[request] -= 1
    return name.upper()


@app.task(name="ended", queue="ends")
async def ended(status: BatchStatus) -> None:
    print(f"{status.name}: {status.done} of {status.total} parts done", flush=True)


class Request(NamedTuple):
    name: str
    limit: int
    priority: int
    parts: list[str]


def read(text: str) -> list[Request]:
    """The requests of a file, by the numbers of their lines."""
    lines = enumerate((line.partition("#")[0].strip() for line in text.splitlines()), 1)
    rows = [(number, line.split(":")) for number, line in lines if line]
    return [Request(f"request {n}", int(limit), min(n, 99), parts) for n, (limit, *parts) in rows]


async def submit(requests: list[Request]) -> None:
    """Send them all, and wait for the last end; the listener tells of each."""
    batches = []
    for name, limit, priority, parts in requests:
        async with app.batch(name, limit=limit, priority=priority, then=ended) as batch:
            await batch.add_many(part.call(name, limit, one) for one in parts)
        batches.append(batch)
    for batch in batches:
        results = [await job.result() async for job in batch.as_completed()]
        assert len(results) == (await batch.wait(timeout=60)).total
        told = await app.get_job(f"{batch.id}@then-1")  # so is the job named that `then` makes, the first time it ends
        await told.result(timeout=60)


async def serve(queue: str) -> None:
    await app.worker(queues=[queue], concurrency=20).run()


async def main(file: str | None) -> None:
    text = Path(file).read_text("utf-8") if file else SAMPLE  # noqa: ASYNC240  (nothing else runs yet)
    helpers = [_start("parts"), _start("ends")]
    try:
        async with app:
            await submit(read(text))
    finally:
        for helper in helpers:
            helper.terminate()
            helper.wait()


def _start(queue: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, __file__, "--serve", queue])  # noqa: S603  (ourselves)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        asyncio.run(serve(sys.argv[2]))
    else:
        asyncio.run(main(sys.argv[1] if sys.argv[1:] else None))
