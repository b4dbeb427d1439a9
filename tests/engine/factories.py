"""Makes jobs and workers in one line, and reads what is stored of them."""

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from penstock.engine.answers import Lease
from penstock.engine.engine import Engine, NewBatch, NewJob
from penstock.engine.keys import KINDS
from penstock.engine.read.views import Views
from penstock.engine.record.layout import INLINE, NUMBERS, USUAL
from penstock.engine.record.record import form_in, pack, read_payload, write
from penstock.model.batch_state import BatchSpec, BatchState, BatchStatus, Ending, read_state, read_status
from penstock.model.header import Header
from penstock.model.schedule import ScheduleSpec, Standing, first, plan, unpack_standing
from tests.conftest import Clock

LIFE = 10_000
LARGE = b"." * INLINE  #: a payload that is kept apart from its record


def new_job(job_id: str | None = None, *, payload: bytes = b"payload", **fields: Any) -> NewJob:
    """A job to be enqueued; without an id it gets a generated one."""
    header = Header(state="", task=fields.pop("task", "tasks:run"), **fields)
    return NewJob(job_id or secrets.token_hex(10), header, payload)


def new_batch(batch_id: str, *, then: bool = True, on_failure: bool = True, **fields: Any) -> NewBatch:
    """A batch to be opened; what it makes at its end has the status as its payload, between < and >."""
    made = {"then": then, "on_failure": on_failure}
    parts = {name: Ending(_made(name), b"<", b">") for name, wanted in made.items() if wanted}
    return NewBatch(batch_id, fields.pop("name", batch_id), spec=BatchSpec(**parts), **fields)


def _made(name: str) -> bytes:
    return pack(Header(state="", task=f"tasks:{name}", queue="ends"))


async def open_batch(engine: Engine, batch_id: str, *jobs: NewJob, **fields: Any) -> None:
    """Open a batch, with these members."""
    assert await engine.open_batch(new_batch(batch_id, **fields)) == "created"
    if jobs:
        members = [
            msgspec.structs.replace(job, header=msgspec.structs.replace(job.header, batch=batch_id)) for job in jobs
        ]
        assert {placed.word for placed in await engine.enqueue(members)} == {"created"}


async def batch_of(engine: Engine, batch_id: str) -> BatchState:
    return read_state(await (await raw(engine)).hget(engine.keys("batches"), f"state\x1f{batch_id}"))


async def numbers_of(engine: Engine, batch_id: str) -> tuple[str, int, int, int, int, int]:
    """Phase, total, done, dead, cancelled, pending."""
    b = await batch_of(engine, batch_id)
    return b.phase, b.total, b.done, b.dead, b.cancelled, b.pending


def all_payloads(jobs: dict[str, bytes], apart: dict[str, bytes]) -> dict[str, bytes]:
    """By id, wherever they are kept; each in one place."""
    inside = {job_id: payload for job_id, raw in jobs.items() if (payload := read_payload(raw)) is not None}
    assert inside.keys().isdisjoint(apart)
    return inside | apart


async def made_by(engine: Engine, batch_id: str) -> dict[str, BatchStatus]:
    """What the batch has made so far, `then-1` or `on_failure-1`, and the status that it carries."""
    client = await raw(engine)
    jobs, apart = [
        {name.decode(): value for name, value in (await client.hgetall(engine.keys(kind))).items() if name}
        for kind in ("jobs", "payloads")
    ]
    rows = {name: value for name, value in all_payloads(jobs, apart).items() if name.startswith(f"{batch_id}@")}
    return {name.partition("@")[2]: read_status(value[1:-1]) for name, value in rows.items()}


async def enqueue(engine: Engine, *jobs: NewJob) -> list[str]:
    """Enqueue jobs and give their ids."""
    return [placed.id for placed in await engine.enqueue(jobs)]


