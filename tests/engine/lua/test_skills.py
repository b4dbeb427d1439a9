"""Skills: a job whose task only some live workers know is left to these."""

from typing import Any

import pytest

from penstock.engine.answers import read_pushed_lease
from penstock.engine.engine import Engine
from penstock.engine.repair.reconcile import reconcile
from tests.conftest import Clock
from tests.engine.factories import (
    LIFE,
    LIMITED,
    ORDERED,
    TestWorker,
    enqueue,
    header_of,
    lane,
    listening,
    new_job,
    open_batch,
    outlive,
    raw,
    states,
)

OLD, NEW = ("common", "old"), ("common", "new")


async def pair(engine: Engine, *queues: str) -> tuple[TestWorker, TestWorker]:
    """A worker of older code, called b, and one of newer code, a, which is woken first."""
    serves = queues or ("*",)
    old, new = TestWorker(engine, "b", serves, OLD), TestWorker(engine, "a", serves, NEW)
    return await old.register(), await new.register()


async def taken(worker: TestWorker, want: int = 9, *, push: bool = False) -> list[str]:
    return [lease.id for lease in await worker.lease(want, push=push)]


async def uneven(engine: Engine) -> bool:
    return bool(await (await raw(engine)).hget(engine.keys("meta"), "uneven") == b"1")


@pytest.mark.parametrize("queues", [("*",), ("default",), ("other", "default")])
async def test_a_worker_is_given_only_jobs_of_tasks_that_it_knows(engine: Engine, queues: tuple[str, ...]) -> None:
    old, new = await pair(engine, *queues)
    await enqueue(engine, *(new_job(f"{task}{n}", task=task) for n in range(3) for task in ("old", "new", "common")))
    assert await taken(new, 4) == ["new0", "common0", "new1", "common1"]
    assert await taken(old) == ["old0", "old1", "old2", "common2"]
    assert await taken(old) == []
    assert await taken(new) == ["new2"]


@pytest.mark.parametrize(
    "fields",
    [{"unique": "u"}, *({"lanes": specs} for specs in (["lock:t"], [LIMITED], [ORDERED], ["lock:t", LIMITED]))],
    ids=["unique", "locked", "limited", "ordered", "two lanes"],
)
async def test_a_unique_or_laned_job_goes_to_a_worker_that_knows_its_task(
    engine: Engine, fields: dict[str, Any]
) -> None:
    old, new = await pair(engine)
    await enqueue(engine, new_job("a", task="old", **fields), new_job("b", task="common"))
    assert await taken(new) == ["b"]
    assert await taken(old) == ["a"]


async def test_the_next_jobs_of_a_lane_are_passed_over_too(engine: Engine) -> None:
    """A lane shows eight at once; lease goes on with those that wait in it."""
    old, new = await pair(engine)
    many = lane("many", 100)
    await enqueue(engine, *(new_job(f"c{n}", task="common", lanes=[many]) for n in range(8)))
    others = [(task, n) for n in range(4) for task in ("old", "new")]
    await enqueue(engine, *(new_job(f"{task}{n}", task=task, lanes=[many]) for task, n in others))
    assert await taken(new, 30) == [*(f"c{n}" for n in range(8)), *(f"new{n}" for n in range(4))]
    assert await taken(old, 30) == [f"old{n}" for n in range(4)]


async def test_a_lane_whose_next_job_is_passed_over_blocks_no_other_lane(engine: Engine) -> None:
    old, new = await pair(engine)
    jobs = [("old", "lock:x"), ("new", "lock:x"), ("new", "lock:y"), ("old", "lock:z"), ("new", "lock:z")]
    await enqueue(engine, *(new_job(f"{task}-{name[-1]}", task=task, lanes=[name]) for task, name in jobs))
    assert await taken(new) == ["new-y"]
    held = await old.lease(9)
    assert [lease.id for lease in held] == ["old-x", "old-z"]
    for lease in held:
        await old.complete(lease)
    assert await taken(new) == ["new-x", "new-z"]


async def test_members_of_a_batch_go_to_workers_that_know_their_tasks(engine: Engine) -> None:
    old, new = await pair(engine)
    await open_batch(engine, "b", *(new_job(f"{task}{n}", task=task) for n in range(20) for task in ("old", "new")))
    assert await taken(new, 40) == [f"new{n}" for n in range(20)]
    assert await taken(old, 40) == [f"old{n}" for n in range(20)]


