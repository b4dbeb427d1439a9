"""Cleans up after a child: settles its jobs as it asked, or takes them back and charges those that had started."""

import asyncio
import json
import logging

from penstock.engine.engine import Engine
from penstock.errors import PenstockError
from penstock.worker.executors.processes import died
from penstock.worker.retry_pause import RetryPause
from penstock.worker.settle import settle
from penstock.worker.supervisor.child import Child

log = logging.getLogger("penstock.worker")


async def clean_up_after(engine: Engine, child: Child, code: int, lease: int, *, orderly: bool) -> None:
    """Retry until the server confirms; otherwise the jobs wait for a whole lease, and each is charged with a crash."""
    worker = child.worker
    state = child.shared_state
    started = [job.id for job in state.started() if not job.is_apart] if state is not None else []
    if orderly:
        await asyncio.wait((child.listening,), timeout=1)  # until its last message was read
    retry = RetryPause()
    charged = started if child.killed_for is None else child.killed_for
    while True:
        try:
            if orderly:
                return await _retire(engine, child, worker)
            return await _reap(engine, worker, charged, lease, _cause(child, code))
        except PenstockError as error:
            log.debug("the jobs of child %d could not be taken back yet: %s", child.pid, error)
            await retry.wait()


async def _retire(engine: Engine, child: Child, worker: str) -> None:
    """After a clean end: settle runs whose threads did not end, and release the other jobs uncharged."""
    if child.stuck:
        await engine.script_client.together(*(call for _, call in settle(engine, child.stuck)))
    more = 1
    while more:
        _, more = await engine.retire(worker)


async def _reap(engine: Engine, worker: str, started: list[str], lease: int, cause: str) -> None:
    more = 1
    while more:
        _, more = await engine.reap_worker(worker, started, lease, cause=cause)


def _cause(child: Child, code: int) -> str:
    how = "was blocked beyond the job's timeout, and was killed" if child.killed_for else died(code)
    text = f"worker process {child.pid} {how}"
    return json.dumps({"type": "WorkerDied", "message": text, "traceback": ""})
