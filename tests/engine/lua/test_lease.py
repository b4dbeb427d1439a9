"""lease: ready → running, for the first jobs of a worker's queues."""

from typing import Any

import pytest

from penstock.engine.answers import Leased
from penstock.engine.engine import PAGE, Engine, Retention
from penstock.engine.read.views import Views
from penstock.engine.repair.reconcile import reconcile
from penstock.worker.session import MAX_CALLS_AHEAD
from tests.conftest import Clock
from tests.engine.factories import (
    LIFE,
    TestWorker,
    call_of,
    dump,
    enqueue,
    happened,
    header_of,
    listening,
    new_job,
    raw,
    rewrite,
    rewrite_raw,
    spoil,
    states,
)


async def test_a_job_runs_under_the_name_of_the_call_that_took_it(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine, "w").register()
    await enqueue(engine, new_job("a", payload=b"bytes", unique="u", retries=7))
    queued = await header_of(engine, "a")
    clock.advance(500)
    leased = await engine.lease(worker.name, 3)
    (lease,) = leased.leases
    header = lease.header
    assert (leased.word, leased.again, lease.id, lease.payload) == ("ok", False, "a", b"bytes")
    assert (header.state, header.claim, header.starts, header.attempt) == ("running", "w\x1f3", 1, 1)
    assert header.started == header.since == clock()
    assert (header.unique, header.retries, header.seq, header.created) == ("u", 7, queued.seq, queued.created)
    assert header == await header_of(engine, "a")


async def test_an_empty_queue_gives_no_jobs(engine: Engine) -> None:
    await engine.register("w", LIFE)
    assert await engine.lease("w", 1) == Leased("ok", again=False, leases=[])


async def test_fences_grow_with_every_start_even_when_the_clock_is_set_back(engine: Engine, clock: Clock) -> None:
    one, two = await TestWorker(engine).register(), await TestWorker(engine).register()
    await enqueue(engine, *(new_job() for _ in range(6)))
    fences = []
    for worker, jump in ((one, 0), (two, -60_000), (one, 120_000)):
        clock.advance(jump)
        fences += [lease.header.fence for lease in await worker.lease(2)]
    assert fences == sorted(set(fences))
    assert fences[-1] >= clock() * 1000


async def test_a_worker_that_is_not_registered_gets_nothing_and_changes_nothing(engine: Engine) -> None:
    await (await TestWorker(engine, "gone").register()).lease()
    await engine.retire("gone")
    await enqueue(engine, new_job())
    before = await dump(engine)
    for name in ("never", "gone"):
        assert await engine.lease(name, 1) == Leased("unknown", again=False, leases=[])
    assert await dump(engine) == before


async def test_a_resent_call_gets_its_jobs_again_and_no_others(engine: Engine, clock: Clock) -> None:
    await engine.register("w", LIFE)
    await enqueue(engine, *(new_job() for _ in range(5)))
    first = await engine.lease("w", 1, want=3)
    clock.advance(100)
    before = await dump(engine)
    again = await engine.lease("w", 1, want=5)
    assert sorted(again.leases) == sorted(first.leases)
    assert await dump(engine) == before


async def test_a_resent_call_gets_what_it_still_holds_in_its_order_and_never_anything_new(engine: Engine) -> None:
    await engine.register("w", LIFE)
    await enqueue(engine, new_job("c", priority=1), new_job("b", priority=2), new_job("a", priority=3), new_job("d"))
    call = engine.lease("w", 1, want=3)
    assert [lease.id for lease in (await call).leases] == ["c", "b", "a"]
    assert [lease.id for lease in (await call).leases] == ["c", "b", "a"]
    await engine.release("w", [("b", 1)])
    assert [lease.id for lease in (await call).leases] == ["c", "a"]
    await engine.complete("w", [("a", 1, b""), ("c", 1, b"")])
    assert await call == Leased("ok", again=False, leases=[])
    assert await states(engine) == {"a": "done", "b": "ready", "c": "done", "d": "ready"}


async def test_calls_under_way_at_the_same_time_have_their_own_jobs(engine: Engine) -> None:
    await engine.register("w", LIFE)
    await enqueue(engine, *(new_job() for _ in range(4)))
    later, earlier = await engine.lease("w", 11, want=2), await engine.lease("w", 1, want=2)
    assert len({lease.id for lease in (*later.leases, *earlier.leases)}) == 4
    assert sorted((await engine.lease("w", 1, want=2)).leases) == sorted(earlier.leases)
    assert sorted((await engine.lease("w", 11, want=2)).leases) == sorted(later.leases)


