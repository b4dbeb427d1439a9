"""The app: its name, how it is opened and closed, and `run_until_idle`."""

import asyncio
from typing import Any

import pytest

from penstock import (
    BadOption,
    Job,
    Penstock,
    current_job,
)
from tests.app_helpers import remove_all
from tests.conftest import namespace

LONG = "x" * 10_000


@pytest.mark.parametrize("name", ["", "a b", "a{b}", "a\nb", "shop\n", LONG, "ä"])
def test_a_bad_name_of_an_app_is_refused(name: str) -> None:
    with pytest.raises(BadOption, match="namespace"):
        Penstock(name)


def test_with_and_async_with_open_and_close_an_app_and_it_can_be_used_again(url: str) -> None:
    app = Penstock(namespace(), url=url)

    @app.task
    async def echo(x: int) -> int:
        return x

    async def inside() -> Job[int]:
        async with app:
            return await echo.enqueue(1)

    with app:
        first = echo.enqueue_sync(0)
    second = asyncio.run(inside())
    assert {first.status_sync().state, second.status_sync().state} == {"ready"}
    asyncio.run(remove_all(app))


async def test_run_until_idle_runs_what_is_ready_and_what_that_makes_ready_and_leaves_the_rest(app: Penstock) -> None:
    ran: list[int] = []

    @app.task(retries=1, backoff=[0])
    async def chain(x: int) -> None:
        ran.append(x)
        if x < 3:
            await chain.enqueue(x + 1)
        elif current_job().attempt == 1:
            raise ValueError

    later = await chain.using(delay="1h").enqueue(9)
    await chain.enqueue(0)
    await app.run_until_idle()
    assert ran == [0, 1, 2, 3, 3]
    assert (await later.status()).state == "scheduled"
    await app.run_until_idle()
    assert await app.client.views.workers() == []


async def test_run_until_idle_ends_when_all_that_is_ready_is_paused(app: Penstock) -> None:
    @app.task
    async def one() -> int:
        return 1

    await one.enqueue()
    await app.client.engine.pause("default")
    async with asyncio.timeout(3):
        await app.run_until_idle()


def test_names_and_functions_of_the_wrong_kind_are_refused() -> None:

    wrong: Any = 5
    with pytest.raises(BadOption):
        Penstock(wrong)
