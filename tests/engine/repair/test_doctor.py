"""The doctor: whatever is deleted or overwritten is named, and repaired as far as possible."""

import asyncio
import json

import msgspec
import pytest

from penstock import Lane, Penstock
from penstock.engine.engine import Engine
from penstock.engine.keys import KINDS
from penstock.engine.read.views import Views
from penstock.engine.repair.audit_lanes import miscounts
from penstock.engine.repair.doctor import Diagnosis, Doctor, examine, fix, repaired
from penstock.engine.repair.server_versions import LEAST_SAFE, weakness
from tests.conftest import Clock, namespace
from tests.engine.factories import (
    TestWorker,
    enqueue,
    lane,
    new_job,
    new_spec,
    open_batch,
    populate,
    populate_lanes,
    raw,
    set_cron,
    states,
)
from tests.servers import Server

CONTENTS = {"jobs", "payloads", "results", "attempts", "logs", "meta", "limits", "crons"}


@pytest.fixture
def url(single: Server) -> str:
    return single.url


async def _full(engine: Engine) -> None:
    """A namespace with something in every key."""
    worker = await populate(engine)
    await populate_lanes(engine)
    await engine.log(worker.name, [("running", 1, 0, [[1, 1, "info", "hello"]])])
    await engine.tune("lane:few", limit=3)
    await engine.tune("task:tasks:never", paused=True)
    await engine.watch("client", ["ready"])


def wrong(made: Doctor) -> list[Diagnosis]:
    """What matters here: the tests' workers know no tasks, and serve no queues."""
    return [finding for finding in made.findings if finding.level == "wrong" and finding.rule != "unknown_task"]


async def test_a_sound_namespace_is_healthy(engine: Engine) -> None:
    await _full(engine)
    assert wrong(await examine(engine)) == []


@pytest.mark.parametrize("name", sorted(KINDS))
async def test_a_key_that_is_deleted_is_named_and_repaired(engine: Engine, name: str) -> None:
    await _full(engine)
    before = await states(engine)
    await (await raw(engine)).delete(engine.keys(name))
    report = await examine(engine)
    assert not report.healthy
    assert any(name in f"{finding.rule} {finding.subject} {finding.text}" for finding in wrong(report)), wrong(report)
    assert all(finding.todo for finding in report.findings)
    await fix(engine)
    after = await examine(engine)
    assert [finding for finding in wrong(after) if finding.rule != "orphan"] == []
    if name in {"keepers", "workers"}:  # workers say which schedules they have when they start
        return
    assert wrong(after) == []
    if name == "jobs":
        lost = {finding.subject for finding in report.findings if finding.rule == "payloads"}
        assert {"ready", "scheduled", "running", "dead"} <= lost  # each of them is named
        return
    now = await states(engine)
    assert now.keys() == before.keys()
    if name == "payloads":
        assert {finding.subject for finding in report.findings if finding.rule == "payload"} >= {"ready", "scheduled"}
        assert (now["ready"], now["scheduled"]) == ("dead", "dead")
    elif name not in {"lanes", "limits", "workers", "nodes"}:
        assert now == before


@pytest.mark.parametrize("name", sorted(KINDS))
async def test_a_key_of_another_type_is_named_and_repaired(engine: Engine, name: str) -> None:
    await _full(engine)
    client, key = await raw(engine), engine.keys(name)
    await client.delete(key)
    await client.set(key, "somebody else")
    report = await examine(engine)
    assert [(finding.rule, finding.subject) for finding in wrong(report)] == [("kind", name)]
    await fix(engine)
    assert [finding for finding in wrong(await examine(engine)) if finding.rule != "orphan"] == []
    aside = [key async for key in client.scan_iter(match=f"lost:*{engine.keys.namespace}*")]
    assert bool(aside) == (name in {*CONTENTS, "queues"})
    if aside:
        await client.delete(*aside)


@pytest.mark.parametrize("name", sorted(set(KINDS) - {"meta", "events", "stats", "limits", "queues", "retired"}))
async def test_a_foreign_entry_of_a_key_is_named_and_removed(engine: Engine, name: str) -> None:
    await _full(engine)
    before = await states(engine)
    client, key = await raw(engine), engine.keys(name)
    if KINDS[name] == "hash":
        await client.hset(key, "stray\x1fstray", b"\xc1 garbage" if name != "counts" else "7")
    else:
        await client.zadd(key, {"stray\x1fstray\x1fstray": 0})
    report = await examine(engine)
    assert any("stray" in finding.subject for finding in wrong(report)), (name, wrong(report))
    await fix(engine)
    after = await examine(engine)
    assert wrong(after) == []
    assert any("stray" in finding.subject for finding in repaired(report, after))
    assert await states(engine) == before


