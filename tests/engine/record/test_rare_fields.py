"""Jobs with and without rare fields are treated the same: random calls on both, and everything is compared."""

import random
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from penstock.engine.answers import read_leased
from penstock.engine.engine import PAGE, Engine, NewJob
from penstock.engine.read.listing import Filter, Listing
from penstock.engine.read.statistics import Statistics
from penstock.engine.read.views import Views
from penstock.engine.record.record import read_header, write
from penstock.engine.repair.audit import audit
from penstock.engine.repair.reconcile import reconcile
from penstock.model.header import Header
from tests.conftest import Clock, namespace, open_engine
from tests.engine.factories import (
    LIFE,
    TestWorker,
    all_payloads,
    call_of,
    enqueue,
    header_of,
    is_rare,
    lane,
    new_batch,
    new_job,
    outlive,
    raw,
    record_of,
    states,
)
from tests.servers import Server

ZSETS = ("ready", "held", "holders", "leases", "scheduled", "finished", "dead", "roster", "chores", "openings", "idle")
HASHES = ("lanes", "limits", "counts", "batches", "results", "stats", "queues")
LANES = (["lock:a"], ["lock:b"], [lane("few", 2)], [lane("many")], [lane("many", 30)], ["lock:a", "lock:b"])


async def rare_ones(engine: Engine, ids: str) -> list[str]:
    """Those of these of which something rare is stored."""
    return [job_id for job_id in ids if is_rare(await record_of(engine, job_id))]


async def test_a_job_with_a_lock_stores_no_rare_field_until_it_fails(engine: Engine, clock: Clock) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job(name, lanes=["lock:t"], payload=name.encode()) for name in "ab"))
    assert await rare_ones(engine, "ab") == []
    clock.advance(7)
    (a,) = await worker.lease(5)
    assert (a.id, a.payload, a.header.lanes, a.header.state) == ("a", b"a", ["lock:t"], "running")
    assert await states(engine) == {"a": "running", "b": "held"}
    assert await rare_ones(engine, "ab") == []
    clock.advance(7)
    assert await worker.complete(a) == "ok"
    assert await rare_ones(engine, "ab") == []
    shown = await header_of(engine, "b")
    assert (shown.state, shown.since, shown.created, shown.arrival, shown.seq) == ("ready", clock(), clock() - 14, 2, 3)
    (b,) = await worker.lease(5)
    assert await worker.retry(b) == "ok"
    assert await rare_ones(engine, "ab") == ["b"]
    record = await Views(engine).job("b")
    assert record is not None
    assert (record.payload, record.header.failures) == (b"b", 1)


