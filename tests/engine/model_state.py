"""The stored state of a namespace, and the state that the model expects."""

from collections import Counter
from typing import Any

import msgspec

from penstock.engine.keys import SEPARATOR
from penstock.engine.record.record import read_header
from penstock.engine.repair.audit import place
from penstock.model.header import Attempt
from penstock.model.schedule import unpack, unpack_standing
from tests.engine.factories import all_payloads
from tests.engine.machines import World
from tests.engine.model import WAITING, Model

HASHES = ("meta", "jobs", "payloads", "results", "attempts", "logs", "unique", "queues", "calls", "counts", "crons")
INDEXES = ("ready", "leases", "scheduled", "finished", "dead", "tombs")
ZSETS = (*INDEXES, "deaths", "cancels", "timers", "workers", "lives", "retired", "ticks")
READ = f"""
local found = {{}}
for i = 1, {len(HASHES)} do found[i] = redis.call('HGETALL', KEYS[i]) end
for i = #found + 1, #KEYS - 1 do found[i] = redis.call('ZRANGE', KEYS[i], 0, -1, 'WITHSCORES') end
found[#KEYS] = redis.call('XLEN', KEYS[#KEYS])
found[#KEYS + 1] = redis.call('XREVRANGE', KEYS[#KEYS], '+', '-', 'COUNT', 1)
return found
"""
_history = msgspec.msgpack.Decoder(list[Attempt]).decode
_event = msgspec.msgpack.Decoder(tuple[int, list[tuple[str, str, str, int, str, str]]]).decode


def stored(world: World) -> dict[str, Any]:
    """What is under the namespace, read in one round trip, without the sentinels."""
    keys = [world.engine.keys(name) for name in (*HASHES, *ZSETS, "events")]
    answer: Any = world.client.eval(READ, len(keys), *keys)
    *parts, events, [(_, (_, event))] = answer
    contents = {name: _named(rows) for name, rows in zip(HASHES + ZSETS, parts, strict=True)}
    line = [(member.split(SEPARATOR)[0], member.split(SEPARATOR)[2]) for member in contents["ready"]]
    return contents | _decoded(contents) | {"line": line, "events": events, "last_event": _lines_of(event)}


def _named(rows: list[bytes]) -> dict[str, bytes]:
    """Without the sentinel."""
    return {name.decode(): value for name, value in zip(rows[::2], rows[1::2], strict=True) if name}


def _decoded(contents: dict[str, dict[str, bytes]]) -> dict[str, Any]:
    return {name: {member: int(score) for member, score in contents[name].items()} for name in ZSETS} | {
        "meta": {name: int(contents["meta"].get(name, 0)) for name in ("seq", "fence", "resumed", "seen")},
        "jobs": {job_id: read_header(raw) for job_id, raw in contents["jobs"].items()},
        "payloads": all_payloads(contents["jobs"], contents["payloads"]),
        "attempts": {job_id: _history(raw) for job_id, raw in contents["attempts"].items()},
        "logs": {job_id: msgspec.msgpack.decode(raw) for job_id, raw in contents["logs"].items()},
        "unique": {name: holder.decode() for name, holder in contents["unique"].items()},
        "queues": {name: value == b"paused" for name, value in contents["queues"].items()},
        "calls": {worker: [int(call) for call in numbers.split()] for worker, numbers in contents["calls"].items()},
        "counts": {name: int(count) for name, count in contents["counts"].items() if count != b"0"},
        "crons": {
            name: unpack(raw) if name.startswith("spec") else unpack_standing(raw)
            for name, raw in contents["crons"].items()
        },
    }


def _lines_of(raw: bytes) -> dict[tuple[str, str], list[Any]]:
    lines: dict[tuple[str, str], list[Any]] = {}
    for verb, queue, _, attempt, note, ids in _event(raw)[1]:
        lines.setdefault((verb, queue), []).extend((job, attempt, note) for job in ids.split(SEPARATOR) if job)
    return {name: sorted(rows) for name, rows in lines.items()}


def expected(model: Model) -> dict[str, Any]:
    """What must be stored when the model is in this state."""
    indexes: dict[str, dict[str, float]] = {name: {} for name in INDEXES}
    for job_id, header in model.jobs.items():
        where = place(job_id, header)
        indexes[where.key][where.member.decode()] = where.score
    cancelling = [(job_id, h) for job_id, h in model.among("running").items() if h.cancelling]
    return indexes | {
        "line": [(queue, job_id) for queue in sorted(model.paused) for job_id in model.line([queue])],
        "timers": {f"expire{SEPARATOR}{job_id}": h.expires for job_id, h in model.among(*WAITING).items() if h.expires},
        "cancels": {f"{h.claim.split(SEPARATOR)[0]}{SEPARATOR}{job_id}": 0 for job_id, h in cancelling},
        "unique": {h.unique: job_id for job_id, h in model.among(*WAITING, "running").items() if h.unique},
        "counts": Counter(
            f"{h.queue}{SEPARATOR}{h.state}" for h in model.jobs.values() if not h.compact and h.state != "ready"
        ),
        "jobs": model.jobs,
        "payloads": model.payloads,
        "results": model.results,
        "attempts": model.attempts,
        "logs": model.logs,
        "deaths": {f"{h.death}{SEPARATOR}{h.since:014d}{SEPARATOR}{one}": 0 for one, h in model.among("dead").items()},
        "queues": model.paused,
        "workers": model.workers,
        "lives": model.lives,
        "retired": model.retired,
        "calls": model.calls,
        "crons": {f"spec{SEPARATOR}{name}": spec for name, (spec, _) in model.crons.states.items()}
        | {f"state{SEPARATOR}{name}": standing for name, (_, standing) in model.crons.states.items()},
        "ticks": {name: one.look for name, (_, one) in model.crons.states.items() if one.status == "active"},
        "meta": {"seq": model.seq, "fence": model.fence, "resumed": model.resumed, "seen": model.seen or 0},
    }