async def test_a_lost_wake_up_or_counter_is_restored(engine: Engine) -> None:
    await _full(engine)
    client = await raw(engine)
    await client.hset(engine.keys("counts"), "default\x1fready", "999")
    await client.hdel(engine.keys("meta"), "seq", "fence")
    assert {finding.rule for finding in wrong(await examine(engine))} >= {"counts", "sequence"}
    await fix(engine)
    assert wrong(await examine(engine)) == []


async def test_tasks_that_no_worker_knows_are_named(engine: Engine) -> None:
    await enqueue(engine, new_job("a", task="tasks:old"), new_job("b", task="tasks:new"))
    assert [finding.rule for finding in (await examine(engine)).findings if finding.level == "wrong"] == []
    await engine.register("w", 10_000, json.dumps({"tasks": ["tasks:new"]}), ["*"])
    (finding,) = [finding for finding in (await examine(engine)).findings if finding.level == "wrong"]
    assert (finding.rule, finding.subject) == ("unknown_task", "tasks:old")
    assert [finding for finding in (await examine(engine, {"tasks:old"})).findings if finding.level == "wrong"] == []


async def test_orphaned_schedules_and_disagreeing_lanes_are_named(engine: Engine, clock: Clock) -> None:
    await TestWorker(engine, "old").register()
    await set_cron(engine, clock, "nightly", new_spec(), "old")
    await engine.retire("old")
    await TestWorker(engine, "new").register()
    await enqueue(engine, new_job("a", lanes=[lane("few", 2)]), new_job("b", lanes=[lane("few", 3)]))
    findings = {
        (finding.rule, finding.subject)
        for finding in (await examine(engine, {"tasks:run"})).findings
        if finding.level == "wrong"
    }
    assert findings == {("orphan", "nightly"), ("lane", "few")}


async def test_an_open_batch_is_advice(engine: Engine) -> None:
    await open_batch(engine, "b1", new_job("a"))
    await open_batch(engine, "b2")
    await engine.seal_batch("b2")
    made = await examine(engine, {"tasks:run"})
    (finding,) = [finding for finding in made.findings if finding.rule == "open_batch"]
    assert (finding.subject, finding.level) == ("b1", "advice")
    assert "1 members, 1 of them unfinished" in finding.text
    assert finding.todo.endswith("penstock batch seal b1")


async def test_a_namespace_of_another_layout_is_named_and_left_alone(engine: Engine) -> None:
    await _full(engine)
    client = await raw(engine)
    await client.hset(engine.keys("meta"), "schema", "99")
    report = await examine(engine)
    assert [finding.rule for finding in report.findings if finding.level == "wrong"] == ["schema"]
    await client.hset(engine.keys("meta"), "schema", "1")


async def test_a_queue_without_workers_and_a_server_without_aof_are_advice(engine: Engine) -> None:
    await enqueue(engine, new_job("a", queue="lonely"))
    report = await examine(engine)
    assert report.healthy
    assert {finding.rule for finding in report.findings} == {"persistence", "unserved"}
    assert report.server["name"].startswith(("Valkey", "Redis"))
    assert report.server["round_trip_ms"] >= 0


async def test_a_busy_system_is_healthy(url: str) -> None:
    app = Penstock(namespace(), url=url)

    @app.task(name="send", lane=Lane("few", limit=3))
    async def send(number: int) -> None:
        await asyncio.sleep(0.002)

    async def feed() -> None:
        while True:
            await app.enqueue_many(send.call(n) for n in range(20))
            await asyncio.sleep(0.01)

    feeder = asyncio.create_task(feed())
    async with app.worker(concurrency=10):
        for _ in range(3):
            assert wrong(await examine(app.client.engine)) == []
        feeder.cancel()
        await asyncio.gather(feeder, return_exceptions=True)
        await app.queue("default").purge()
    assert (await examine(app.client.engine)).healthy
    await (await raw(app.client.engine)).delete(*app.client.engine.all_keys())
    await app.aclose()


