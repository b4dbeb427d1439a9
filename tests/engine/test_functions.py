"""Functions: a verb that the server keeps as a function does what its script does, and leaves nothing behind."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.engine.engine import Engine
from penstock.engine.repair.audit import audit
from penstock.engine.scripts import load
from penstock.errors import PenstockError
from tests.conftest import Clock, namespace, open_engine
from tests.engine.factories import LIFE, TestWorker, dump, enqueue, forget_scripts, new_job, raw, states
from tests.engine.scenarios import SCENARIOS
from tests.servers import Server, running

VERBS = sorted(load())
#: What every job goes through.
HOT = ("enqueue", "lease", "complete", "retry", "renew", "promote", "watch")


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    """A server with users who may run scripts, but load no functions, or call none."""
    with running(Server("--appendonly", "no")) as server:
        for command in ("function", "fcall"):
            server.client().acl_setuser(
                f"no-{command}",
                enabled=True,
                passwords=["+secret"],
                keys=["*"],
                channels=["*"],
                commands=["+@all", f"-{command}"],
            )
        yield server


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Engine]:
    engine = open_engine(url, namespace())
    try:
        yield engine
    finally:
        await engine.script_client.endpoint.aclose()


async def calls(engine: Engine, command: str) -> int:
    statistics = await (await raw(engine)).info("commandstats")
    return int(statistics.get(f"cmdstat_{command}", {"calls": 0})["calls"])


@pytest.mark.parametrize("test", [False, True])
def test_the_server_takes_the_library(own: Server, test: bool) -> None:
    scripts = load(test=test)
    own.client().function_flush()
    assert own.client().function_load(scripts.library) == f"penstock_{scripts.version}".encode()
    functions = {function[1] for function in own.client().function_list()[0][5]}
    assert functions == {scripts[verb].function.encode() for verb in VERBS}


def test_builds_that_differ_have_names_that_differ() -> None:
    names = [script.function for test in (False, True) for script in load(test=test).values()]
    assert len(set(names)) == len(names) == 2 * len(VERBS)


async def test_calls_after_the_first_use_functions_only(own: Server) -> None:
    async with connected(own.url) as engine:
        await engine.register("w", LIFE)
        await enqueue(engine, new_job("a"))
        await engine.lease("w", 1)
        scripts, functions = await calls(engine, "evalsha") + await calls(engine, "eval"), await calls(engine, "fcall")
        await enqueue(engine, new_job("b"))
        engine.enqueue([new_job("c")]).sync()
        await engine.lease("w", 2)
        assert await calls(engine, "evalsha") + await calls(engine, "eval") == scripts
        assert await calls(engine, "fcall") == functions + 3


@pytest.mark.parametrize("verb", HOT)
async def test_a_call_that_was_stopped_anywhere_leaves_nothing_for_the_next(single: Server, verb: str) -> None:
    """The next call, of the same function, is about another namespace: it does there what it always does."""
    clocks = [Clock() for _ in range(3)]
    whole, spoilt, after = (open_engine(single.url, namespace(), clock) for clock in clocks)
    expected = await (await SCENARIOS[verb](whole, clocks[0]))
    stopped = await SCENARIOS[verb](spoilt, clocks[1])
    checked = await SCENARIOS[verb](after, clocks[2])
    before = await dump(after)
    for at in range(3, 100):
        spoilt.script_client.stop_at = at
        try:
            await stopped
        except PenstockError:
            pass
        else:
            break
        assert await dump(after) == before
    spoilt.script_client.stop_at = 0
    assert await checked == expected
    assert await states(after) == await states(whole)
    assert await audit(after) == []
    for engine in (whole, spoilt, after):
        await (await raw(engine)).delete(*engine.all_keys())
        await engine.script_client.endpoint.aclose()


@pytest.mark.parametrize("command", ["function", "fcall"])
@pytest.mark.parametrize("blocking", [False, True])
async def test_a_user_who_may_have_no_functions_works_with_scripts(own: Server, command: str, blocking: bool) -> None:
    url = f"redis://no-{command}:secret@127.0.0.1:{own.port}"
    async with connected(own.url) as engine:
        await forget_scripts(engine)
    async with connected(url) as engine:
        worker = await TestWorker(engine, "w").register()
        for n in range(3):
            call = engine.enqueue([new_job(f"{n}")])
            placed = call.sync() if blocking else await call
            assert placed[0].word == "created"
        assert [lease.id for lease in await worker.lease(3)] == ["0", "1", "2"]
        functions = await calls(engine, "fcall")
        await enqueue(engine, new_job("last"))
        assert await calls(engine, "fcall") == functions
        assert await audit(engine) == []


def test_a_server_without_the_command_is_given_scripts() -> None:
    with running(Server("--appendonly", "no", "--rename-command", "FCALL", "''")) as server:
        engine = open_engine(server.url, namespace())
        assert [engine.enqueue([new_job(f"{n}")]).sync()[0].word for n in range(2)] == ["created"] * 2
        engine.script_client.endpoint.close()


async def test_a_library_that_is_there_already_is_used(own: Server) -> None:
    async with connected(own.url) as engine:
        await forget_scripts(engine)
        client: Any = await raw(engine)
        await client.function_load(load().library)
        await enqueue(engine, new_job("a"), new_job("b"))
        before = await calls(engine, "fcall")
        await enqueue(engine, new_job("c"))
        assert await calls(engine, "fcall") == before + 1
