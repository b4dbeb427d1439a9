"""Workers that load changed code."""

import asyncio
from functools import partial

from tests.app_helpers import eventually
from tests.worker.harness import Crew, tree


async def test_a_spare_with_outdated_code_is_ended_without_an_error(crew: Crew) -> None:
    worker = await crew.started("--reload")
    await asyncio.sleep(1)  # until the files are watched; nothing says so
    file = crew.folder / "tasks.py"
    for _ in range(2):
        await eventually(lambda: len(tree(worker.pid)) == 2, within=30)  # a child and the spare
        before = crew.log().count("takes no more jobs")
        file.write_text(file.read_text() + "\n# changed\n")
        await eventually(partial(_said_more, crew, before), within=30)
        assert await (await crew.tasks.quick.enqueue(1)).result(timeout=30) == 1
    assert "SIGKILL" not in crew.log()
    assert await crew.stop(worker) == 0


def _said_more(crew: Crew, before: int) -> bool:
    return crew.log().count("takes no more jobs") > before


async def test_changed_code_is_loaded_and_code_that_is_broken_is_waited_for(crew: Crew) -> None:
    worker = await crew.started("--reload")
    file = crew.folder / "tasks.py"
    text = file.read_text()
    await asyncio.sleep(1)  # until the files are watched; nothing says so
    file.write_text("raise RuntimeError('half written')")
    await eventually(lambda: "half written" in crew.log(), within=30)
    file.write_text(text.replace("    return n", "    return n + 1", 1))
    job = await crew.tasks.quick.enqueue(1)
    await eventually(lambda: _knows(crew, 2), within=60)
    assert await job.result(timeout=30) in {1, 2}
    assert worker.poll() is None
    assert await crew.stop(worker) == 0


async def _knows(crew: Crew, answer: int) -> bool:
    return bool(await (await crew.tasks.quick.enqueue(1)).result(timeout=60) == answer)
