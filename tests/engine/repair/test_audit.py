"""The audit: each rule is broken by hand, and exactly that rule reports it."""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from penstock.engine.engine import Engine
from penstock.engine.keys import KINDS
from penstock.engine.repair.audit import audit
from penstock.model.schedule import pack
from tests.conftest import Clock, namespace, open_engine
from tests.engine.factories import TestWorker, new_spec, populate, raw, rewrite, spoil

Break = Callable[[Engine, Any], Awaitable[object]]
SKILLS = hashlib.sha1(b"a\x1f\x1fempty").hexdigest()[:12]  # of the apprentice
RANK = "50" + "0" * 14


@pytest.fixture
async def engine(url: str, clock: Clock) -> AsyncIterator[Engine]:
    """As everywhere, but nobody looks at its end; the audit reads one node, so one kind of server will do."""
    made = open_engine(url, namespace(), clock)
    yield made
    await (await raw(made)).delete(*made.all_keys(), made.keys("foreign"))
    await made.script_client.endpoint.aclose()


def _zadd(name: str, member: str, score: int = 0) -> Break:
    return lambda engine, client: client.zadd(engine.keys(name), {member: score})


def _zrem(name: str, member: str) -> Break:
    return lambda engine, client: client.zrem(engine.keys(name), member)


def _hset(name: str, field: str, value: str | bytes = b"x") -> Break:
    return lambda engine, client: client.hset(engine.keys(name), field, value)


def _hdel(name: str, field: str) -> Break:
    return lambda engine, client: client.hdel(engine.keys(name), field)


def _header(job_id: str, **fields: Any) -> Break:
    return lambda engine, client: rewrite(engine, job_id, **fields)


def _key(command: str, name: str, *rest: str) -> Break:
    return lambda engine, client: client.execute_command(command, engine.keys(name), *rest)


async def _unreadable(engine: Engine, client: Any) -> None:
    await client.hset(engine.keys("jobs"), "rotten", b"\xc1")
    await client.hincrby(engine.keys("meta"), "accepted", 1)


async def _wrong_type(engine: Engine, client: Any) -> None:
    await client.delete(engine.keys("stats"))
    await client.set(engine.keys("stats"), "text")


async def _flagged_after_its_end(engine: Engine, client: Any) -> None:
    await rewrite(engine, "done", cancelling=1)
    await client.zadd(engine.keys("cancels"), {"\x1fdone": 0})


async def _worker_forgotten(engine: Engine, client: Any) -> None:
    for name in ("workers", "lives"):
        await client.zrem(engine.keys(name), "worker")
    for name in ("nodes", "calls"):
        await client.hdel(engine.keys(name), "worker")
    await client.zrem(engine.keys("idle"), "*\x1fworker")