def new_spec(every: int = 1_000, *, payload: bytes = b"payload", **fields: Any) -> ScheduleSpec:
    """A schedule; what is not its own goes to the header of its jobs."""
    own = {name: fields.pop(name) for name in ("catch_up", "overlap", "jitter") if name in fields}
    header = Header(state="", task=fields.pop("task", "tasks:run"), **fields)
    kept: dict[str, Any] = {"catch_up": "latest", "overlap": "allow", "jitter": 0} | own
    of_jobs: dict[str, Any] = {"task": header.task, "queue": header.queue, "form": pack(header), "payload": payload}
    return ScheduleSpec(kind="every", text=str(every), tz="UTC", **of_jobs, **kept)


async def set_cron(engine: Engine, clock: Clock, schedule: str, spec: ScheduleSpec, worker: str = "") -> str:
    """Make or change a schedule; with a worker it is one of the code."""
    begin = first(schedule, spec, clock())
    return await engine.set_cron(schedule, spec, begin, source="code" if worker else "set", worker=worker)


async def standing_of(engine: Engine, schedule: str) -> Standing:
    return unpack_standing(await (await raw(engine)).hget(engine.keys("crons"), f"state\x1f{schedule}"))


async def tick(engine: Engine, clock: Clock, schedule: str, spec: ScheduleSpec) -> tuple[str, int]:
    """As a timer does it that looks at a schedule."""
    expected = (await standing_of(engine, schedule)).next
    ticks = plan(schedule, spec, expected, clock())
    return await engine.tick(schedule, spec, expected if ticks.next != expected else -1, ticks)


class TestWorker:
    """A worker without anything to run jobs: it takes and settles them as it is told."""

    __test__ = False

    def __init__(
        self, engine: Engine, name: str | None = None, queues: tuple[str, ...] = ("*",), tasks: tuple[str, ...] = ()
    ) -> None:
        """One that names no tasks knows them all."""
        self.engine = engine
        self.name = name or "w-" + secrets.token_hex(6)
        self.queues = queues
        self.info = json.dumps({"tasks": tasks})
        self.number = 0

    async def register(self) -> "TestWorker":
        assert await self.engine.register(self.name, LIFE, self.info, self.queues) == "ok"
        return self

    async def lease(self, want: int = 1, *, push: bool = False) -> list[Lease]:
        """Take jobs under the next call number."""
        self.number += 1
        leased = await self.engine.lease(
            self.name, self.number, queues=self.queues, want=want, answered=self.number - 1, push=push
        )
        assert leased.word == "ok", leased
        return leased.leases

    async def complete(self, lease: Lease, result: bytes = b"") -> str:
        return (await self.engine.complete(self.name, [(lease.id, call_of(lease), result)]))[0]

    async def retry(self, lease: Lease, delay: int = 0, error: str = "{}") -> str:
        return (await self.engine.retry(self.name, [(lease.id, call_of(lease), delay, "error", error)]))[0]

    async def bury(self, lease: Lease, reason: str = "failed", error: str = "{}") -> str:
        return (await self.engine.bury(self.name, [(lease.id, call_of(lease), reason, error)]))[0]

    async def crash(self, lease: Lease, cause: str = "{}") -> str:
        return (await self.engine.crash(self.name, [(lease.id, call_of(lease), cause)]))[0]

    async def release(self, lease: Lease) -> str:
        return (await self.engine.release(self.name, [(lease.id, call_of(lease))]))[0]

    async def snooze(self, lease: Lease, delay: int, reason: str = "snoozed") -> str:
        return (await self.engine.snooze(self.name, [(lease.id, call_of(lease), delay, reason)]))[0]


def call_of(lease: Lease) -> int:
    """The call number of the attempt that holds this lease."""
    return int(lease.running.claim.split("\x1f")[1])


# Whole situations


