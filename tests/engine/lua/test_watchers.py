"""The list of clients that wait for a job stays small, and so do the messages; no client is forgotten."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from penstock.client.waiter import Waiter
from penstock.engine.engine import PAGE, Engine
from tests.conftest import Clock
from tests.engine.factories import TestWorker, call_of, enqueue, listening, new_job, open_batch, raw

MAX_NAMES = 64  #: names in one list


async def _names(engine: Engine, field: str) -> list[str]:
    text = await (await raw(engine)).hget(engine.keys("waiting"), field)
    return text.decode().split("\x1f")[:-1] if text else []


@asynccontextmanager
async def _alive(engine: Engine, clients: Sequence[str]) -> AsyncIterator[None]:
    """Somebody listens to the channels of all these."""
    client: Any = await raw(engine)
    async with client.pubsub() as pubsub:
        await pubsub.ssubscribe(*map(engine.keys.channel, clients))
        for _ in clients:
            assert (await pubsub.get_message(timeout=5))["type"] == "ssubscribe"
        yield


async def test_clients_that_are_gone_make_room_for_new_ones(engine: Engine) -> None:
    await enqueue(engine, new_job("a"))
    async with listening(engine, engine.keys.channel("there")) as subscription:
        await engine.watch("there", ["a"])
        for n in range(10 * MAX_NAMES):
            await engine.watch(f"gone-{n}", ["a"])
            assert len(await _names(engine, "a")) <= MAX_NAMES
        await engine.cancel(["a"])
        assert await subscription.messages() == ["end\x1fa"]


async def test_more_clients_than_a_list_holds_get_one_message_to_all(engine: Engine) -> None:
    await enqueue(engine, new_job("a"))
    clients = [f"client-{n}" for n in range(MAX_NAMES + 10)]
    async with (
        _alive(engine, clients[1:]),
        listening(engine, engine.keys.channel(clients[0])) as first,
        listening(engine, engine.keys.channel("*")) as everybody,
    ):
        for n, client in enumerate(clients[:MAX_NAMES]):
            await engine.watch(client, ["a"])
            assert len(await _names(engine, "a")) == n + 1
        for client in clients[MAX_NAMES:]:
            await engine.watch(client, ["a"])
            assert await _names(engine, "a") == ["*"]
        await engine.cancel(["a"])
        assert await everybody.messages() == ["end\x1fa"]
        assert await first.messages() == []
        assert await _names(engine, "a") == []


async def test_the_list_of_clients_that_wait_for_a_batch_is_bounded(engine: Engine) -> None:
    await open_batch(engine, "b", new_job("a"), then=False)
    for n in range(3 * MAX_NAMES):
        await engine.watch_batch(f"gone-{n}", "b")
        await engine.watch_batch(f"gone-{n}", "b", finished=5)
    for field in ("{end}b", "{more}b"):
        assert 0 < len(await _names(engine, field)) <= MAX_NAMES


async def test_timers_that_wait_for_a_tick_are_never_taken_out(engine: Engine) -> None:
    await enqueue(engine, new_job("a"))
    await (await raw(engine)).hset(engine.keys("waiting"), "a", "crons\x1f")
    for n in range(2 * MAX_NAMES):
        await engine.watch(f"gone-{n}", ["a"])
    assert (await _names(engine, "a"))[0] == "crons"
    clients = [f"client-{n}" for n in range(MAX_NAMES)]
    async with _alive(engine, clients):
        for client in clients:
            await engine.watch(client, ["a"])
    assert await _names(engine, "a") == ["crons", "*"]
    async with listening(engine, engine.keys.channel("crons")) as subscription:
        await engine.cancel(["a"])
        assert await subscription.messages() == ["end\x1fa"]


async def test_a_script_sends_a_bounded_number_of_messages(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    ids = [f"j{n:02}" for n in range(PAGE)]
    await enqueue(engine, *map(new_job, ids))
    names = {job_id: "".join(f"{job_id}-{n}\x1f" for n in range(9)) for job_id in ids[1:]}
    await (await raw(engine)).hset(engine.keys("waiting"), mapping=names | {"j05": "crons\x1f"})
    leases = await worker.lease(PAGE)
    async with (
        listening(engine, engine.keys.channel("*")) as everybody,
        listening(engine, engine.keys.channel("crons")) as timers,
        listening(engine, engine.keys.channel("j07-3")) as one,
    ):
        await engine.complete(worker.name, [(lease.id, call_of(lease), b"") for lease in leases])
        (message,) = await everybody.messages()
        assert sorted(message.split("\x1f")[1:]) == ids[1:]
        assert await timers.messages() == ["end\x1fj05"]
        assert await one.messages() == []


async def test_a_result_arrives_by_the_message_to_all(real_engine: Engine) -> None:
    engine = real_engine
    await enqueue(engine, new_job("a"))
    waiter = Waiter(engine)
    waiting = asyncio.create_task(waiter.wait("a"))
    client = await raw(engine)
    async with asyncio.timeout(30):
        while not await client.hexists(engine.keys("waiting"), "a"):  # noqa: ASYNC110  (the server has no event of it)
            await asyncio.sleep(0)
    await client.hset(engine.keys("waiting"), "a", "*\x1f")
    await engine.cancel(["a"])
    assert (await asyncio.wait_for(waiting, 30)).state == "cancelled"
    await waiter.aclose()