BROKEN: list[tuple[str, str, Break]] = [
    ("keys", "a foreign key", _key("SET", "foreign", "x")),
    ("keys", "a missing key", _key("DEL", "stats")),
    ("keys", "a key of another type", _wrong_type),
    ("keys", "a hash without its sentinel", _hdel("results", "")),
    ("keys", "an index without its sentinel", _zrem("scheduled", "")),
    ("keys", "a sentinel with another score", _zadd("finished", "", 10**15)),
    ("header", "an unreadable header", _unreadable),
    ("place", "not in line", lambda e, c: c.zremrangebylex(e.keys("ready"), "[default", "(e")),
    ("place", "not scheduled", _zrem("scheduled", "scheduled")),
    ("place", "scheduled for another time", _zadd("scheduled", "scheduled", 7)),
    ("place", "not leased", _zrem("leases", "worker\x1f2\x1frunning")),
    ("place", "not among the finished", _zrem("finished", "done")),
    ("place", "not among the dead", _zrem("dead", "dead")),
    ("place", "not among the tombstones", _zrem("tombs", "tomb")),
    ("payload", "no payload", _hdel("payloads", "running")),
    ("payload", "a payload too long", _hset("payloads", "done")),
    ("result", "no result", _hdel("results", "done")),
    ("result", "a result that nobody gave", _hset("results", "silent")),
    ("timer", "no timer", _zrem("timers", "expire\x1fready")),
    ("timer", "a timer for another time", _zadd("timers", "expire\x1fready", 7)),
    ("unique", "a unique key not held", _hdel("unique", "u")),
    ("unique", "a unique key held by nobody", _hset("unique", "new", "ghost")),
    ("unique", "a unique key held by a finished job", _hset("unique", "new", "done")),
    ("waiting", "an awaited job that never was", _hset("waiting", "ghost", "client\x1f")),
    ("waiting", "an awaited job that has ended", _hset("waiting", "done", "client\x1f")),
    ("cancels", "no flag", _zrem("cancels", "worker\x1fcancelling")),
    ("cancels", "a flag that nobody asked for", _zadd("cancels", "worker\x1frunning")),
    ("cancels", "a flag on a job that never was", _zadd("cancels", "worker\x1fghost")),
    ("sequence", "a place in line not given out yet", _hset("meta", "seq", "0")),
    ("sequence", "a fence not given out yet", _hset("meta", "fence", "0")),
    ("starts", "a start too many", _header("done", starts=2)),
    ("claim", "a claim without a run", _header("cancelled", claim="worker\x1f1")),
    ("due", "in line before its time", _header("ready", due=2 * 10**12)),
    ("cancelling", "flagged after its end", _flagged_after_its_end),
    ("reason", "dead for no reason", _header("dead", reason="")),
    ("ready", "a ghost in line", _zadd("ready", f"default\x1f{RANK}\x1fghost")),
    ("ready", "twice in line", _zadd("ready", f"default\x1f{RANK}\x1fready")),
    ("scheduled", "a scheduled ghost", _zadd("scheduled", "ghost", 7)),
    ("leases", "a leased ghost", _zadd("leases", "worker\x1f1\x1fghost")),
    ("leases", "leased twice", _zadd("leases", "worker\x1f9\x1frunning")),
    ("leases", "a lease of a worker that is not there", _worker_forgotten),
    ("dead", "a ghost among the dead", _zadd("dead", "ghost", 7)),
    ("finished", "a running job among the finished", _zadd("finished", "running", 7)),
    ("tombs", "a ghost among the tombstones", _zadd("tombs", "ghost", 7)),
    ("timers", "a timer for a ghost", _zadd("timers", "expire\x1fghost", 7)),
    ("payloads", "a ghost's payload", _hset("payloads", "ghost")),
    ("results", "a ghost's result", _hset("results", "ghost")),
    ("attempts", "a ghost's history", _hset("attempts", "ghost")),
    ("attempts", "a tombstone's history", _hset("attempts", "tomb")),
    ("counts", "a wrong count", _hset("counts", "default\x1frunning", "2")),
    ("counts", "a count of a queue that is not there", _hset("counts", "ghost\x1fdone", "1")),
    ("conservation", "more accepted than there are", _hset("meta", "accepted", "99")),
    ("conservation", "forgotten without having been there", _hset("meta", "forgotten", "1")),
    ("nodes", "a worker without its node", _hdel("nodes", "worker")),
    ("nodes", "a node without its worker", _hset("nodes", "ghost")),
    ("lives", "a worker whose life is not known", _zrem("lives", "worker")),
    ("lives", "a worker with another life than it registered", _zadd("lives", "worker", 7)),
    ("lives", "the life of a worker that is not there", _zadd("lives", "ghost", 7)),
    ("calls", "calls of a worker that is not there", _hset("calls", "ghost", "1")),
    ("idle", "a idle that is not there", _zadd("idle", "*\x1fghost")),
    ("crons", "a schedule without its state", _hset("crons", "spec\x1fghost", pack(new_spec()))),
    ("crons", "a schedule that cannot be read", _hset("crons", "spec\x1fnightly", b"\xc1")),
    ("ticks", "a schedule that nobody looks at", _zrem("ticks", "nightly")),
    ("ticks", "a schedule that is looked at too late", _zadd("ticks", "nightly", 7)),
    ("ticks", "a look at a schedule that is not there", _zadd("ticks", "ghost", 7)),
    ("keepers", "a keeper of a schedule that is not there", _zadd("keepers", "ghost\x1fworker")),
    ("skills", "a worker without its set of skills", _zrem("skills", f"{SKILLS}\x1fapprentice")),
    ("skills", "skills of a worker that is not there", _zadd("skills", f"{SKILLS}\x1fghost")),
    ("skills", "a worker whose set meta does not tell", _hdel("meta", "skills\x1fapprentice")),
    ("skills", "a worker with another set", _hset("meta", "skills\x1fapprentice", "x")),
    ("lacks", "a set that lacks what it knows", _hset("meta", f"lacks\x1f{SKILLS}", "*\x1fa")),
    ("lacks", "a set that is not there", _hset("meta", "lacks\x1fx", "*\x1fa")),
    ("lacks", "a set of which is not told what it lacks", _hdel("meta", f"lacks\x1f{SKILLS}")),
    ("uneven", "workers that differ, of which nobody is told", _hdel("meta", "uneven")),
    ("retired", "retired and alive", _zadd("retired", "worker", 7)),
]


@pytest.mark.parametrize(("rule", "break_it"), [(rule, how) for rule, _, how in BROKEN], ids=[row[1] for row in BROKEN])
async def test_each_damage_is_found_by_its_rule_and_no_other(engine: Engine, rule: str, break_it: Break) -> None:
    await populate(engine)
    await TestWorker(engine, "apprentice", ("empty",), ("a",)).register()
    await TestWorker(engine, "master", ("empty",), ("a", "b")).register()
    assert await audit(engine) == []
    await break_it(engine, await raw(engine))
    findings = await audit(engine)
    assert {finding.rule for finding in findings} == {rule}, findings


async def test_a_namespace_that_nobody_used_is_in_order(engine: Engine) -> None:
    assert await audit(engine) == []


async def test_a_namespace_without_its_meta_is_not(engine: Engine) -> None:
    await populate(engine)
    await (await raw(engine)).delete(engine.keys("meta"))
    assert await audit(engine) != []


async def test_an_unreadable_header_hides_no_other_finding(engine: Engine) -> None:
    await populate(engine)
    await spoil(engine, "ready")
    await (await raw(engine)).hdel(engine.keys("payloads"), "running")
    findings = {(finding.rule, finding.subject) for finding in await audit(engine)}
    assert {("header", "ready"), ("payload", "running")} <= findings


async def test_every_key_is_looked_at(engine: Engine) -> None:
    await populate(engine)
    client = await raw(engine)
    for name in KINDS:
        kept = await client.dump(engine.keys(name))
        await client.delete(engine.keys(name))
        assert await audit(engine) != [], name
        await client.restore(engine.keys(name), 0, kept)
    assert await audit(engine) == []


async def test_audit_changes_nothing(engine: Engine) -> None:
    await populate(engine)
    client = await raw(engine)
    before = {key: await client.dump(key) for key in engine.all_keys()}
    await audit(engine)
    assert {key: await client.dump(key) for key in engine.all_keys()} == before
