"""A crash is charged to jobs that had started in the process, until the server knows how they ended."""

from pathlib import Path

import pytest

from tests.app_helpers import eventually
from tests.servers import Server
from tests.worker.harness import Crew, crew_at


@pytest.mark.parametrize("task", ["returns_and_dies", "returns_and_dies_in_a_thread", "returns_and_dies_apart"])
async def test_a_job_whose_process_dies_after_its_function_returned_is_charged_each_time(crew: Crew, task: str) -> None:
    await crew.started("-c", "4")
    job = await crew.app.find_task(task).enqueue()
    await crew.all_in("dead", "done")
    header = await crew.header(job)
    assert (header.state, header.reason, header.crashes) == ("dead", "crash_loop", 3)
    assert crew.count() == {job.id: 3}
    assert await (await crew.tasks.quick.enqueue(1)).result(timeout=30) == 1


async def test_a_job_that_ended_is_charged_until_the_server_knows_of_it(tmp_path: Path, own_server: Server) -> None:
    async with crew_at(tmp_path, own_server.url) as crew:
        await crew.started(lease="20s")
        job = await crew.tasks.returns_and_dies_later.enqueue("go")
        await crew.until_started(1)
        own_server.kill()
        crew.let_end("go")
        await eventually(lambda: "ended with exit code 9 while it ran 1 jobs" in crew.log(), within=20)
        own_server.restart()
        await crew.all_in("done")
        assert (await crew.header(job)).crashes == 1
