"""For each script, a call with as much to do as possible, and the namespace for it: tests stop it at each step."""

from collections.abc import Awaitable, Callable
from typing import Any

from penstock.engine.engine import Engine, Retention
from penstock.engine.read.views import Views
from penstock.engine.transport.script_client import ScriptCall
from penstock.model.schedule import ScheduleSpec, first, plan
from tests.conftest import Clock
from tests.engine.factories import (
    HOLD,
    LIFE,
    LIMITED,
    ORDERED,
    RATED,
    TestWorker,
    call_of,
    enqueue,
    new_batch,
    new_job,
    new_spec,
    open_batch,
    raw,
    set_cron,
    standing_of,
    tick,
)

Scenario = Callable[[Engine, Clock], Awaitable[ScriptCall[Any]]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(setup: Scenario) -> Scenario:
    SCENARIOS[setup.__name__.removeprefix("before_")] = setup
    return setup


async def _running(engine: Engine, *, cancelling: bool = False) -> tuple[TestWorker, list[tuple[str, int]]]:
    """A worker that runs two jobs with everything a job can hold, and one that sleeps."""
    worker = await TestWorker(engine, "worker").register()
    await (await TestWorker(engine, "idle").register()).lease()
    await open_batch(engine, "outer")
    await open_batch(engine, "inner", parent="outer")
    a = new_job("a", unique="u", expires=60_000, lanes=["lock:t", ORDERED], batch="inner")
    await enqueue(engine, a, new_job("b", queue="other", lanes=[LIMITED, RATED], batch="inner"))
    await engine.seal_batch("inner")
    await engine.seal_batch("outer")
    await engine.watch_batch("client", "outer")
    leases = [*await worker.lease(1), *await worker.lease(1)]
    waiting = ["lock:t", ORDERED, RATED, HOLD]
    await enqueue(engine, *(new_job(f"after{i}", lanes=[spec, LIMITED]) for i, spec in enumerate(waiting)))
    await engine.watch("client", ["a", "b"])
    if cancelling:
        await engine.cancel(["a"])
    return worker, [(lease.id, call_of(lease)) for lease in leases]


@scenario
async def before_init(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await enqueue(engine, new_job("a"))
    return engine.init()


@scenario
async def before_enqueue(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await (await TestWorker(engine, "idle").register()).lease()
    await enqueue(engine, new_job("old"), new_job("locked", lanes=["lock:t"]))
    return engine.enqueue(
        [
            new_job("a", unique="u", expires=60_000),
            new_job("b", due=1_000),
            new_job("old", nonce="x"),
            new_job("second", lanes=["lock:t"]),
            new_job("better", lanes=["lock:t"], priority=0),
        ]
    )


@scenario
async def before_enqueue_single(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await (await TestWorker(engine, "idle").register()).lease()
    return engine.enqueue([new_job("a", payload=b"." * 300)])


@scenario
async def before_enqueue_page(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await (await TestWorker(engine, "idle").register()).lease()
    return engine.enqueue([new_job(f"a{n}", payload=b"." * size) for n, size in enumerate((10, 300, 10))])


@scenario
async def before_enqueue_pushed(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    listener = (await raw(engine)).pubsub()  # until its client is closed
    await listener.ssubscribe(engine.keys.channel("idle"))
    await (await TestWorker(engine, "idle").register()).lease(push=True)
    return engine.enqueue([new_job("a", payload=b"." * 300)])


@scenario
async def before_promote(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await enqueue(engine, new_job("a", due=1_000, expires=90_000), new_job("b", due=2_000, queue="other"))
    await enqueue(engine, *(new_job(f"locked{i}", due=1_000, lanes=["lock:t", RATED]) for i in range(2)))
    clock.advance(2_000)
    return engine.promote()


@scenario
async def before_lease(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    worker = await TestWorker(engine, "worker").register()
    await enqueue(engine, new_job("a", unique="u"), new_job("b", queue="other"), new_job("late", expires=10))
    blocked = new_job("blocked", lanes=[ORDERED, "lock:t"])
    await enqueue(
        engine, new_job("c", lanes=["lock:t"]), blocked, *(new_job(f"rated{i}", lanes=[RATED]) for i in range(2))
    )
    clock.advance(20)
    return engine.lease(worker.name, 2, want=10, answered=1)


@scenario
async def before_lease_uneven(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await TestWorker(engine, "other", tasks=("known", "b")).register()
    await TestWorker(engine, "worker", tasks=("known",)).register()
    await enqueue(engine, *(new_job(f"{n}{task}", task=task) for n in range(3) for task in ("known", "b")))
    await enqueue(engine, *(new_job(f"locked{task}", task=task, lanes=[f"lock:{task}"]) for task in ("known", "b")))
    return engine.lease("worker", 1, want=10)


@scenario
async def before_lease_of_many_queues(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    """Of some there is more, others are empty, paused or at their limit."""
    worker = await TestWorker(engine, "worker").register()
    await enqueue(engine, *(new_job(f"j{n}", queue=f"q{n % 4}") for n in range(12)))
    await (await TestWorker(engine, queues=("q2",)).register()).lease(3)
    await engine.pause("q3")
    await engine.cap("q1", 1)
    return engine.lease(worker.name, 1, want=4)


@scenario
async def before_complete_below_a_limit(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    worker = await TestWorker(engine, "worker").register()
    await engine.cap("default", 1)
    await enqueue(engine, *map(new_job, "abc"))
    (lease,) = await worker.lease(5)
    assert await worker.lease(5) == []
    return engine.complete(worker.name, [(lease.id, call_of(lease), b"")])


@scenario
async def before_prune_of_names(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    worker = await TestWorker(engine, "worker").register()
    await enqueue(engine, new_job("a", queue="gone", keep=0), new_job("b", queue="stays"))
    (lease,) = await worker.lease()
    await worker.complete(lease)
    clock.advance(1)
    await engine.prune()
    return engine.prune()


@scenario
async def before_complete(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    worker, held = await _running(engine, cancelling=True)
    without_header = [new_job("c"), new_job("d", payload=b"." * 300)]
    await open_batch(engine, "loose", *without_header, new_job("e"), limit=2)
    held += [(lease.id, call_of(lease)) for lease in await worker.lease(5)]
    assert {job_id for job_id, _ in held} >= {"a", "b", "c", "d"}
    return engine.complete(worker.name, [(*lease, b"result") for lease in held])


@scenario
async def before_retry(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    worker, (a, b) = await _running(engine)
    return engine.retry(worker.name, [(*a, 1_000, "error", "{}"), (*b, 0, "error", "{}")])


@scenario
async def before_bury(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    worker, held = await _running(engine, cancelling=True)
    return engine.bury(worker.name, [(*lease, "failed", "{}") for lease in held])


@scenario
async def before_crash(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    worker, (a, b) = await _running(engine, cancelling=True)
    return engine.crash(worker.name, [(*a, "{}"), (*b, "{}")], crashes=1)


@scenario
async def before_release(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    worker, held = await _running(engine, cancelling=True)
    return engine.release(worker.name, held)


@scenario
async def before_snooze(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    worker, held = await _running(engine, cancelling=True)
    return engine.snooze(worker.name, [(*lease, 1_000, "later") for lease in held])


@scenario
async def before_progress(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    worker, held = await _running(engine)
    return engine.progress(worker.name, *held[0], "[1,2]")


@scenario
async def before_register(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await enqueue(engine, new_job("a"))
    await TestWorker(engine, "old", tasks=("a",)).register()
    return engine.register("fresh", LIFE, '{"tasks": ["b"]}')


@scenario
async def before_renew(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    worker, _ = await _running(engine, cancelling=True)
    return engine.renew(LIFE, [worker.name, "unknown", "idle"])


@scenario
async def before_retire(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    worker, _ = await _running(engine, cancelling=True)
    await TestWorker(engine, "other", tasks=("b",)).register()
    await engine.register(worker.name, LIFE, '{"tasks": ["a"]}')
    return engine.retire(worker.name)


@scenario
async def before_reap(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    worker, _ = await _running(engine, cancelling=True)
    await engine.register(worker.name, LIFE, '{"tasks": ["a"]}')
    for _ in range(4):
        clock.advance(LIFE // 3)
        await engine.renew(LIFE, ["nobody"])
    await TestWorker(engine, "other", tasks=("b",)).register()
    return engine.reap(LIFE)


@scenario
async def before_cancel(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await _running(engine)
    await enqueue(engine, new_job("c", unique="v", expires=1_000), new_job("d", due=1_000))
    return engine.cancel(["a", "b", "c", "d", "after0", "after3", "missing"])


@scenario
async def before_expire(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await enqueue(engine, new_job("a", unique="u", expires=1_000), new_job("b", due=9_000, expires=1_000))
    await enqueue(engine, *(new_job(f"locked{i}", expires=1_000 * (i + 1), lanes=["lock:t"]) for i in range(2)))
    clock.advance(1_000)
    return engine.expire()


@scenario
async def before_revive(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    worker, held = await _running(engine)
    await engine.bury(worker.name, [(*lease, "failed", "{}") for lease in held])
    return engine.revive(["a", "b"])


@scenario
async def before_prune(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    worker, (a, b) = await _running(engine)
    await engine.complete(worker.name, [(*a, b"result")])
    await engine.bury(worker.name, [(*b, "failed", "{}")])
    await enqueue(engine, new_job("c"))
    await engine.cancel(["c"])
    await engine.prune(Retention(finished=1))
    clock.advance(100 * 86_400_000)
    return engine.prune()


@scenario
async def before_cap(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await enqueue(engine, new_job("a"))
    await engine.cap("default", 0)
    await (await TestWorker(engine).register()).lease()
    return engine.cap("default", 4)


@scenario
async def before_pause(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await enqueue(engine, new_job("a"))
    return engine.pause("default")


@scenario
async def before_resume(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await enqueue(engine, new_job("a"))
    await engine.pause("default")
    await (await TestWorker(engine, "idle").register()).lease()
    return engine.resume("default")


@scenario
async def before_tune(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await _running(engine)
    await engine.tune("lane:few", paused=True)
    await enqueue(engine, *(new_job(f"more{i}", lanes=[LIMITED]) for i in range(3)))
    await (await TestWorker(engine, "hungry").register()).lease(9)
    return engine.tune("lane:few", limit=9, paused=False)


@scenario
async def before_admit(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await _running(engine)
    await enqueue(engine, new_job("rated", lanes=[RATED]))
    clock.advance(60_000)
    return engine.admit()


@scenario
async def before_reconcile(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await _running(engine)
    await enqueue(engine, new_job("c", unique="v", expires=1_000))
    client = await engine.script_client.endpoint.client()
    for name in ("ready", "leases", "timers", "unique", "held", "holders"):
        await client.delete(engine.keys(name))
    await engine.init()
    return engine.reconcile("jobs")


@scenario
async def before_watch(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    worker, held = await _running(engine)
    await engine.complete(worker.name, [(*held[0], b"result")])
    return engine.watch("client", [job_id for job_id, _ in held])


@scenario
async def before_recount(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await enqueue(engine, new_job("a"))
    return engine.recount(await Views(engine).last_event(), {})


@scenario
async def before_reschedule(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await enqueue(engine, new_job("a", due=5_000, expires=60_000, unique="u"), new_job("b"), new_job("c", due=1))
    return engine.reschedule(["a", "b", "c", "missing"], 1_000)


@scenario
async def before_transfer(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await _running(engine)
    await enqueue(engine, new_job("later", due=5_000, expires=60_000, unique="l"), new_job("plain"))
    return engine.transfer(["after0", "after1", "after2", "later", "plain", "a", "missing"], "elsewhere")


@scenario
async def before_discard(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    worker, held = await _running(engine)
    await engine.bury(worker.name, [(*lease, "failed", "{}") for lease in held])
    await engine.cancel(["after0"])
    return engine.discard(["a", "b", "after0", "after1", "missing"])


@scenario
async def before_log(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    worker, held = await _running(engine)
    lines = [[clock(), 1, "info", "hello"]]
    await engine.log(worker.name, [(*held[0], 0, lines)])
    return engine.log(worker.name, [(*held[0], 0, lines * 2), (*held[1], 0, lines), ("missing", 1, 0, lines)])


async def _scheduled(engine: Engine, clock: Clock) -> ScheduleSpec:
    """A schedule of the code and one that is due, with a tick that waits for the one before it."""
    await (await TestWorker(engine, "worker").register()).lease()
    await set_cron(engine, clock, "code", new_spec(3_600_000), "worker")
    spec = new_spec(catch_up="all", overlap="queue", unique="u", expires=60_000)
    await set_cron(engine, clock, "set", spec)
    clock.advance(1_000)
    await tick(engine, clock, "set", spec)
    clock.advance(2_000)
    return spec


@scenario
async def before_set_cron(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await _scheduled(engine, clock)
    spec = new_spec(2_000)
    return engine.set_cron("code", spec, first("code", spec, clock()), source="code", worker="worker")


@scenario
async def before_remove_cron(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await _scheduled(engine, clock)
    return engine.remove_cron("code")


@scenario
async def before_pause_cron(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await _scheduled(engine, clock)
    return engine.pause_cron("set")


@scenario
async def before_resume_cron(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    spec = await _scheduled(engine, clock)
    await engine.pause_cron("set")
    return engine.resume_cron("set", spec.version, first("set", spec, clock()))


@scenario
async def before_run_cron(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await _scheduled(engine, clock)
    return engine.run_cron("code", new_spec(3_600_000), "code@run-1")


@scenario
async def before_due_crons(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await _scheduled(engine, clock)
    return engine.due_crons(also=["code", "set"])


@scenario
async def before_tick(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    spec = await _scheduled(engine, clock)
    await engine.cancel([(await standing_of(engine, "set")).last])
    expected = (await standing_of(engine, "set")).next
    return engine.tick("set", spec, expected, plan("set", spec, expected, clock()))


@scenario
async def before_open_batch(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await open_batch(engine, "outer")
    return engine.open_batch(new_batch("inner", parent="outer", limit=2))


@scenario
async def before_seal_batch(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await open_batch(engine, "outer")
    await engine.watch_batch("client", "outer")
    await open_batch(engine, "inner", new_job("a"), parent="outer")
    await engine.cancel(["a"])
    await engine.seal_batch("outer")
    return engine.seal_batch("inner")


@scenario
async def before_cancel_batch(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await open_batch(engine, "b", *(new_job(f"j{n}") for n in range(3)))
    return engine.cancel_batch("b")


@scenario
async def before_retry_batch(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    worker, held = await _running(engine)
    await engine.bury(worker.name, [(*lease, "failed", "{}") for lease in held])
    return engine.retry_batch("inner", "x")


@scenario
async def before_do_chores(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await _running(engine)
    await open_batch(engine, "b", *(new_job(f"j{n}") for n in range(3)))
    await open_batch(engine, "inside", new_job("k"), parent="b")
    await engine.cancel_batch("b")
    return engine.do_chores("cancel", "b")


@scenario
async def before_set_batch(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    await open_batch(engine, "b", *(new_job(f"j{n}") for n in range(12)), limit=9, priority=50)
    return engine.set_batch("b", priority=3, limit=11)


@scenario
async def before_watch_batch(engine: Engine, clock: Clock) -> ScriptCall[Any]:
    worker, held = await _running(engine)
    await engine.complete(worker.name, [(*held[0], b"result")])
    return engine.watch_batch("client", "inner", finished=10, after=1)