async def test_a_call_whose_answer_the_worker_has_is_stale(engine: Engine) -> None:
    await engine.register("w", LIFE)
    await enqueue(engine, new_job(), new_job(), new_job())
    await engine.lease("w", 1)
    await engine.lease("w", 2, answered=1)
    before = await dump(engine)
    assert await engine.lease("w", 1) == Leased("stale", again=False, leases=[])
    assert await dump(engine) == before
    assert len((await engine.lease("w", 2)).leases) == 1


async def test_as_many_calls_as_a_worker_makes_beyond_one_without_an_answer_leave_its_jobs_to_it(
    engine: Engine,
) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    (a,) = (await engine.lease(worker.name, 1)).leases
    for number in range(2, MAX_CALLS_AHEAD + 2):
        assert (await engine.lease(worker.name, number, answered=0)).word == "ok"
    assert [lease.id for lease in (await engine.lease(worker.name, 1)).leases] == [a.id]


async def test_an_answered_call_is_not_forgotten_by_a_call_that_was_sent_earlier(engine: Engine) -> None:
    await engine.register("w", LIFE)
    await engine.lease("w", 3, answered=2)
    await engine.lease("w", 4, answered=0)
    assert (await engine.lease("w", 2)).word == "stale"


async def test_named_queues_are_worked_off_in_their_order(engine: Engine) -> None:
    await enqueue(engine, new_job("b1", queue="b", priority=0), new_job("a1", queue="a"), new_job("c1", queue="c"))
    await enqueue(engine, new_job("a0", queue="a", priority=1))
    worker = await TestWorker(engine, queues=("a", "b")).register()
    assert [lease.id for lease in await worker.lease(9)] == ["a0", "a1", "b1"]


async def test_all_queues_are_one_line_by_priority_and_then_by_arrival(engine: Engine) -> None:
    await enqueue(engine, new_job("late", queue="a", priority=60), new_job("early", queue="c", priority=10))
    await enqueue(engine, new_job("first", queue="b"), new_job("second", queue="a"), new_job("third", queue="c"))
    worker = await TestWorker(engine).register()
    assert [lease.id for lease in await worker.lease(4)] == ["early", "first", "second", "third"]
    assert [lease.id for lease in await worker.lease(4)] == ["late"]


async def test_a_full_page_of_all_queues_has_the_most_urgent_however_they_are_spread(engine: Engine) -> None:
    await engine.enqueue([new_job(queue="a", priority=9) for _ in range(PAGE)])
    await engine.enqueue([new_job(queue=f"b{i % 7}", priority=i % 9) for i in range(PAGE - 10)])
    worker = await TestWorker(engine).register()
    places = [(lease.header.priority, lease.header.seq) for _ in range(2) for lease in await worker.lease(PAGE)]
    assert len(places) == 2 * PAGE - 10
    assert places == sorted(places)


async def test_a_lease_of_very_many_queues_gives_as_many_jobs_in_order(engine: Engine) -> None:
    jobs = [new_job(queue=f"q{i % 60}", priority=i * 7 % 100) for i in range(PAGE)]
    await engine.enqueue(jobs)
    await engine.register("w", LIFE)
    answer = await engine.lease("w", 1, want=PAGE)
    assert (len(answer.leases), answer.again) == (PAGE, False)
    places = [(lease.header.priority, lease.header.seq) for lease in answer.leases]
    assert places == sorted(places)


async def test_queues_whose_names_share_a_prefix_are_not_mixed_up(engine: Engine) -> None:
    names = ("a", "ab", "a b", "a:b", "a.", "b")
    await enqueue(engine, *(new_job(f"in {name}", queue=name) for name in names))
    for name in names:
        worker = await TestWorker(engine, queues=(name,)).register()
        assert [lease.id for lease in await worker.lease(9)] == [f"in {name}"]


async def test_workers_whose_names_share_a_prefix_are_not_mixed_up(engine: Engine) -> None:
    names = ("w", "w1", "w 1", "w:1")
    await enqueue(engine, *(new_job() for _ in names))
    leased = {name: await (await TestWorker(engine, name).register()).lease() for name in names}
    for name in names:
        assert (await engine.lease(name, 1)).leases == leased[name]
    assert await engine.retire("w") == (1, 0)


