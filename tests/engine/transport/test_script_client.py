"""The script client: loads scripts that the server lost, and sends calls again until the deadline."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.engine.answers import Leased
from penstock.engine.engine import Engine
from penstock.engine.repair.audit import audit
from penstock.engine.scripts import SCHEMA, load
from penstock.engine.transport.roundtrip import pack_command
from penstock.errors import PenstockError, SchemaMismatch, Unavailable, UnsuitableServer
from penstock.server.endpoint import Endpoint
from penstock.server.urls import parse
from tests.conftest import Clock, namespace, open_engine
from tests.engine.factories import (
    LIFE,
    TestWorker,
    dump,
    enqueue,
    forget_scripts,
    happened,
    header_of,
    new_job,
    populate,
    raw,
    states,
)
from tests.engine.scenarios import SCENARIOS
from tests.proxy import Proxy, proxied
from tests.servers import Server, running

VERBS = sorted(load())
# Calls whose answer is a word per job or worker; the others say how much they did, and a second time there is nothing.
ANSWERED_ALIKE = sorted(
    {"enqueue", "lease", "complete", "retry", "bury", "release", "snooze", "progress", "cancel", "register", "renew"}
)


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    """A server that may be killed and emptied."""
    with running(Server("--appendonly", "no")) as server:
        yield server


@pytest.fixture
def proxy(single: Server) -> Iterator[Proxy]:
    with proxied(single.port) as made:
        yield made


@asynccontextmanager
async def opened(url: str, *, deadline: float = 5.0, clock: Clock | None = None) -> AsyncIterator[Engine]:
    name = namespace()
    endpoint = Endpoint(parse(url), slot_key=f"penstock:{{{name}}}:meta".encode(), deadline=deadline)
    engine = Engine(endpoint, name, deadline=deadline, test_clock=clock)
    try:
        yield engine
    finally:
        await endpoint.aclose()


# The server lost its scripts


@pytest.mark.parametrize("verb", VERBS)
async def test_a_script_that_the_server_lost_is_sent_again_and_the_blocking_twin_gives_the_same_answer(
    url: str, verb: str
) -> None:
    answers, stored = [], []
    for blocking in (False, True):
        clock = Clock()
        engine = open_engine(url, namespace(), clock)
        call = await SCENARIOS[verb](engine, clock)
        await forget_scripts(engine)
        answers.append(call.sync() if blocking else await call)
        stored.append((await states(engine), await happened(engine)))
        assert await audit(engine) == []
        await (await raw(engine)).delete(*engine.all_keys())
        await engine.script_client.endpoint.aclose()
    assert answers[0] == answers[1]
    assert stored[0] == stored[1]


async def test_scripts_that_were_lost_before_a_pipeline_are_sent_again_in_its_order(engine: Engine) -> None:
    await engine.init()
    await forget_scripts(engine)
    calls = (engine.register("w", LIFE), engine.enqueue([new_job("a"), new_job("b")]), engine.lease("w", 1))
    answers = await engine.script_client.together(*calls)
    assert calls[0].decode(answers[0]) == "ok"
    assert [answer.word for answer in calls[1].decode(answers[1])] == ["created", "created"]
    assert [lease.id for lease in calls[2].decode(answers[2]).leases] == ["a"]


async def test_a_pipeline_answers_each_call_in_its_place(engine: Engine) -> None:
    worker = await TestWorker(engine, "w").register()
    await enqueue(engine, new_job("a"), new_job("b"))
    (lease,) = await worker.lease()
    calls = (engine.complete("w", [(lease.id, 1, b"")]), engine.lease("w", 2), engine.cancel(["a", "b"]))
    answers = await engine.script_client.together(*calls)
    assert calls[0].decode(answers[0]) == ["ok"]
    assert [lease.id for lease in calls[1].decode(answers[1]).leases] == ["b"]
    assert calls[2].decode(answers[2]) == ["done", "cancelling"]


async def test_an_empty_pipeline_gets_no_answers(engine: Engine) -> None:
    assert await engine.script_client.together() == []


async def test_an_error_in_a_script_is_raised_and_not_sent_again(engine: Engine) -> None:
    await enqueue(engine, new_job("a"))
    before = await dump(engine)
    engine.script_client.stop_at = 1
    with pytest.raises(PenstockError, match="stopped at call 1"):
        await engine.cancel(["a"])
    with pytest.raises(PenstockError, match="stopped at call 1"):
        engine.cancel(["a"]).sync()
    engine.script_client.stop_at = 0
    assert await dump(engine) == before


# Another layout


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"init"}))
async def test_a_layout_that_is_not_known_is_refused_and_not_touched(url: str, verb: str) -> None:
    clock = Clock()
    engine = open_engine(url, namespace(), clock)
    call = await SCENARIOS[verb](engine, clock)
    client = await raw(engine)
    await client.hset(engine.keys("meta"), "schema", "99")
    before = await dump(engine)
    with pytest.raises(SchemaMismatch, match=f"layout 99, this Penstock knows {SCHEMA}"):
        await call
    with pytest.raises(UnsuitableServer):
        call.sync()
    await forget_scripts(engine)
    with pytest.raises(SchemaMismatch):
        await call
    assert await dump(engine) == before
    await client.hset(engine.keys("meta"), "schema", SCHEMA)
    await call
    await client.delete(*engine.all_keys())
    await engine.script_client.endpoint.aclose()


async def test_data_of_an_older_layout_is_refused_and_the_message_says_what_to_do(engine: Engine) -> None:
    await enqueue(engine, new_job("a"))
    client = await raw(engine)
    await client.hset(engine.keys("meta"), "schema", "4")
    with pytest.raises(SchemaMismatch, match="let the version that wrote it finish its jobs, or use another namespace"):
        await engine.cancel(["a"])
    await client.hset(engine.keys("meta"), "schema", SCHEMA)


# The server lost its data


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_namespace_that_vanished_is_made_again_by_the_next_call(engine: Engine, blocking: bool) -> None:
    await populate(engine)
    await (await raw(engine)).delete(*engine.all_keys())
    call = engine.enqueue([new_job("a")])
    placed = call.sync() if blocking else await call
    assert [answer.word for answer in placed] == ["created"]
    assert await states(engine) == {"a": "ready"}


async def test_workers_register_again_after_flushall_and_go_on(own: Server) -> None:
    async with opened(own.url) as engine:
        await populate(engine)
        own.client().flushall()
        own.client().script_flush()
        own.client().function_flush()
        assert await engine.lease("worker", 9) == Leased("unknown", again=False, leases=[])
        assert (await engine.renew(LIFE, ["worker"])).words == ["unknown"]
        assert await engine.complete("worker", [("running", 2, b"")]) == ["stale"]
        assert await engine.register("worker", LIFE) == "ok"
        await enqueue(engine, new_job("a"))
        assert [lease.id for lease in (await engine.lease("worker", 10)).leases] == ["a"]
        assert await audit(engine) == []


# The server is away


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_server_that_is_down_is_unavailable_within_the_deadline_and_back_when_it_is_back(
    blocking: bool,
) -> None:
    async def send(call: Any) -> Any:
        return await asyncio.to_thread(call.sync) if blocking else await call

    with running(Server("--appendonly", "no")) as server:
        async with opened(server.url, deadline=0.7) as engine:
            call = engine.enqueue([new_job("a", nonce="x")])
            await send(call)
            server.kill()
            for _ in range(2):
                began = time.monotonic()
                with pytest.raises(Unavailable):
                    await send(call)
                assert time.monotonic() - began < 0.7 + 1.5
            server.restart()
            assert [placed.word for placed in await send(call)] == ["created"]


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_call_outlasts_a_server_that_is_back_within_the_deadline(blocking: bool) -> None:
    with running(Server("--appendonly", "no")) as server:
        async with opened(server.url, deadline=10) as engine:
            call = engine.enqueue([new_job("a")])
            await call
            server.kill()
            waiting = asyncio.create_task(asyncio.to_thread(call.sync) if blocking else engine.script_client.run(call))
            await asyncio.to_thread(server.restart)
            assert [placed.word for placed in await waiting] == ["created"]


async def test_a_server_that_was_never_there_is_unavailable_within_the_deadline() -> None:
    async with opened("redis://127.0.0.1:1", deadline=0.3) as engine:
        began = time.monotonic()
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
            await engine.enqueue([new_job()])
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
            engine.enqueue([new_job()]).sync()
        assert time.monotonic() - began < 2 * 0.3 + 1.5


async def test_a_call_with_less_time_left_than_others_on_its_connection_is_refused_in_its_time(proxy: Proxy) -> None:
    async with opened(proxy.url) as engine:
        client: Any = await engine.script_client.endpoint.client()
        pipe = await client.connection_pool.shared()
        proxy.stall("requests")
        ping = pack_command(("PING",))
        longer, begin = pipe.roundtrip(ping, 1, 20.0), time.monotonic()
        with pytest.raises(TimeoutError):
            await pipe.roundtrip(ping, 1, 0.1)
        assert time.monotonic() - begin < 5
        proxy.flow()
        assert await longer == [b"PONG"]


# A reply is lost


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("verb", ANSWERED_ALIKE)
async def test_a_call_whose_reply_was_lost_is_answered_as_if_it_were_the_first(
    single: Server, proxy: Proxy, verb: str, blocking: bool
) -> None:
    answers, stored = [], []
    for url in (single.url, proxy.url):
        clock = Clock()
        async with opened(url, clock=clock) as engine:
            call = await SCENARIOS[verb](engine, clock)
            if url == proxy.url:
                # The script, or the function, is there after the first round.
                proxy.lose()
            answers.append(await asyncio.to_thread(call.sync) if blocking else await call)
            stored.append({job_id: await header_of(engine, job_id) for job_id in await states(engine)})
            assert await audit(engine) == []
            await (await raw(engine)).delete(*engine.all_keys())
    assert proxy.lost == 1
    first, second = answers
    if isinstance(first, Leased):
        first, second = sorted(first.leases), sorted(second.leases)
    assert first == second
    assert stored[0] == stored[1]


# A second prune goes on where the first ended: tombstones that it made itself may be old enough to go.
@pytest.mark.parametrize("verb", sorted(set(VERBS) - {*ANSWERED_ALIKE, "prune"}))
async def test_a_call_whose_reply_was_lost_is_executed_once(single: Server, proxy: Proxy, verb: str) -> None:
    stored = []
    for url in (single.url, proxy.url):
        clock = Clock()
        async with opened(url, clock=clock) as engine:
            call = await SCENARIOS[verb](engine, clock)
            if url == proxy.url:
                proxy.lose()
            await call
            stored.append({job_id: await header_of(engine, job_id) for job_id in await states(engine)})
            assert await audit(engine) == []
            await (await raw(engine)).delete(*engine.all_keys())
    assert proxy.lost == 1
    assert stored[0] == stored[1]


async def test_a_jobs_life_is_the_same_whichever_of_its_replies_is_lost(proxy: Proxy) -> None:
    lost = 0
    while True:
        lost += 1
        clock = Clock()
        async with opened(proxy.url, clock=clock) as engine:
            await engine.init()
            proxy.lose(lost)
            await _life(engine, clock)
            header = await header_of(engine, "a")
            assert (header.state, header.starts, header.failures, header.releases) == ("done", 3, 1, 1)
            assert await audit(engine) == []
            await (await raw(engine)).delete(*engine.all_keys())
        if proxy.lost < lost:
            break
    assert lost > 8


async def _life(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine, "w").register()
    assert [answer.word for answer in await engine.enqueue([new_job("a", nonce="x")])] == ["created"]
    (lease,) = await worker.lease()
    assert await engine.progress("w", "a", 1, "[1,2]") == "ok"
    assert await worker.retry(lease, 1_000) == "ok"
    clock.advance(1_000)
    await engine.promote()
    (lease,) = await worker.lease()
    assert await worker.release(lease) == "ok"
    (lease,) = await worker.lease()
    assert await worker.complete(lease, b"result") == "ok"