async def populate(engine: Engine) -> TestWorker:
    """A job of every kind, named after it; those that run are held by the worker that is given."""
    worker = await TestWorker(engine, "worker").register()
    await enqueue(engine, new_job("tomb", keep=0))
    await engine.cancel(["tomb"])
    await engine.prune()
    await enqueue(engine, new_job("done"), new_job("silent"), new_job("dead", payload=LARGE), new_job("unkept", keep=0))
    done, silent, dead, unkept = await worker.lease(4)
    await worker.complete(done, b"result")
    await worker.complete(silent)
    await worker.bury(dead)
    await worker.complete(unkept, b"result")
    await enqueue(engine, new_job("running", unique="r", expires=90_000, payload=LARGE))
    await enqueue(engine, new_job("cancelling", queue="other"))
    await worker.lease(2)
    await engine.cancel(["cancelling"])
    await enqueue(engine, new_job("cancelled"))
    await engine.cancel(["cancelled"])
    waiting = [
        new_job("ready", unique="u", expires=60_000, payload=LARGE),
        new_job("scheduled", due=5_000, expires=70_000, unique="s", payload=LARGE),
    ]
    await enqueue(engine, *waiting)
    await (await TestWorker(engine, "idle", ("empty",)).register()).lease()
    spec = new_spec(3_600_000, overlap="skip")
    await engine.set_cron("nightly", spec, (4 * 10**12, 4 * 10**12), source="code", worker="worker")
    return worker


def lane(name: str, limit: int | str = "", *, rate: str = "", burst: str = "", kind: str = "", cost: int = 1) -> str:
    """A lane as a job's header asks for it; the rate is per millisecond."""
    return "\x1f".join((f"lane:{name}", str(limit), rate, burst, kind, str(cost)))


ORDERED = lane("line", 1, kind="ordered")
HOLD = lane("stop", 1, kind="hold")
LIMITED = lane("few", 2)
RATED = lane("slow", rate="0.001", burst="1")


async def populate_lanes(engine: Engine) -> TestWorker:
    """A job in every situation that lanes bring, named after it; those that run have the worker that is given."""
    worker = await TestWorker(engine, "driver").register()
    await enqueue(
        engine,
        new_job("locked", lanes=["lock:t"], priority=0),
        new_job("put-off", lanes=[ORDERED], priority=0),
        new_job("hopeless", lanes=[HOLD], priority=0),
        new_job("first", lanes=[RATED, LIMITED], priority=0),
    )
    leases = {lease.id: lease for lease in await worker.lease(4)}
    assert leases.keys() == {"locked", "put-off", "hopeless", "first"}
    await worker.retry(leases["put-off"], 60_000)
    await worker.bury(leases["hopeless"])
    waiting = {"lock": "lock:t", "turn": ORDERED, "stop": HOLD, "rate": RATED}
    row = lane("row", 1, kind="ordered")
    await enqueue(
        engine,
        *(new_job(f"wants-{name}", lanes=[spec], expires=80_000) for name, spec in waiting.items()),
        *(new_job(f"few-{n}", lanes=[LIMITED, "lock:u"], queue=f"q{n % 2}") for n in range(4)),
        new_job("both", lanes=["lock:t", row]),
        new_job("after-both", lanes=[row]),
    )
    return worker


