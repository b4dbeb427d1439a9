"""A server that is stopped, restarted or missing: every call to it ends within its deadline."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock import (
    Penstock,
    Unavailable,
)
from tests.app_helpers import own_app
from tests.conftest import namespace
from tests.servers import Server, running


async def test_a_stopped_server_ends_every_enqueue_within_the_deadline_and_the_same_id_works_afterwards() -> None:
    with running(Server("--appendonly", "no")) as server:
        name = namespace()
        async with own_app(server, name) as first:  # the server takes the scripts, which may take long

            @first.task(name="first")
            async def begin() -> None: ...

            await begin.using(delay="1h").enqueue()
        async with own_app(server, name, deadline="700ms") as app:

            @app.task
            async def echo(x: int) -> int:
                return x

            await echo.enqueue(0)
            os.kill(server.process.pid, signal.SIGSTOP)
            began = time.monotonic()
            try:
                with pytest.raises(Unavailable, match="same id is safe"):
                    await echo.using(id="mine").enqueue(1)
                results = await asyncio.gather(*(echo.enqueue(n) for n in range(3_000)), return_exceptions=True)
                assert {type(result) for result in results} == {Unavailable}
                with pytest.raises(Unavailable):
                    await app.enqueue_many(echo.call(n) for n in range(1_000))
                assert time.monotonic() - began < 3 * 0.7 + 5  # the machine may be busy
            finally:
                os.kill(server.process.pid, signal.SIGCONT)
            again = await echo.using(id="mine").enqueue(1)
            assert again.id == "mine"
            await app.run_until_idle()
            assert await again.result() == 1


async def test_an_enqueue_goes_through_when_the_server_comes_back_in_time() -> None:
    with running(Server("--appendonly", "yes", "--appendfsync", "always")) as server:
        async with own_app(server, namespace()) as app:

            @app.task
            async def echo(x: int) -> int:
                return x

            await echo.enqueue(0)
            server.kill()
            jobs = [asyncio.create_task(echo.enqueue(number)) for number in range(100)]
            blocking = asyncio.create_task(asyncio.to_thread(echo.enqueue_sync, 100))
            await asyncio.sleep(0)
            await asyncio.to_thread(server.restart)
            await asyncio.gather(blocking, *jobs)
            assert (await app.client.views.counts())["default"]["ready"] == 102


def test_a_server_that_is_not_there_is_an_error_of_ours_that_says_where() -> None:
    app = Penstock(namespace(), url="redis://127.0.0.1:1", deadline="300ms")

    @app.task
    async def echo(x: int) -> int:
        return x

    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        echo.enqueue_sync(1)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        asyncio.run(_enqueue(echo.enqueue, 1))
    app.close()


async def _enqueue(enqueue: Callable[..., Any], *args: Any) -> Any:
    return await enqueue(*args)


def test_a_short_deadline_holds_for_blocking_code_too() -> None:
    with running(Server("--appendonly", "no")) as server:
        app = Penstock(namespace(), url=server.url, deadline="500ms")

        @app.task
        async def echo(x: int) -> int:
            return x

        job = echo.enqueue_sync(1)
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.raises(Unavailable):
                echo.enqueue_sync(2)
            assert time.monotonic() - began < 2  # takes 5
            began = time.monotonic()
            with pytest.raises(TimeoutError):
                job.result_sync(timeout=0.5)
            assert time.monotonic() - began < 2  # takes 5
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        app.close()
