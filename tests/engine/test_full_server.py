"""A full server refuses new jobs at once and does everything else; it accepts jobs again when others are gone."""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from penstock.engine.engine import Engine, Retention
from penstock.engine.read.views import Views
from penstock.engine.repair.audit import audit
from penstock.engine.repair.reconcile import reconcile
from penstock.errors import QueueFull
from tests.conftest import namespace, open_engine
from tests.engine.factories import (
    LIFE,
    TestWorker,
    call_of,
    dump,
    enqueue,
    forget_scripts,
    listening,
    new_job,
    raw,
    states,
)
from tests.servers import Server, running

NOTHING = Retention(finished=0, tomb_life=0, tombs=0, dead_life=0, dead=0)


@pytest.fixture(scope="module")
def small() -> Iterator[Server]:
    with running(Server("--appendonly", "no", "--maxmemory", "12mb", "--maxmemory-policy", "noeviction")) as server:
        yield server


@pytest.fixture
async def engine(small: Server) -> AsyncIterator[Engine]:
    made = open_engine(small.url, namespace())
    client = await raw(made)
    await client.config_set("maxmemory", "12mb")
    yield made
    assert await audit(made) == []
    await client.flushall()
    await made.script_client.endpoint.aclose()


async def fill(engine: Engine) -> int:
    """Enqueue until even an empty job is refused; how many were accepted."""
    accepted = 0
    for size in (20_000, 1_000, 0):
        while True:
            try:
                accepted += len(
                    await enqueue(engine, *(new_job(queue="filler", payload=bytes(size)) for _ in range(5)))
                )
            except QueueFull:
                break
    return accepted


async def fill_for_good(engine: Engine) -> int:
    """Fill it, and take away what the calls that follow may free; how many were accepted."""
    accepted = await fill(engine)
    client = await raw(engine)
    used = (await client.info("memory"))["used_memory"]
    await client.config_set("maxmemory", int(used * 0.8))
    return accepted


@asynccontextmanager
async def new_client(engine: Engine, server: Server) -> AsyncIterator[Engine]:
    """The same namespace from a connection that is opened only now."""
    made = open_engine(server.url, engine.keys.namespace)
    try:
        yield made
    finally:
        await made.script_client.endpoint.aclose()


async def test_enqueue_is_refused_at_once_and_stores_nothing(engine: Engine) -> None:
    accepted = await fill_for_good(engine)
    before = await dump(engine)
    began = time.monotonic()
    for call in (engine.enqueue([new_job("a")]), engine.enqueue([new_job("b", due=1_000, unique="u")])):
        with pytest.raises(QueueFull, match="no memory left"):
            await call
        with pytest.raises(QueueFull, match="nothing was stored"):
            call.sync()
    assert time.monotonic() - began < engine.script_client.deadline  # of four calls none waits as long as one may
    assert await dump(engine) == before
    assert await Views(engine).counts() == {"filler": {"ready": accepted}}


async def test_all_verbs_but_enqueue_and_revive_work_on_a_full_server(engine: Engine, small: Server) -> None:
    worker = await TestWorker(engine, "w", ("*",)).register()
    await enqueue(
        engine, *(new_job(job_id, priority=0) for job_id in "abcdefgh"), new_job("cancelled"), new_job("dead")
    )
    await enqueue(engine, new_job("due", due=1), new_job("late", expires=1, due=60_000), new_job("waiting"))
    await engine.cancel(["cancelled"])
    await fill_for_good(engine)
    with pytest.raises(QueueFull):
        await engine.revive(["cancelled"])

    assert await engine.register("new", LIFE, "{}" * 100, ("mail",)) == "ok"
    a, b, c, d, e, f, g, h = await worker.lease(8)
    assert [lease.id for lease in (a, b, c, d, e, f, g, h)] == list("abcdefgh")
    assert (await engine.renew(LIFE, ["w", "new"])).words == ["ok", "ok"]
    assert await engine.progress("w", "a", call_of(a), "[1,2]") == "ok"
    assert await worker.complete(a, b"result" * 1_000) == "ok"
    assert await worker.retry(b, error='"' + "x" * 5_000 + '"') == "ok"
    assert await worker.bury(c, error='"' + "x" * 5_000 + '"') == "ok"
    assert await worker.release(d) == "ok"
    assert await worker.snooze(e, 60_000) == "ok"
    async with listening(engine, engine.keys.channel("w")) as subscription:
        assert await engine.cancel(["f", "waiting"]) == ["cancelling", "cancelled"]
        assert await subscription.messages() == ["cancel f"]
    assert [watched.state for watched in await engine.watch("client", ["a", "g"])] == ["done", "running"]
    while (await engine.promote())[0] == 0:
        pass
    while (await engine.expire())[0] == 0:
        pass
    assert [await engine.pause("filler"), await engine.resume("filler")] == ["ok", "ok"]
    assert (await engine.prune(Retention(dead=0)))[0] == 1
    assert await engine.reap(LIFE) == (0, 0)
    assert await engine.reap_worker("w", ["g"], LIFE) == (3, 0)
    assert await engine.retire("new") == (0, 0)
    await (await raw(engine)).delete(engine.keys("ready"))
    assert await reconcile(engine) > 0
    state_of = await states(engine)
    expected = {"a": "done", "b": "ready", "c": "dead", "d": "ready", "e": "scheduled", "f": "cancelled", "g": "ready"}
    assert {job_id: state_of[job_id] for job_id in expected} == expected
    assert {state_of[job_id] for job_id in ("late", "waiting")} == {"cancelled"}
    with pytest.raises(QueueFull):
        await engine.enqueue([new_job()])


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_client_that_connects_now_works_too(engine: Engine, small: Server, blocking: bool) -> None:
    await fill_for_good(engine)
    await forget_scripts(engine)
    async with new_client(engine, small) as late:
        refused, register, lease = late.enqueue([new_job()]), late.register("w", LIFE), late.lease("w", 1)
        with pytest.raises(QueueFull):
            _ = refused.sync() if blocking else await refused
        assert (register.sync() if blocking else await register) == "ok"
        (taken,) = (lease.sync() if blocking else await lease).leases
        assert await late.complete("w", [(taken.id, 1, b"")]) == ["ok"]


async def test_a_namespace_can_be_opened_on_a_full_server_but_takes_no_job(engine: Engine, small: Server) -> None:
    await fill_for_good(engine)
    other = open_engine(small.url, namespace())
    with pytest.raises(QueueFull):
        await other.enqueue([new_job()])
    assert await other.register("w", LIFE) == "ok"
    assert (await other.lease("w", 1)).leases == []
    assert await audit(other) == []
    await other.script_client.endpoint.aclose()


async def test_new_jobs_are_accepted_again_when_others_are_done_and_forgotten(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    accepted = await fill(engine)
    ran = 0
    while leases := await worker.lease(50):
        answers = await engine.complete(worker.name, [(lease.id, call_of(lease), b"r" * 100) for lease in leases])
        assert answers == ["ok"] * len(leases)
        ran += len(leases)
    assert ran == accepted
    while (await engine.prune(NOTHING))[0]:
        pass
    assert await enqueue(engine, new_job("a"), new_job("b", payload=bytes(20_000))) == ["a", "b"]
    again = await fill(engine)
    print(f"\n{accepted} jobs filled 12 MB, {again + 2} the second time")
    assert again > accepted // 2