async def outlive(engine: Engine, clock: Clock, life: int = LIFE) -> None:
    """Let a life pass in which somebody was heard all along, so that whoever did not renew is dead."""
    for _ in range(4):
        clock.advance(life // 3)
        await engine.renew(life, ["somebody"])


async def spoil(engine: Engine, job_id: str, header: bytes = b"\xc1") -> None:
    """Make a header unreadable."""
    await (await raw(engine)).hset(engine.keys("jobs"), job_id, header)


async def rewrite(engine: Engine, job_id: str, **fields: Any) -> None:
    """Change fields of a header, and nothing that should follow from them."""
    inside = read_payload(await record_of(engine, job_id))
    changed = msgspec.structs.replace(await header_of(engine, job_id), **fields)
    await (await raw(engine)).hset(engine.keys("jobs"), job_id, write(changed, inside))


async def rewrite_payload(engine: Engine, job_id: str, payload: bytes) -> None:
    """Another payload, small enough to be part of its record."""
    header = msgspec.structs.replace(await header_of(engine, job_id), size=len(payload))
    await (await raw(engine)).hset(engine.keys("jobs"), job_id, write(header, payload))


async def rewrite_raw(engine: Engine, job_id: str, **fields: Any) -> None:
    """Values of rare fields that a header cannot have, of wrong types, into a record."""
    more = [part for name, value in fields.items() for part in (NUMBERS[name], value)]
    header = msgspec.structs.replace(await header_of(engine, job_id), **{name: getattr(USUAL, name) for name in fields})
    record = write(header, read_payload(await record_of(engine, job_id)), tuple(more))
    await (await raw(engine)).hset(engine.keys("jobs"), job_id, record)


# Looking


async def raw(engine: Engine) -> Any:
    """A plain client of the server that has the engine's keys."""
    return await engine.script_client.endpoint.client()


async def forget_scripts(engine: Engine) -> None:
    """The server loses its scripts and functions, as when it is started again or another takes its place."""
    client = await raw(engine)
    await client.script_flush()
    await client.function_flush()


async def record_of(engine: Engine, job_id: str) -> bytes:
    record: bytes = await (await raw(engine)).hget(engine.keys("jobs"), job_id)
    return record


def is_rare(record: bytes) -> bool:
    """Whether it says anything rare of its job."""
    _, _, rare = form_in(record)
    return rare > 0


async def header_of(engine: Engine, job_id: str) -> Header:
    record = await Views(engine).job(job_id)
    assert record is not None, job_id
    return record.header


async def states(engine: Engine) -> dict[str, str]:
    """Id → state of every job."""
    return {job_id: header.state async for job_id, header in Views(engine).headers()}


async def happened(engine: Engine) -> list[tuple[str, str, str]]:
    """Verb, job and note of every line in the stream of events."""
    return [(event.verb, event.job, event.note) for event in await Views(engine).events(count=1000)]


async def dump(engine: Engine) -> dict[bytes, bytes | None]:
    """Every byte that is stored."""
    pipeline = (await raw(engine)).pipeline(transaction=False)
    for key in engine.all_keys():
        pipeline.dump(key)
    return dict(zip(engine.all_keys(), await pipeline.execute(), strict=True))


async def contents(engine: Engine) -> dict[str, Any]:
    """Everything that is stored, but for the stream, whose ids are of the server's own time, and what saves a write."""
    client = await raw(engine)
    stored: dict[str, Any] = {}
    for kind in KINDS:
        match (await client.type(engine.keys(kind))).decode():
            case "hash":
                stored[kind] = await client.hgetall(engine.keys(kind))
            case "zset":
                stored[kind] = await client.zrange(engine.keys(kind), 0, -1, withscores=True)
    stored.get("meta", {}).pop(b"headed", None)  # it depends on the way that an enqueue took
    return stored


class Subscription:
    """What is said on one channel. Its own mark ends the reading, so that nothing has to be waited for."""

    def __init__(self, client: Any, pubsub: Any, channel: str) -> None:
        self._client, self._pubsub, self._channel = client, pubsub, channel

    async def messages(self) -> list[str]:
        """Everything said since the last look."""
        return [message.decode() for message in await self.raw_messages()]

    async def raw_messages(self) -> list[bytes]:
        """The same, with whatever is in it."""
        await self._client.execute_command("SPUBLISH", self._channel, "mark")
        messages: list[bytes] = []
        while (message := await self._next()) != b"mark":
            messages.append(message)
        return messages

    async def _next(self) -> bytes:
        while True:
            message = await self._pubsub.get_message(timeout=5)
            assert message is not None, f"nothing was said on {self._channel}"
            if message["type"] == "smessage":
                return bytes(message["data"])


@asynccontextmanager
async def listening(engine: Engine, channel: str) -> AsyncIterator[Subscription]:
    """Subscribe to a channel, such as `engine.keys.channel(worker)`, on the server that has the keys."""
    client = await raw(engine)
    async with client.pubsub() as pubsub:
        await pubsub.ssubscribe(channel)
        subscription = Subscription(client, pubsub, channel)
        assert await subscription.messages() == []
        yield subscription