async def test_the_counts_of_a_lane_are_compared_with_its_entries_at_one_moment(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    few = lane("few", 2)
    await enqueue(engine, *(new_job(f"{queue}{n}", queue=queue, lanes=[few]) for queue in "xy" for n in range(12)))
    await worker.lease(2)
    assert not await miscounts(engine, "lane:few")
    assert not await miscounts(engine, "lane:unknown")
    client, key = await raw(engine), engine.keys("lanes")
    use, *rest = msgspec.msgpack.decode(await client.hget(key, "lane:few"))
    tokens, at, declared, differs, queue, waiting, *others = rest
    for damaged in ([use + 1, *rest], [use, tokens, at, declared, differs, queue, waiting - 1, *others]):
        await client.hset(key, "lane:few", msgspec.msgpack.encode(damaged))
        assert await miscounts(engine, "lane:few")
        assert wrong(await examine(engine)) != []
        await fix(engine)
        assert not await miscounts(engine, "lane:few")


async def test_an_empty_namespace_is_healthy(engine: Engine) -> None:
    assert (await examine(engine)).healthy
    assert await Views(engine).counts() == {}


async def test_unusually_many_names_of_queues_are_advice(engine: Engine) -> None:
    await enqueue(engine, *(new_job(queue=f"tenant-{n}") for n in range(50)))
    assert [finding for finding in (await examine(engine)).findings if finding.rule == "queues"] == []
    names = {f"tenant-{n}": "" for n in range(10_000)}
    await (await raw(engine)).hset(engine.keys("queues"), mapping=names)
    assert [finding for finding in (await examine(engine)).findings if finding.rule == "queues"] == []
    await enqueue(engine, new_job(queue="one-more"))
    made = await examine(engine)
    (finding,) = [finding for finding in made.findings if finding.rule == "queues"]
    assert finding.text.startswith("10,001 names of queues are known")
    assert "keep results for less long, or use fewer queues" in finding.todo
    assert (finding.level, finding.fixable) == ("advice", False)
    assert made.healthy


@pytest.mark.parametrize(
    ("name", "version", "text", "todo"),
    [
        ("Redis", "7.0.15", "CVE-2025-49844", "run Redis 7.2.16, 7.4.11, 8.2.10"),
        ("Redis", "7.2.10", "CVE-2025-49844, CVE-2025-46817, CVE-2025-46818 and CVE-2025-46819", "run Redis 7.2.16 or"),
        ("Redis", "7.2.11", "a later release closes", "7.2.16"),
        ("Redis", "8.0.3", "CVE-2025-49844", "8.2.10"),
        ("Redis", "8.0.6", "gets no security fixes", "8.2.10"),
        ("Redis", "8.2.1", "CVE-2025-49844", "8.2.10"),
        ("Redis", "8.10.1", "a later release closes", "8.10.2"),
        ("Valkey", "7.2.10", "CVE-2025-49844", "7.2.14"),
        ("Valkey", "8.0.5", "CVE-2025-49844", "8.0.10"),
        ("Valkey", "8.1.3", "CVE-2025-49844", "8.1.9"),
        ("Valkey", "8.1.4", "a later release closes", "8.1.9"),
        ("Valkey", "9.0.0", "a later release closes", "9.0.5"),
    ],
)
def test_a_version_with_known_holes_is_named_with_one_that_has_none(
    name: str, version: str, text: str, todo: str
) -> None:
    found = weakness(name, version)
    assert found is not None
    assert text in found[0]
    assert todo in found[1]


@pytest.mark.parametrize(
    ("name", "version"),
    [
        *(
            ("Redis", version)
            for version in ("7.2.16", "7.4.11", "8.2.10", "8.10.2", "8.12.0", "9.0.0", "7.1.0", "odd", "")
        ),
        *(("Valkey", version) for version in ("7.2.14", "8.0.10", "8.1.9", "9.0.5", "9.1.2", "10.0.0")),
        ("Dragonfly", "1.0.0"),
    ],
)
def test_nothing_is_said_against_versions_without_known_holes_or_of_other_lines(name: str, version: str) -> None:
    assert weakness(name, version) is None


def test_every_line_of_a_server_that_penstock_runs_on_has_a_safe_release() -> None:
    for name, lines in LEAST_SAFE.items():
        for (major, minor), patch in lines.items():
            assert weakness(name, f"{major}.{minor}.{patch}") is None
            assert weakness(name, f"{major}.{minor}.{patch - 1}") is not None


async def test_the_doctor_looks_at_the_version_of_the_server(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await examine(engine)
    name, version = made.server["name"].split()
    assert [one for one in made.findings if one.rule == "version"] == []  # the embedded one has no known holes
    major, minor, _ = map(int, version.split("."))
    monkeypatch.setitem(LEAST_SAFE[name], (major, minor), 10_000)
    (found,) = [one for one in (await examine(engine)).findings if one.rule == "version"]
    assert (found.subject, found.level) == (f"{name} {version}", "advice")
    assert made.healthy
