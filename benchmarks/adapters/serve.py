"""The adapter's side of the line protocol: a request is a line of JSON with `do` and its arguments; so is an answer."""

import asyncio
import json
import random
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

from benchmarks.adapters.jobs import Job, marks

STEP = 0.002  #: seconds between two looks at a mark; half a millisecond uvloop would not sleep, but busy a core


async def serve(sender, answers):
    """Answer requests until the harness closes its end."""
    loop = asyncio.get_running_loop()
    await maybe(sender, "open")
    reader = ThreadPoolExecutor(1)  # the loop goes on: some clients keep their connections alive on it
    while line := await loop.run_in_executor(reader, sys.stdin.readline):
        request = json.loads(line)
        try:
            answer = await VERBS[request.pop("do")](sender, **request)
        except Exception as error:  # noqa: BLE001 - whatever a system raises, the harness must hear of it
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
    await maybe(sender, "close")


async def maybe(sender, name):
    method = getattr(sender, name, None)
    return None if method is None else await method()


async def hello(sender):
    ways = [name for name in ("send", "send_sync", "send_many", "send_later", "audit") if hasattr(sender, name)]
    return {"kinds": list(sender.kinds), "ways": ways, "loop": type(asyncio.get_running_loop()).__module__}


async def many(sender, kind, first, count, size=0):
    """Send jobs in bulk; how long that took."""
    jobs = [Job(kind, number, size) for number in range(first, first + count)]
    begin = time.perf_counter()
    await sender.send_many(jobs)
    return {"seconds": time.perf_counter() - begin}


async def one_by_one(sender, way, kind, first, count):
    jobs = [Job(kind, number) for number in range(first, first + count)]
    begin = time.perf_counter()
    for job in jobs:
        await one(sender, way, job)
    return {"seconds": time.perf_counter() - begin}


async def one(sender, way, job):
    if way == "send":
        await sender.send(job)
    else:
        sender.send_sync(job)


async def callers(sender, kind, first, count, at_once=100):
    """Many callers at once, each sending one job after another: tasks, or threads where a system only blocks."""
    shares = [[Job(kind, number) for number in range(first + i, first + count, at_once)] for i in range(at_once)]

    async def by_task(jobs):
        for job in jobs:
            await sender.send(job)

    def by_thread(jobs):
        for job in jobs:
            sender.send_sync(job)

    begin = time.perf_counter()
    if hasattr(sender, "send"):
        await asyncio.gather(*map(by_task, shares))
    else:
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(by_thread, shares))
    return {"seconds": time.perf_counter() - begin}


async def latency(sender, kind, first, count, seconds):
    """One job at a time on an idle worker: seconds from the call to the job's start."""
    way = "send" if hasattr(sender, "send") else "send_sync"
    waits, until = [], time.monotonic() + seconds
    for number in range(first, first + count):
        begin = time.monotonic()
        await one(sender, way, Job(kind, number))
        while not marks.started(number):
            if time.monotonic() > until:
                return {"waits": waits}
            await asyncio.sleep(STEP)
        waits.append(marks.started(number) - begin)
        await asyncio.sleep(random.uniform(0.004, 0.008))  # until the worker waits again
    return {"waits": waits}


async def later(sender, kind, first, delays):
    """Send one job per delay; when each is due, by the monotonic clock."""
    due = []
    for number, delay in enumerate(delays, first):
        due.append(time.monotonic() + delay)
        await sender.send_later(Job(kind, number), delay)
    return {"due": due}


async def audit(sender):
    return {"findings": [str(finding) for finding in await sender.audit()]}


VERBS = {
    "hello": hello,
    "many": many,
    "one_by_one": one_by_one,
    "callers": callers,
    "latency": latency,
    "later": later,
    "audit": audit,
}
