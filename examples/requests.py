"""Requests that are split into parts: at most so many parts of one at a time, and a word when the last one is done.

    python examples/requests.py [FILE]

What was wanted: a request has parts, which are worked on in parallel, but never more than so many of one request.
Earlier requests go first. Somebody elsewhere hears when the last part is done, also if a worker died on the way.

How Penstock does it: a request is a batch with a `limit` and a `priority`; `then` makes one job when it has ended. A
line of the file is a request: its limit and its parts, `3:a:b:c:d:e`; what follows # is a comment. One process works
on parts; another one, which runs nothing but the ends, says when each request is done.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from penstock import BatchStatus, Penstock

SAMPLE = """\
# limit:part:part:...
1:first:second:third
3:a:b:c:d:e:f:g:h
# the last one has to wait, but not for ever
2:x:y:z
"""
FOLDER = Path(os.environ.get("REQUESTS_FOLDER") or tempfile.mkdtemp(prefix="requests-"))
os.environ["REQUESTS_FOLDER"] = str(FOLDER)  # for its other processes

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


def read(text: str) -> Iterator[tuple[int, int, list[str]]]:
    """Of each request the number of its line, its limit and its parts."""
    for number, line in enumerate(text.splitlines(), 1):
        if row := line.partition("#")[0].strip():
            limit, *parts = row.split(":")
            yield number, int(limit), parts


async def submit(text: str) -> None:
    """Send them all, and wait for the last end; the listener tells of each."""
    batches = []
    for number, limit, parts in read(text):
        name = f"request {number}"
        async with app.batch(name, limit=limit, priority=min(number, 99), then=ended) as batch:
            await batch.add_many(part.call(name, limit, one) for one in parts)
        batches.append(batch)
    for batch in batches:
        await batch.wait(timeout=60)
        end = await app.get_job(f"{batch.id}@then-1")  # the id of the job that `then` makes
        await end.result(timeout=60)


async def serve(queue: str) -> None:
    await app.worker(queues=[queue], concurrency=20).run()


async def main(file: str | None) -> None:
    text = Path(file).read_text("utf-8") if file else SAMPLE  # noqa: ASYNC240  (nothing else runs yet)
    helpers = [_start("parts"), _start("ends")]
    try:
        async with app:
            await submit(text)
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
