"""A connection on which a reply is missing or comes twice: no call gets the reply to another."""

import asyncio
from typing import Any

import pytest

from penstock import Penstock
from penstock.engine.repair.audit import audit
from tests.conftest import namespace
from tests.engine.factories import raw
from tests.proxy import proxied
from tests.servers import Server


@pytest.mark.parametrize("copies", [0, 2], ids=["missing", "twice"])
async def test_calls_side_by_side_get_their_own_answers_when_a_reply_is(single: Server, copies: int) -> None:
    with proxied(single.port) as proxy:
        async with Penstock(namespace(), url=proxy.url) as app:
            engine = app.client.engine

            @app.task
            async def echo(x: int) -> int:
                return x

            jobs = await app.enqueue_many(echo.call(n) for n in range(5))
            for _ in range(5):
                proxy.pass_on(copies)
                calls: list[Any] = [
                    engine.cancel(["unknown"]),
                    engine.renew(1000, ["nobody"]),
                    engine.watch("c", [jobs[0].id]),
                    engine.register("w", 5000),
                    engine.cancel(["unknown", "unknown-too"]),
                ]
                async with asyncio.timeout(4):
                    answers = await asyncio.gather(*map(engine.script_client.run, calls))
                assert proxy.has_passed_on
                assert answers[0] == ["missing"]
                assert answers[1].words == ["unknown"]
                assert [watched.state for watched in answers[2]] == ["ready"]
                assert answers[3] == "ok"
                assert answers[4] == ["missing", "missing"]
            assert await audit(engine) == []
            await (await raw(engine)).delete(*engine.all_keys())


@pytest.mark.parametrize("copies", [0, 2], ids=["missing", "twice"])
@pytest.mark.parametrize("blocking", [False, True])
async def test_calls_one_after_the_other_get_their_own_answers_when_a_reply_is(
    single: Server, copies: int, blocking: bool
) -> None:
    with proxied(single.port) as proxy:
        async with Penstock(namespace(), url=proxy.url) as app:
            engine = app.client.engine

            async def send(call: Any) -> Any:
                async with asyncio.timeout(4):
                    return await (asyncio.to_thread(call.sync) if blocking else engine.script_client.run(call))

            await send(engine.cancel(["x"]))
            for _ in range(3):
                proxy.pass_on(copies)
                assert await send(engine.cancel(["x"])) == ["missing"]
                assert await send(engine.cancel(["x", "y"])) == ["missing", "missing"]
                assert (await send(engine.renew(1000, ["nobody"]))).words == ["unknown"]
                assert await send(engine.register("w", 5000)) == "ok"
                assert proxy.has_passed_on
            await (await raw(engine)).delete(*engine.all_keys())


@pytest.mark.parametrize("copies", [0, 2], ids=["missing", "twice"])
@pytest.mark.parametrize("blocking", [False, True])
async def test_plain_reads_get_their_own_answers_when_a_reply_is(single: Server, copies: int, blocking: bool) -> None:
    with proxied(single.port) as proxy:
        async with Penstock(namespace(), url=proxy.url) as app:
            engine, views = app.client.engine, app.client.views

            async def echo(text: str) -> bytes:
                command = ("EVAL", f"return '{text}'", 0)
                if blocking:
                    return bytes(
                        await asyncio.to_thread(engine.script_client.ask_sync, lambda c: c.execute_command(*command))
                    )
                return bytes(await engine.script_client.ask(lambda c: c.execute_command(*command)))

            for number in range(10):
                proxy.pass_on(copies, "EVAL")
                async with asyncio.timeout(8):
                    assert await echo(f"first {number}") == f"first {number}".encode()
                    assert await echo(f"second {number}") == f"second {number}".encode()
                    assert await views.counts() == {}
                assert proxy.has_passed_on