async def test_a_member_of_a_batch_stores_no_rare_field(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await engine.open_batch(new_batch("b1", priority=7, limit=1))
    await enqueue(engine, new_job("a", batch="b1"), new_job("b", batch="b1", payload=b"." * 300))
    assert await rare_ones(engine, "ab") == []
    assert (await header_of(engine, "b")).priority == 7
    for name, payload in (("a", b"payload"), ("b", b"." * 300)):
        (lease,) = await worker.lease(5)
        assert (lease.id, lease.payload, lease.header.batch) == (name, payload, "b1")
        assert await worker.complete(lease) == "ok"
    assert await rare_ones(engine, "ab") == []
    assert await engine.seal_batch("b1") == "ended"


# Somebody else wrote to what is stored


async def cut_each(engine: Engine, names: list[str]) -> None:
    """Of the first of these one byte is left, of the second two, and so on."""
    client: Any = await raw(engine)
    for n, name in enumerate(names, 1):
        if record := await client.hget(engine.keys("jobs"), name):
            await client.hset(engine.keys("jobs"), name, record[: n % len(record)])


@pytest.mark.parametrize(
    "fields", [{}, {"lanes": [lane("wide", 1000)]}, {"batch": "b1"}], ids=["plain", "laned", "member"]
)
@pytest.mark.parametrize("odd", [0, 1])
async def test_a_truncated_running_job_does_not_keep_others_from_being_completed(
    engine: Engine, fields: dict[str, Any], odd: int
) -> None:
    worker = await TestWorker(engine).register()
    await engine.open_batch(new_batch("b1"))
    names = [f"{n:03}" for n in range(PAGE)]
    await enqueue(engine, *(new_job(name, payload=b".", **fields) for name in names))
    leases = await worker.lease(PAGE)
    while len(leases) < PAGE:
        leases += await worker.lease(PAGE - len(leases))
    whole = {*names[odd::2], names[-1]}  # the others are cut off, each somewhere else
    await cut_each(engine, [f"no-{name}" if name in whole else name for name in names])
    words = await engine.complete(worker.name, [(lease.id, call_of(lease), b"") for lease in leases])
    assert {words[n] for n, one in enumerate(leases) if one.id in whole} == {"ok"}
    assert {state for name, state in (await states(engine)).items() if name in whole} == {"done"}
    await reconcile(engine)


async def test_a_lock_passes_over_truncated_waiting_jobs(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    names = [f"{n:03}" for n in range(PAGE)]
    await enqueue(engine, *(new_job(name, lanes=["lock:t"], payload=b".") for name in names))
    (first,) = await worker.lease()
    await cut_each(engine, names[1:-1])
    assert await worker.complete(first) == "ok"
    (last,) = await worker.lease()
    assert last.id == names[-1]
    assert await worker.complete(last) == "ok"
    await reconcile(engine)


@pytest.mark.parametrize("spoilt", [b"lock:", b"lo\x1f:t"], ids=["too short", "half a lane"])
async def test_a_damaged_lane_in_a_record_delays_no_other_job(engine: Engine, clock: Clock, spoilt: bytes) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, *(new_job(name, lanes=["lock:t"]) for name in "abc"), new_job("d", lanes=["lock:u"]))
    a, d = await worker.lease(2)
    client: Any = await raw(engine)
    whole = {name: await client.hget(engine.keys("jobs"), name) for name in "bd"}
    for name, mark in (("b", b"lock:t"), ("d", b"lock:u")):
        await client.hset(engine.keys("jobs"), name, whole[name].replace(mark, spoilt))
    assert await worker.complete(a) == "ok"
    assert [lease.id for lease in await worker.lease(5)] == ["c"]
    assert d.id == "d"
    await outlive(engine, clock)
    await engine.reap(LIFE)
    for name in "bd":
        if (await states(engine)).get(name) not in {"dead", "ready"}:
            await client.hset(engine.keys("jobs"), name, whole[name])
    await reconcile(engine)


async def test_truncated_jobs_are_left_out_of_lists(engine: Engine) -> None:
    await enqueue(engine, new_job("good"), new_job("bad"))
    await cut_each(engine, ["bad"])
    assert [job.id async for job in Listing(engine).each(Filter(), contents=True)] == ["good"]
    assert (await Statistics(engine.script_client).oldest(["default"])).keys() == {"default"}
    await reconcile(engine)


@pytest.mark.parametrize("rot", [(b"??", b"\xff\xff"), (b"\x1f", b".")], ids=["no text", "no label"])
def test_a_worker_gets_the_other_jobs_when_a_label_cannot_be_read(rot: tuple[bytes, bytes]) -> None:
    good = write(Header(state="running", task="??", queue="q", claim="w", started=1, fence=1, size=1), b".")
    leased = read_leased([b"ok", 0, b"bad", good.replace(*rot), b"", b"good", good, b""])
    assert [lease.id for lease in leased.leases] == ["good"]
    assert leased.unreadable == ("bad",)


async def test_an_empty_payload_is_kept_inside_and_outside_of_a_record(engine: Engine) -> None:
    await enqueue(engine, new_job("inside", payload=b""), new_job("apart", payload=b"", unique="u"))
    for name in ("inside", "apart"):
        record = await Views(engine).job(name)
        assert record is not None
        assert record.payload == b""


class Twins:
    """Two engines that get the same calls: the jobs of one have labels, those of the other headers."""

    def __init__(self, url: str, seed: int) -> None:
        self.clock = Clock()
        self.draw = random.Random(seed)
        self.engines = [open_engine(url, namespace(), self.clock) for _ in range(2)]
        self.leases: list[dict[str, int]] = [{}, {}]
        self.number = 0
        self.made = 0

    async def both(self, verb: str, *arguments: Any, **named: Any) -> list[Any]:
        return [await getattr(engine, verb)(*arguments, **named) for engine in self.engines]

    async def begin(self) -> None:
        await self.both("register", "w", LIFE * 100)
        for queue in "xy":  # so that both know them in this order
            await self.both("pause", queue)
            await self.both("resume", queue)
        await self.both("open_batch", new_batch("b1"))
        await self.both("open_batch", new_batch("b2", limit=3, priority=20))

    async def step(self) -> None:
        self.clock.advance(self.draw.choice((0, 0, 1, 5, 400)))
        verbs = (self.enqueue, self.enqueue, self.lease, self.lease, self.settle, self.settle, self.other)
        await self.draw.choice(verbs)()

    async def enqueue(self) -> None:
        jobs = []
        for _ in range(self.draw.randint(1, 12)):
            self.made += 1
            fields: dict[str, Any] = {"priority": self.draw.choice((50, 50, 50, 10)), "queue": self.draw.choice("xxy")}
            chosen = self.draw.random()
            if chosen < 0.6:
                own = [f"lock:{fields['queue']}{self.draw.randint(1, 3)}"]  # which one queue uses
                fields["lanes"] = list(self.draw.choice((*LANES, own, own, own)))
            elif chosen < 0.8:
                fields["batch"] = self.draw.choice(("b1", "b2", "unknown"))
            payload = b"p" * self.draw.choice((0, 9, 255, 256, 900))
            jobs.append(new_job(f"j{self.made}", payload=payload, keep=self.draw.choice((0, 5_000)), **fields))
        answers = [await self.engines[n].enqueue(_as(jobs, header=bool(n))) for n in range(2)]
        assert answers[0] == answers[1]

    async def lease(self) -> None:
        self.number += 1
        want, room = self.draw.choice(((1, 10**6), (4, 10**6), (30, 10**6), (30, 1_000)))
        named = {"want": want, "room": room, "answered": self.number - 1, "queues": self.draw.choice((["*"], ["x"]))}
        one, other = await self.both("lease", "w", self.number, **named)
        assert (one.again, [_seen(lease) for lease in one.leases]) == (
            other.again,
            [_seen(lease) for lease in other.leases],
        )
        self.leases[0].update((lease.id, call_of(lease)) for lease in one.leases)

    async def settle(self) -> None:
        held = self.leases[0]
        chosen = self.draw.sample(sorted(held), min(len(held), self.draw.randint(1, 20)))
        rows = [(job_id, held[job_id]) for job_id in chosen] + [("never-was", 1)]
        verb = self.draw.choice(("complete", "complete", "complete", "complete", "retry", "release", "bury"))
        added = {"complete": (b"r",), "retry": (self.draw.choice((0, 300)), "error", "{}"), "bury": ("bad", "{}")}
        one, other = await self.both(verb, "w", [row + added.get(verb, ()) for row in rows])
        assert one == other
        for job_id in chosen:
            del held[job_id]

    async def other(self) -> None:
        some = [f"j{self.draw.randint(1, max(self.made, 1))}" for _ in range(3)]
        calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
            ("cancel", (some,), {}),
            ("revive", (some,), {}),
            ("promote", (), {}),
            ("tune", ("lock:a",), {"limit": self.draw.choice((-1, 0, 1, 3))}),
            ("tune", ("lane:few",), {"limit": self.draw.choice((-1, 0, 1, 5))}),
            ("transfer", (some, "y"), {}),
            ("set_batch", ("b1",), {"priority": self.draw.choice((5, 60))}),
            ("pause", ("x",), {}),
            ("resume", ("x",), {}),
        ]
        verb, arguments, named = self.draw.choice(calls)
        one, other = await self.both(verb, *arguments, **named)
        assert one == other, verb

    async def compare(self) -> None:
        one, other = [await _stored(engine) for engine in self.engines]
        for name in one:
            assert one[name] == other[name], name
        for engine in self.engines:
            assert await audit(engine) == []

    async def end(self) -> None:
        for engine in self.engines:
            await (await raw(engine)).delete(*engine.all_keys())
            await engine.script_client.endpoint.aclose()