@pytest.mark.parametrize("queues", [("*",), ("default", "other")])
async def test_a_paused_queue_is_passed_over(engine: Engine, queues: tuple[str, ...]) -> None:
    await enqueue(engine, new_job("a"), new_job("b", queue="other"))
    await engine.pause("default")
    worker = await TestWorker(engine, queues=queues).register()
    assert [lease.id for lease in await worker.lease(9)] == ["b"]
    await engine.resume("default")
    assert [lease.id for lease in await worker.lease(9)] == ["a"]


async def test_a_lease_gives_at_most_what_was_wanted_and_at_most_a_page(engine: Engine) -> None:
    for _ in range(2):
        await engine.enqueue([new_job() for _ in range(PAGE)])
    worker = await TestWorker(engine).register()
    assert [len(await worker.lease(want)) for want in (0, 1, 7, 10_000)] == [0, 1, 7, PAGE]


async def test_payloads_beyond_the_room_wait_but_the_first_is_always_given(engine: Engine) -> None:
    await engine.register("w", LIFE)
    await enqueue(
        engine, *(new_job(job_id, payload=bytes(size)) for job_id, size in (("a", 900), ("b", 60), ("c", 50)))
    )
    first = await engine.lease("w", 1, want=9, room=100)
    assert ([lease.id for lease in first.leases], first.again) == (["a"], True)
    second = await engine.lease("w", 2, want=9, room=110)
    assert ([lease.id for lease in second.leases], second.again) == (["b", "c"], False)


async def test_a_job_that_expired_while_ready_is_cancelled_instead_of_started(engine: Engine, clock: Clock) -> None:
    await engine.register("w", LIFE)
    await enqueue(engine, new_job("late", expires=1_000, unique="u"), new_job("a", expires=1_001))
    clock.advance(1_000)
    leased = await engine.lease("w", 1, want=2)
    assert ([lease.id for lease in leased.leases], leased.again) == (["a"], True)
    header = await header_of(engine, "late")
    assert (header.state, header.reason, header.starts) == ("cancelled", "expired", 0)
    assert (await happened(engine))[2:] == [("expire", "late", "expired"), ("lease", "a", "")]
    assert [placed.word for placed in await engine.enqueue([new_job(unique="u")])] == ["created"]


