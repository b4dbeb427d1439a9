"""After a child's end: its jobs are settled as it asked, taken back, and charged to those who had started."""

import asyncio
import json
import logging
import random

from penstock.engine.engine import Engine
from penstock.errors import PenstockError
from penstock.worker.executors.processes import died
from penstock.worker.settle import settle
from penstock.worker.supervisor.child import Child

log = logging.getLogger("penstock.worker")


async def clean_up_after(engine: Engine, child: Child, code: int, life: int, *, orderly: bool) -> None:
    """Again and again until the server has heard it; others would take a whole life, and charge everybody."""
    worker = child.worker
    started = [job.id for job in child.notes.started() if not job.is_apart] if child.notes is not None else []
    if orderly:
        await asyncio.wait((child.listening,), timeout=1)  # its last words
    pause = 0.05
    blamed = started if child.condemned is None else child.condemned
    while True:
        try:
            if orderly:
                return await _retire(engine, child, worker)
            return await _reap(engine, worker, blamed, life, _cause(child, code))
        except PenstockError as error:
            log.debug("the jobs of child %d could not be taken back yet: %s", child.pid, error)
            pause = min(pause * 2, 2.0)
            await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311  (jitter)


async def _retire(engine: Engine, child: Child, worker: str) -> None:
    """It ended as it should: what it could not end by itself is settled, the rest goes back uncharged."""
    if child.stuck:
        await engine.script_client.together(*(call for _, call in settle(engine, child.stuck)))
    more = 1
    while more:
        _, more = await engine.retire(worker)


async def _reap(engine: Engine, worker: str, started: list[str], life: int, cause: str) -> None:
    more = 1
    while more:
        _, more = await engine.reap_worker(worker, started, life, cause=cause)


def _cause(child: Child, code: int) -> str:
    blocked = "was blocked beyond the job's timeout, and was killed"
    text = f"worker process {child.pid} {blocked if child.condemned else died(code)}"
    return json.dumps({"type": "WorkerDied", "message": text, "traceback": ""})