def _as(jobs: list[NewJob], *, header: bool) -> list[NewJob]:
    replace = msgspec.structs.replace
    return [replace(job, header=replace(job.header, nonce="n" if header else "")) for job in jobs]


def _seen(lease: Any) -> tuple[Any, ...]:
    return lease.id, msgspec.structs.replace(lease.header, nonce=""), lease.payload


async def _stored(engine: Engine) -> dict[str, Any]:
    client: Any = await raw(engine)
    contents: dict[str, Any] = {}
    for name in ZSETS:
        contents[name] = await client.zrange(engine.keys(name), 0, -1, withscores=True)
    for name in HASHES:
        contents[name] = await client.hgetall(engine.keys(name))
    for name in ("jobs", "payloads"):
        rows = await client.hgetall(engine.keys(name))
        contents[name] = {job_id.decode(): value for job_id, value in rows.items() if job_id}
    contents["payloads"] = all_payloads(contents["jobs"], contents["payloads"])
    contents["jobs"] = {
        name: msgspec.structs.replace(read_header(value), nonce="") for name, value in contents["jobs"].items()
    }
    running = {name for name, header in contents["jobs"].items() if header.state == "running"}
    lanes = {name.decode(): _lane(value) for name, value in contents["lanes"].items() if name}
    contents["lanes"] = {name: _disowned(lane, running) for name, lane in lanes.items()}
    owners = {f"{name}\x1f{lane[-1][0][-1]}".encode() for name, lane in lanes.items() if lane[0] == -1}
    holders = [(member, 0.0) for member in owners if member.decode().rpartition("\x1f")[2] in running]
    contents["holders"] = sorted(contents["holders"] + holders)
    contents["events"] = [event[1:] for event in await Views(engine).events()]
    return contents


def _lane(stored: bytes) -> Any:
    """With its rows in one order."""
    use, tokens, at, declared, differs, *rows = msgspec.msgpack.decode(stored)
    return use, tokens, at, declared, differs, sorted(zip(*(rows[i::4] for i in range(4)), strict=True))


def _disowned(lane: Any, running: set[str]) -> Any:
    """A lock that belongs to a job as one that does not."""
    if lane[0] != -1:
        return lane
    ((queue, waiting, _, owner),) = lane[-1]
    if owner not in running:
        return (0, *lane[1:])
    return (1, *lane[1:-1], [(queue, waiting, 0, "")] if waiting else [])


@pytest.fixture(params=range(24))
async def twins(request: pytest.FixtureRequest, single: Server) -> AsyncIterator[Twins]:
    made = Twins(single.url, request.param)
    yield made
    await made.end()


async def test_random_calls_treat_jobs_with_and_without_rare_fields_the_same(twins: Twins) -> None:
    await twins.begin()
    for _ in range(60):
        await twins.step()
    await twins.compare()