async def test_a_worker_looks_past_two_thousand_jobs_of_others_at_most(engine: Engine) -> None:
    _, new = await pair(engine)
    for page in range(0, 900, 100):
        await enqueue(engine, *(new_job(f"old{page + n}", task="old") for n in range(100)))
    await enqueue(engine, new_job("far", task="new"))
    assert await taken(new, 1) == ["far"]
    for page in range(0, 2000, 100):
        await enqueue(engine, *(new_job(f"more{page + n}", task="old") for n in range(100)))
    await enqueue(engine, new_job("too-far", task="new"))
    assert await taken(new, 1) == []


async def test_a_line_full_of_others_jobs_keeps_no_worker_from_another_queue(engine: Engine) -> None:
    _, new = await pair(engine)
    for page in range(0, 3000, 100):
        await enqueue(engine, *(new_job(f"old{page + n}", task="old", queue="a") for n in range(100)))
    await enqueue(engine, *(new_job(f"{task}{n}", task=task, queue="b") for n in range(5) for task in ("old", "new")))
    assert await taken(new) == [f"new{n}" for n in range(5)]


async def test_a_job_whose_task_no_worker_knows_is_given_to_any_worker(engine: Engine) -> None:
    old, new = await pair(engine)
    await enqueue(engine, *(new_job(f"a{n}", task="nobody's") for n in range(2)))
    assert (await taken(old, 1), await taken(new, 1)) == (["a0"], ["a1"])


async def test_a_worker_that_names_no_tasks_is_given_everything(engine: Engine) -> None:
    await pair(engine)
    free = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", task="old"), new_job("b", task="new"))
    assert await taken(free) == ["a", "b"]


async def test_workers_with_the_same_tasks_lack_nothing(engine: Engine) -> None:
    for name in ("a", "b"):
        await TestWorker(engine, name, tasks=OLD).register()
    assert not await uneven(engine)


async def test_workers_of_different_queues_leave_nothing_to_each_other(engine: Engine) -> None:
    mail = await TestWorker(engine, queues=("mail", "both"), tasks=OLD).register()
    other = await TestWorker(engine, queues=("other",), tasks=NEW).register()
    assert not await uneven(engine)
    await enqueue(engine, new_job("a", task="new", queue="mail"), new_job("b", task="old", queue="other"))
    assert (await taken(mail), await taken(other)) == (["a"], ["b"])
    both = await TestWorker(engine, queues=("both",), tasks=NEW).register()
    await enqueue(engine, new_job("c", task="new", queue="both"), new_job("d", task="new", queue="mail"))
    assert await taken(mail) == ["d"]
    assert await taken(both) == ["c"]


@pytest.mark.parametrize("how", ["retired", "reaped", "dead", "taught"])
async def test_a_job_is_given_to_any_worker_when_the_last_that_knows_its_task_is_gone(
    engine: Engine, clock: Clock, how: str
) -> None:
    old, new = await pair(engine)
    await enqueue(engine, new_job("a", task="old"))
    assert await taken(new) == []
    match how:
        case "retired":
            await engine.retire(old.name)
        case "reaped":
            await engine.reap_worker(old.name, [], LIFE)
        case "dead":
            await outlive(engine, clock)
            new = await TestWorker(engine, tasks=NEW).register()
            await engine.reap(LIFE)
        case "taught":
            await engine.register(old.name, LIFE, new.info, old.queues)
    assert not await uneven(engine)
    assert await taken(new) == ["a"]


async def test_a_job_stays_reserved_while_another_worker_of_the_same_code_lives(engine: Engine) -> None:
    old, new = await pair(engine)
    other = await TestWorker(engine, tasks=OLD).register()
    await engine.retire(old.name)
    await enqueue(engine, new_job("a", task="old"))
    assert await taken(new) == []
    assert await taken(other) == ["a"]


async def test_a_resent_register_and_retire_change_nothing_more(engine: Engine) -> None:
    old, new = await pair(engine)
    for _ in range(2):
        await old.register()
        assert await uneven(engine)
    for _ in range(2):
        await engine.retire(new.name)
        assert not await uneven(engine)