async def test_a_running_job_does_not_expire(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", expires=1_000))
    (lease,) = await worker.lease()
    clock.advance(5_000)
    assert (await engine.expire())[:2] == (0, -1)
    assert await worker.complete(lease) == "ok"


async def test_a_job_without_its_payload_is_buried_and_the_next_is_given(engine: Engine) -> None:
    await engine.register("w", LIFE)
    await enqueue(engine, new_job("lost", unique="u", payload=b"." * 300), new_job("a"))
    await (await raw(engine)).hdel(engine.keys("payloads"), "lost")
    leased = await engine.lease("w", 1, want=2)
    assert ([lease.id for lease in leased.leases], leased.again) == (["a"], True)
    header = await header_of(engine, "lost")
    assert (header.state, header.reason, header.starts) == ("dead", "payload_lost", 0)
    assert (await happened(engine))[2:] == [("bury", "lost", "payload_lost"), ("lease", "a", "")]
    await engine.prune(Retention(dead=0))


async def test_unknown_entries_of_a_queue_are_dropped_and_delay_no_job(engine: Engine) -> None:
    await engine.register("w", LIFE)
    await enqueue(
        engine, new_job("a"), new_job("scheduled", due=5_000), new_job("spoilt", priority=0), new_job("ended")
    )
    await engine.cancel(["ended"])
    await spoil(engine, "spoilt")
    client, rank = await raw(engine), "00" + "0" * 12
    strays = [f"default\x1f{rank}\x1f{job_id}" for job_id in ("never-was", "scheduled", "ended")]
    await client.zadd(
        engine.keys("ready"), dict.fromkeys([*strays, "default\x1f", "default\x1f0", "default\x1fx\x1fy"], 0)
    )
    leased = [await engine.lease("w", number, want=2) for number in range(1, 9)]
    assert [lease.id for answer in leased for lease in answer.leases] == ["a"]
    assert [leased[0].again, leased[-1].again] == [True, False]
    assert await client.zrange(engine.keys("ready"), 0, -1) == [b""]
    await reconcile(engine)
    assert await states(engine) == {"a": "running", "scheduled": "scheduled", "spoilt": "dead", "ended": "cancelled"}


async def test_a_worker_that_got_less_than_it_wanted_is_woken_for_the_next_job(engine: Engine) -> None:
    worker = await TestWorker(engine, "w").register()
    await enqueue(engine, new_job(), new_job(), new_job())
    async with listening(engine, engine.keys.channel("w")) as subscription:
        assert len(await worker.lease(2)) == 2
        await enqueue(engine, new_job())
        assert await subscription.messages() == []
        assert len(await worker.lease(3)) == 2
        await enqueue(engine, new_job(), new_job())
        assert await subscription.messages() == ["work"]
        await enqueue(engine, new_job())
        assert await subscription.messages() == []


async def test_a_worker_that_is_told_to_ask_again_is_not_idle(engine: Engine) -> None:
    worker = await TestWorker(engine, "w").register()
    await (await raw(engine)).zadd(engine.keys("ready"), {"default\x1f" + "0" * 16 + "\x1fnever-was": 0})
    await engine.pause("default")
    await engine.resume("default")
    leased = await engine.lease(worker.name, 1)
    assert leased.again
    async with listening(engine, engine.keys.channel("w")) as subscription:
        await enqueue(engine, new_job())
        assert await subscription.messages() == []


async def test_lease_is_counted_adds_an_event_and_sums_the_wait(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"), new_job("b", queue="other"), new_job("c", queue="other"))
    clock.advance(250)
    await worker.lease(2)
    assert (await happened(engine))[3:] == [("lease", "a", ""), ("lease", "b", "")]
    assert await Views(engine).counts() == {"default": {"ready": 0, "running": 1}, "other": {"ready": 1, "running": 1}}
    stats = await (await raw(engine)).hgetall(engine.keys("stats"))
    minute = clock() // 60_000
    assert stats[f"{minute}\x1fdefault\x1flease".encode()] == b"1"
    assert stats[f"{minute}\x1fother\x1fwait".encode()] == b"250"
    assert stats[f"{minute}\x1fother\x1fwait 500".encode()] == b"1"


async def test_the_claim_of_a_second_attempt_is_another_one(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a"))
    (first,) = await worker.lease()
    await worker.retry(first)
    (second,) = await worker.lease()
    assert call_of(second) == call_of(first) + 1
    assert (second.header.starts, second.header.attempt) == (2, 2)
    assert second.header.fence > first.header.fence


async def test_a_fence_comes_from_the_servers_own_clock(real_engine: Engine) -> None:
    worker = await TestWorker(real_engine).register()
    await enqueue(real_engine, new_job(), new_job())
    seconds, micros = await (await raw(real_engine)).time()
    fences = [lease.header.fence for _ in range(2) for lease in await worker.lease()]
    assert seconds * 1_000_000 + micros <= fences[0] < fences[1]


async def test_an_expired_job_frees_its_lane_if_it_is_the_only_one(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("late", lanes=["lock:x"], expires=1_000))
    clock.advance(1_000)
    assert await worker.lease() == []
    assert (await states(engine))["late"] == "cancelled"


GARBLED = {
    "past its time": ({"expires": 1_000}, ""),
    "without a payload": ({}, "payloads"),
    "with a lock that is taken": ({"lanes": ["lock:t"]}, ""),
    "of a halted task": ({"task": "halted"}, ""),
}


@pytest.mark.parametrize(("fields", "lost"), GARBLED.values(), ids=GARBLED)
async def test_a_record_whose_rare_fields_are_garbled_is_buried_whatever_else_is_the_matter(
    engine: Engine, clock: Clock, fields: dict[str, Any], lost: str
) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("holder", lanes=["lock:t"]), new_job("bad", nonce="n", **fields))
    await worker.lease()
    client: Any = await raw(engine)
    header = await header_of(engine, "bad")
    if header.state == "held":  # as if the lane had shown it
        await rewrite(engine, "bad", state="ready")
        await client.zrem(engine.keys("held"), (await client.zrange(engine.keys("held"), 1, 1))[0])
        await client.zadd(engine.keys("ready"), {f"default\x1f50{header.seq:012x}\x1fbad": 0})
    await rewrite_raw(engine, "bad", reason=5)
    if lost:
        await client.hdel(engine.keys(lost), "bad")
    await engine.tune("task:halted", paused=True)
    await enqueue(engine, new_job("good"))
    clock.advance(2_000)
    assert [lease.id for lease in [*await worker.lease(5), *await worker.lease(5)]] == ["good"]
    assert (await header_of(engine, "bad")).reason == "unreadable_header"
    await reconcile(engine)
