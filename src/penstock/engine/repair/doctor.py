"""Finds what is wrong with a namespace and its server, says what to do, and repairs what can be repaired safely.

Each check is a function that gives diagnoses; `CHECKS` has them in their order.
"""

import json
import time
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Final, Literal

from redis.exceptions import RedisError

from penstock.engine.engine import Engine
from penstock.engine.keys import KINDS
from penstock.engine.read.lane_views import LaneViews
from penstock.engine.read.listing import Filter, Listing
from penstock.engine.read.sealed_keys import count_keys
from penstock.engine.read.views import Views
from penstock.engine.repair.audit import Finding as Broken
from penstock.engine.repair.audit import audit
from penstock.engine.repair.audit_lanes import miscounts
from penstock.engine.repair.reconcile import reconcile
from penstock.engine.repair.server_versions import weakness
from penstock.engine.scripts import SCHEMA
from penstock.engine.transport.error_policy import what_to_do

Level = Literal["wrong", "advice"]

_MAX_AUDITS: Final = 3  #: on a system whose jobs move meanwhile
_TOTALS: Final = ("counts", "conservation")  #: rules that need a moment in which no job moves
_SLOW_ANSWER: Final = 0.05  #: seconds
_NEARLY_FULL: Final = 0.9  #: of maxmemory
_MAX_LAG: Final = 10  #: seconds by which a replica may be behind
_ASIDE: Final = "lost"  #: prefix of keys that are put aside because they cannot be rebuilt
_MANY_QUEUES: Final = 10_000  #: names of queues; most apps have fewer than a hundred
_REAP_LEASE: Final = 10_000  #: ms; the grace after a silence before jobs of workers are taken back
_CONTENTS: Final = frozenset({"meta", "jobs", "payloads", "results", "attempts", "logs", "limits", "crons", "queues"})
_REBUILD: Final = "penstock doctor --fix rebuilds it from the headers of the jobs"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Something that is wrong, and what to do."""

    rule: str
    subject: str
    text: str
    todo: str
    level: Level = "wrong"
    fixable: bool = False


@dataclass(slots=True)
class Doctor:
    """The diagnoses, and what was examined."""

    engine: Engine
    tasks: Collection[str] = ()  #: of the caller's app
    findings: list[Diagnosis] = field(default_factory=list)
    server: dict[str, Any] = field(default_factory=dict)
    still: bool = True  #: no job moved while totals were compared

    @property
    def healthy(self) -> bool:
        return all(finding.level == "advice" for finding in self.findings)


Check = Callable[[Doctor], AsyncIterator[Diagnosis]]


async def examine(engine: Engine, tasks: Collection[str] = ()) -> Doctor:
    """Make all checks."""
    made = Doctor(engine, tasks)
    for check in CHECKS:
        async for finding in check(made):
            made.findings.append(finding)
        if any(finding.rule in {"schema", "kind"} for finding in made.findings):
            break  # the other checks could not read the data
    return made


async def fix(engine: Engine) -> int:
    """Rebuild what can be rebuilt from the records; how many things were repaired or put aside."""
    misfits = await _misfits(engine)
    for name in misfits:
        await _put_aside(engine, name)
    repaired = await reconcile(engine)

    def seeks_unregistered_holders(client: Any) -> Any:
        return client.hget(engine.keys("meta"), "stray")

    while (await engine.reap(_REAP_LEASE))[1] or await engine.script_client.ask(seeks_unregistered_holders):
        pass  # until no lease of an unknown worker is left
    return len(misfits) + repaired


# The server


async def _server(made: Doctor) -> AsyncIterator[Diagnosis]:
    client: Any = await made.engine.script_client.endpoint.client()
    info = await client.info()
    name, version = ("Valkey", info["valkey_version"]) if "valkey_version" in info else ("Redis", info["redis_version"])
    made.server = {
        "name": f"{name} {version}",
        "aof": bool(info.get("aof_enabled")),
        "eviction": info.get("maxmemory_policy", ""),
        "replicas": info.get("connected_slaves", 0),
        "memory": info.get("used_memory_human", ""),
        "idle_timeout": await _setting(client, "timeout"),
    }
    for finding in (*_version(name, version), *_persistence(info), *_memory(info), *_replicas(info)):
        yield finding
    if made.server["idle_timeout"] not in {None, "0"}:
        seconds = made.server["idle_timeout"]
        yield Diagnosis(
            "timeout", "server", f"closes connections that are idle for {seconds} s", "set timeout 0 there", "advice"
        )


def _version(name: str, version: str) -> list[Diagnosis]:
    known = weakness(name, version)
    return [] if known is None else [Diagnosis("version", f"{name} {version}", *known, "advice")]


def _persistence(info: dict[str, Any]) -> list[Diagnosis]:
    diagnoses = []
    if not info.get("aof_enabled"):
        text, todo = (
            "keeps no AOF: what was stored since its last snapshot is lost when it ends",
            "set appendonly yes there",
        )
        diagnoses.append(Diagnosis("persistence", "server", text, todo, "advice"))
    for name in ("rdb_last_bgsave_status", "aof_last_bgrewrite_status", "aof_last_write_status"):
        if info.get(name, "ok") != "ok":
            text = f"{name} is {info[name]}"
            diagnoses.append(
                Diagnosis("persistence", "server", text, "see the server's log, and whether its disk is full")
            )
    return diagnoses


def _memory(info: dict[str, Any]) -> list[Diagnosis]:
    diagnoses, most = [], int(info.get("maxmemory", 0))
    if info.get("maxmemory_policy", "noeviction") != "noeviction":
        text = f"evicts keys when it is full (maxmemory-policy {info['maxmemory_policy']}), which loses jobs"
        diagnoses.append(Diagnosis("eviction", "server", text, "set maxmemory-policy noeviction there"))
    if most and int(info.get("used_memory", 0)) > _NEARLY_FULL * most:
        text = f"uses {info['used_memory_human']} of {info['maxmemory_human']}"
        todo = "raise maxmemory, or keep less: penstock dead purge, shorter keep_result"
        diagnoses.append(Diagnosis("memory", "server", text, todo, "advice"))
    return diagnoses


def _replicas(info: dict[str, Any]) -> list[Diagnosis]:
    diagnoses = []
    for number in range(int(info.get("connected_slaves", 0))):
        row = info.get(f"slave{number}", {})
        lag, state = int(row.get("lag", 0)), str(row.get("state", "online"))
        if state != "online" or lag > _MAX_LAG:
            text = f"is {state}, {lag} s behind: what it has not got is lost if the master fails"
            diagnoses.append(Diagnosis("replica", f"{row.get('ip')}:{row.get('port')}", text, "see its log", "advice"))
    return diagnoses


async def _setting(client: Any, name: str) -> str | None:
    try:
        return str((await client.config_get(name)).get(name, "0"))
    except RedisError:
        return None  # this user may not ask, or the server does not know


async def _latency(made: Doctor) -> AsyncIterator[Diagnosis]:
    client: Any = await made.engine.script_client.endpoint.client()
    times = []
    for _ in range(11):
        began = time.perf_counter()
        await client.ping()
        times.append(time.perf_counter() - began)
    made.server["round_trip_ms"] = round(median(times) * 1000, 2)
    if median(times) > _SLOW_ANSWER:
        text = f"takes {median(times) * 1000:.0f} ms for a round trip"
        yield Diagnosis(
            "latency", "server", text, "look for slow commands (SLOWLOG GET), swapping, the network", "advice"
        )


# What is stored


async def _schema(made: Doctor) -> AsyncIterator[Diagnosis]:
    client: Any = await made.engine.script_client.endpoint.client()
    try:
        schema = await client.hget(made.engine.keys("meta"), "schema")
    except RedisError:
        return  # a key of another type: the next check reports it
    if schema is not None and schema.decode() != SCHEMA:
        text = f"the data has layout {schema.decode()}, this Penstock knows {SCHEMA}"
        yield Diagnosis("schema", "meta", text, what_to_do(schema.decode()))


async def _kinds(made: Doctor) -> AsyncIterator[Diagnosis]:
    for name in await _misfits(made.engine):
        what = "puts it aside under another name, and what was in it is lost" if name in _CONTENTS else "rebuilds it"
        text = f"is not a {KINDS[name]}: something else has written there"
        yield Diagnosis("kind", name, text, f"find out who; penstock doctor --fix {what}", fixable=True)


async def _misfits(engine: Engine) -> list[str]:
    client: Any = await engine.script_client.endpoint.client()
    pipe = client.pipeline(transaction=False)
    for name in KINDS:
        pipe.type(engine.keys(name))
    kinds = zip(KINDS, await pipe.execute(), strict=True)
    return [name for name, kind in kinds if kind.decode() not in {KINDS[name], "none"}]


async def _put_aside(engine: Engine, name: str) -> None:
    client: Any = await engine.script_client.endpoint.client()
    key = engine.keys(name)
    if name in _CONTENTS:
        await client.rename(key, f"{_ASIDE}:".encode() + key)
    else:
        await client.delete(key)


async def _audit(made: Doctor) -> AsyncIterator[Diagnosis]:
    """Every invariant. On a busy system a finding counts only if it lasts; totals need a quiet moment."""
    views, lasting = Views(made.engine), None
    for _ in range(_MAX_AUDITS):
        before = await views.last_event()
        findings = {broken: broken for broken in await audit(made.engine)}
        lasting = {key: findings[key] for key in findings if lasting is None or key in lasting}
        made.still = await views.last_event() == before
        if not lasting or made.still:
            break
    for broken in (lasting or {}).values():
        if made.still or await _is_so(made.engine, broken):
            yield _of_audit(broken)


async def _is_so(engine: Engine, broken: Broken) -> bool:
    """Whether the finding is certain although jobs move. Small numbers of a lane may last by chance."""
    if broken.rule == "lane_counts":
        return await miscounts(engine, broken.subject)
    return broken.rule not in _TOTALS


def _of_audit(broken: Broken) -> Diagnosis:
    todo = _TODO.get(broken.rule, _REBUILD)
    return Diagnosis(broken.rule, broken.subject, broken.text, todo, fixable="--fix" in todo)


_TODO: Final = {
    "header": "penstock doctor --fix puts its arguments into the dead letter, if they are there",
    "payload": "penstock doctor --fix buries it as payload_lost; its arguments are lost",
    "payloads": "its header was lost: penstock doctor --fix drops the rest",
    "conservation": "headers were deleted, and those jobs are lost; penstock doctor --fix sets the count",
    "leases": "its worker is gone: the timer of any live worker takes the job back; penstock doctor --fix does so now",
    "keepers": "restart the workers: they say which schedules they have; penstock doctor --fix clears the rest",
    "result": "the result is lost; penstock doctor --fix notes that it is not kept",
}


async def _sealed_keys(made: Doctor) -> AsyncIterator[Diagnosis]:
    """Only if the app seals anything: all that is stored is looked at."""
    codecs = made.engine.codecs
    if not codecs:
        return
    made.server["keys"] = dict(sorted((await count_keys(made.engine)).items()))
    for key, number in made.server["keys"].items():
        if not codecs.knows(key):
            text = f"{number:,} stored values are sealed with it, but this app does not have it"
            yield Diagnosis("key", key, text, "give it to Sealed(keys), after the first, until no value needs it")


# Who runs what


async def _unknown_tasks(made: Doctor) -> AsyncIterator[Diagnosis]:
    nodes = await Views(made.engine).workers()
    known = {task for node in nodes for task in _tasks_of(node.info)} | set(made.tasks)
    if not nodes and not made.tasks:
        return  # without workers no task is known
    unknown: dict[str, int] = {}
    for state in ("ready", "held", "scheduled"):
        async for job in Listing(made.engine).each(Filter(state=state)):
            if job.header.task not in known:
                unknown[job.header.task] = unknown.get(job.header.task, 0) + 1
    for task, number in sorted(unknown.items()):
        text = f"{number} jobs wait for it, but no live worker knows it"
        todo = "start a worker whose code has it, or: penstock job cancel --task NAME"
        yield Diagnosis("unknown_task", task, text, todo)


def _tasks_of(info: str) -> list[str]:
    try:
        return [str(task) for task in json.loads(info)["tasks"]]
    except (ValueError, TypeError, KeyError):
        return []


async def _schedules(made: Doctor) -> AsyncIterator[Diagnosis]:
    async for schedule in Views(made.engine).crons():
        if schedule.orphaned or schedule.standing.status == "orphaned":
            text = "is no longer in the code of any live worker, so it makes no jobs"
            todo = f"bring it back, or remove it: app.schedule({schedule.id!r}).remove()"
            yield Diagnosis("orphan", schedule.id, text, todo)


async def _lanes(made: Doctor) -> AsyncIterator[Diagnosis]:
    for lane in await LaneViews(made.engine.script_client).every():
        if lane.conflict:
            text = f"other code declares it differently: {lane.conflict}"
            yield Diagnosis(
                "lane", lane.name, text, "deploy one declaration everywhere; until then the last job's counts"
            )


async def _open_batches(made: Doctor) -> AsyncIterator[Diagnosis]:
    async for batch in Views(made.engine).batches():
        if batch.open:
            members = f"{batch.total} members, {batch.pending} of them unfinished"
            text = f"open since {batch.created:%Y-%m-%d %H:%M} UTC: {members}"
            yield Diagnosis(
                "open_batch", batch.id, text, f"if its producer is gone: penstock batch seal {batch.id}", "advice"
            )


async def _unserved(made: Doctor) -> AsyncIterator[Diagnosis]:
    views = Views(made.engine)
    counts, nodes = await views.counts(), await views.workers()
    for queue, row in sorted(counts.items()):
        waiting = sum(row.get(state, 0) for state in ("ready", "held"))
        if waiting and not any("*" in node.queues or queue in node.queues for node in nodes):
            text = f"{waiting} jobs wait in it, but no live worker serves it"
            yield Diagnosis("unserved", queue, text, f"penstock worker -q {queue}", "advice")


async def _many_queues(made: Doctor) -> AsyncIterator[Diagnosis]:
    client: Any = await made.engine.script_client.endpoint.client()
    known = await client.hlen(made.engine.keys("queues")) - 1
    if known > _MANY_QUEUES:
        text = f"{known:,} names of queues are known; listings and metrics of so many take long"
        todo = (
            "names without jobs and settings are forgotten by themselves: keep results for less long, "
            "or use fewer queues, with a lock or a limit per tenant"
        )
        yield Diagnosis("queues", "queues", text, todo, "advice")


CHECKS: Final[tuple[Check, ...]] = (
    _server,
    _latency,
    _schema,
    _kinds,
    _audit,
    _sealed_keys,
    _unknown_tasks,
    _schedules,
    _lanes,
    _open_batches,
    _unserved,
    _many_queues,
)


def repaired(before: Doctor, after: Doctor) -> list[Diagnosis]:
    """The findings that are gone after the repair."""
    rest = {(finding.rule, finding.subject) for finding in after.findings}
    return [replace(finding) for finding in before.findings if (finding.rule, finding.subject) not in rest]