async def test_more_kinds_of_workers_than_are_compared_leave_nothing_to_each_other(engine: Engine) -> None:
    workers = [await TestWorker(engine, f"w{n}", tasks=("common", f"own{n}")).register() for n in range(51)]
    assert not await uneven(engine)
    await engine.retire(workers.pop().name)
    assert await uneven(engine)
    await enqueue(engine, new_job("a", task="own7"))
    assert await taken(workers[0]) == []
    assert await taken(workers[7]) == ["a"]


async def test_a_new_job_wakes_an_idle_worker_that_knows_its_task(engine: Engine) -> None:
    old, new = await pair(engine)
    assert (await taken(new), await taken(old)) == ([], [])
    async with (
        listening(engine, engine.keys.channel(old.name)) as subscription,
        listening(engine, engine.keys.channel(new.name)),
    ):
        await enqueue(engine, new_job("a", task="old"))
        assert await subscription.messages() == ["work"]
    assert await taken(old) == ["a"]


async def test_a_new_job_is_pushed_to_an_idle_worker_that_knows_its_task(engine: Engine) -> None:
    old, new = await pair(engine)
    for worker in (old, new):
        assert await taken(worker, push=True) == []
    async with (
        listening(engine, engine.keys.channel(old.name)) as subscription,
        listening(engine, engine.keys.channel(new.name)) as other,
    ):
        (placed,) = await engine.enqueue([new_job("a", task="old")])
        assert placed.state == "running"
        (message,) = await subscription.raw_messages()
        assert [lease.id for lease in read_pushed_lease(message)[1].leases] == ["a"]
        assert await other.messages() == []


async def test_a_new_job_becomes_ready_if_no_idle_worker_knows_its_task(engine: Engine) -> None:
    old, new = await pair(engine)
    assert await taken(new, push=True) == []
    async with listening(engine, engine.keys.channel(new.name)):
        (placed,) = await engine.enqueue([new_job("a", task="old")])
    assert placed.state == "ready"
    assert await taken(new) == []
    assert await taken(old) == ["a"]


async def test_a_job_that_was_passed_over_keeps_its_place_and_is_not_charged(engine: Engine) -> None:
    old, new = await pair(engine)
    await enqueue(engine, new_job("a", task="old"), new_job("b", task="old"))
    before = await header_of(engine, "a")
    assert await taken(new) == []
    assert await header_of(engine, "a") == before
    assert await taken(old, 1) == ["a"]
    assert await states(engine) == {"a": "running", "b": "ready"}


@pytest.mark.parametrize("info", ["{}", "nonsense", "[]", '{"tasks": 7}', '{"tasks": [1, null]}', '{"tasks": {}}', ""])
async def test_a_worker_whose_information_names_no_tasks_is_given_any_job(engine: Engine, info: str) -> None:
    await pair(engine)
    assert await engine.register("free", LIFE, info) == "ok"
    await enqueue(engine, new_job("a", task="old"))
    assert [lease.id for lease in (await engine.lease("free", 1)).leases] == ["a"]


@pytest.mark.parametrize("lost", ["skills", "uneven", "lacks", "worker", "stray"])
async def test_damaged_skills_are_repaired(engine: Engine, lost: str) -> None:
    _, new = await pair(engine)
    client, meta, skills = await raw(engine), engine.keys("meta"), engine.keys("skills")
    match lost:
        case "skills":
            await client.zremrangebyrank(skills, 1, -1)
        case "uneven":
            await client.hdel(meta, "uneven")
        case "lacks":
            lacks = [name for name in await client.hkeys(meta) if name.startswith(b"lacks")]
            assert len(lacks) == 2
            await client.hdel(meta, *lacks)
        case "worker":
            await client.hdel(meta, f"skills\x1f{new.name}")
        case "stray":
            await client.zadd(skills, {"abc\x1fnobody": 0})
            await client.hset(meta, mapping={"skills\x1fnobody": "abc", "lacks\x1fabc": "*\x1fcommon"})
    assert await reconcile(engine) > 0
    assert await reconcile(engine) == 0
    await enqueue(engine, new_job("a", task="old"))
    assert await taken(new) == []
