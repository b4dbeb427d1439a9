"""Cancelling a job that runs in a child of a supervisor."""

from pathlib import Path

import pytest

from tests.proxy import proxied
from tests.servers import Server
from tests.worker.harness import Crew, crew_at, gone


@pytest.mark.parametrize("task", ["slow", "endless"])
async def test_a_running_job_is_cancelled_at_once(crew: Crew, task: str) -> None:
    worker = await crew.started()
    job = await crew.app.find_task(task).using(timeout=None).enqueue(*([60.0] if task == "slow" else []))
    (line,) = await crew.until_started(1)
    assert await job.cancel() == "cancelling"
    began = await crew.server_time()
    await crew.all_in("cancelled", within=10)
    print(f"cancelled after {await crew.server_time() - began:.0f} ms")
    if task == "endless":
        await gone(line.pid)
    assert await crew.stop(worker) == 0


async def test_a_running_job_is_cancelled_with_the_next_renewal_if_no_message_comes(
    tmp_path: Path, single: Server
) -> None:
    with proxied(single.port) as proxy:
        async with crew_at(tmp_path, single.url, proxy.url) as crew:
            await crew.started()
            job = await crew.tasks.slow.enqueue(60.0)
            await crew.until_started(1)
            proxy.mute = True
            assert await job.cancel() == "cancelling"
            await crew.all_in("cancelled", within=15)
