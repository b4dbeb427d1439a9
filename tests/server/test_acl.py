"""The server user from the guide can do everything in its namespace, and nothing elsewhere."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Penstock, PenstockError
from penstock.engine.repair.audit import audit
from penstock.engine.repair.doctor import examine
from tests.servers import Server, running

GUIDE = Path(__file__).parents[2] / "docs" / "workers.md"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    (rule,) = re.findall(r"^ACL SETUSER shop .*$", GUIDE.read_text(), re.MULTILINE)
    with running(Server("--appendonly", "no")) as server:
        client: Any = server.client()
        client.execute_command(*rule.split())
        yield f"redis://shop:secret@127.0.0.1:{server.port}"


async def test_the_user_can_do_all_that_an_app_does(url: str) -> None:
    app = Penstock("shop", url=url)

    @app.task(lock="one")
    async def add(x: int, y: int) -> int:
        return x + y

    async with app:
        job = await add.enqueue(1, 2)
        async with app.batch("both") as batch:
            await batch.add(add.call(3, 4))
        await app.run_until_idle()
        assert await job.result() == 3
        assert (await batch.wait(5)).done == 1
        assert [event.kind async for event in job.events()][-1] == "complete"
        assert add.enqueue_sync(5, 6).created
        assert await audit(app.client.engine) == []
        assert (await examine(app.client.engine)).healthy


async def test_another_namespace_is_refused_with_the_reason(url: str) -> None:
    async with Penstock("other", url=url) as app:

        @app.task
        async def nothing() -> None: ...

        with pytest.raises(PenstockError, match="permission"):
            await nothing.enqueue()
