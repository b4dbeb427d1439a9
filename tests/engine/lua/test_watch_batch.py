"""watch_batch: members in the order in which they finished, page by page, and a message when there are more."""

from penstock.engine.engine import Engine
from tests.engine.factories import TestWorker, listening, new_job, open_batch


async def test_pages_come_in_the_order_of_finishing_with_all_that_is_known(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await open_batch(engine, "b", *(new_job(f"j{n}") for n in range(5)))
    leases = await worker.lease(5)
    for lease in reversed(leases[1:]):
        await worker.complete(lease, lease.id.encode())
    await worker.bury(leases[0], error='{"type": "Oops"}')
    members, after = [], 0
    while (page := await engine.watch_batch("client", "b", finished=2, after=after)).members:
        members += page.members
        after = page.last
    assert [(member.id, member.watched.result) for member in members[:-1]] == [
        (f"j{n}", b"j%d" % n) for n in (4, 3, 2, 1)
    ]
    assert [member.number for member in members] == [1, 2, 3, 4, 5]
    last = members[-1].watched
    assert (last.state, last.attempts[0].error) == ("dead", '{"type": "Oops"}')
    assert (await engine.watch_batch("client", "nobody")).status is None


async def test_an_answer_is_bounded_in_bytes(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await open_batch(engine, "b", *(new_job(f"j{n}") for n in range(3)))
    for lease in await worker.lease(3):
        await worker.complete(lease, b"x" * 1_000)
    page = await engine.watch_batch("client", "b", finished=10, room=1_500)
    assert len(page.members) == 2


async def test_a_reader_gets_one_message_that_there_is_more(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    async with listening(engine, engine.keys.channel("client")) as subscription:
        await open_batch(engine, "b", new_job("a"), new_job("c"))
        for _ in range(2):
            assert not (await engine.watch_batch("client", "b", finished=10)).members
        for lease in await worker.lease(2):
            await worker.complete(lease)
        assert await subscription.messages() == ["end\x1f{more}b"]


async def test_a_batch_inside_has_a_number_but_is_no_job(engine: Engine) -> None:
    await open_batch(engine, "outer")
    await open_batch(engine, "inner", parent="outer")
    await engine.seal_batch("inner")
    page = await engine.watch_batch("client", "outer", finished=10)
    assert (page.members, page.last) == ([], 1)
