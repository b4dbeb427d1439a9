"""The stored state of jobs and batches, and the state that the model expects."""

from collections import Counter
from typing import Any

import msgspec

from penstock.engine.keys import SEPARATOR
from penstock.engine.record.record import read_header
from penstock.model.batch_state import pack_spec, read_state, read_status
from penstock.model.header import Attempt, Header
from tests.engine.factories import all_payloads
from tests.engine.machines import World
from tests.engine.model import WAITING, Model

HASHES = ("jobs", "payloads", "results", "attempts", "unique", "counts", "batches", "limits")
ZSETS = ("roster", "chores", "finished", "dead", "tombs", "scheduled")
READ = f"""
local found = {{}}
for i = 1, {len(HASHES)} do found[i] = redis.call('HGETALL', KEYS[i]) end
for i = #found + 1, #KEYS - 1 do found[i] = redis.call('ZRANGE', KEYS[i], 0, -1, 'WITHSCORES') end
found[#KEYS] = redis.call('XREVRANGE', KEYS[#KEYS], '+', '-', 'COUNT', 30)
return found
"""
_history = msgspec.msgpack.Decoder(list[Attempt]).decode
_event = msgspec.msgpack.Decoder(tuple[int, list[tuple[str, str, str, int, str, str]]]).decode


def stored(world: World) -> dict[str, Any]:
    """What is under the namespace, read in one round trip, without the sentinels; held is as good as ready."""
    keys = [world.engine.keys(name) for name in (*HASHES, *ZSETS, "events")]
    answer: Any = world.client.eval(READ, len(keys), *keys)
    *parts, events = answer
    contents: dict[str, Any] = {name: _named(rows) for name, rows in zip(HASHES + ZSETS, parts, strict=True)}
    payloads = all_payloads(contents["jobs"], contents["payloads"])
    return contents | {
        "payloads": payloads,
        **{name: {member: int(score) for member, score in contents[name].items()} for name in ZSETS},
        "jobs": {job_id: comparable(read_header(raw)) for job_id, raw in contents["jobs"].items()},
        "made": {one: read_status(raw[1:-1]) for one, raw in payloads.items() if "@" in one},
        "attempts": {job_id: _history(raw) for job_id, raw in contents["attempts"].items()},
        "unique": {name: holder.decode() for name, holder in contents["unique"].items()},
        "counts": {name: int(n) for name, n in contents["counts"].items() if n != b"0" and not name.endswith("held")},
        "batches": {
            name: read_state(raw) if name.startswith("st") else raw for name, raw in contents["batches"].items()
        },
        "limits": {name: tuple(msgspec.msgpack.decode(raw)) for name, raw in contents["limits"].items()},
        "last_event": next((lines for _, (_, raw) in events if (lines := _lines_of(raw))), {}),
    }


def _named(rows: list[bytes]) -> dict[str, bytes]:
    return {name.decode(): value for name, value in zip(rows[::2], rows[1::2], strict=True) if name}


def _lines_of(raw: bytes) -> dict[tuple[str, str], list[Any]]:
    """What an event says, but for those that a lane has held: an event of nothing else says nothing."""
    lines: dict[tuple[str, str], list[Any]] = {}
    for verb, queue, _, attempt, note, ids in _event(raw)[1]:
        if verb != "hold":
            lines.setdefault((verb, queue), []).extend((job, attempt, note) for job in ids.split(SEPARATOR) if job)
    return {name: sorted(rows) for name, rows in lines.items()}


def comparable(h: Header) -> Header:
    """Without what its lanes decide: its place in line, and since when it has had it."""
    waits = h.state in {"ready", "held"}
    lined: dict[str, Any] = {"state": "ready", "since": 0} if waits else {}
    return msgspec.structs.replace(h, seq=0, arrival=0, home=0, turn=0, fence=0, priority=0, **lined)


def expected(model: Model) -> dict[str, Any]:
    """What must be stored when the model is in this state."""
    batches, made = model.batches, [job_id for job_id in model.payloads if "@" in job_id]
    return {
        "jobs": {job_id: comparable(h) for job_id, h in model.jobs.items()},
        "payloads": {job_id: payload for job_id, payload in model.payloads.items() if "@" not in job_id},
        "made": {job_id: batches.made[job_id] for job_id in made},
        "results": model.results,
        "attempts": model.attempts,
        "unique": {h.unique: job_id for job_id, h in model.among(*WAITING, "running").items() if h.unique},
        "counts": Counter(
            f"{h.queue}{SEPARATOR}{h.state}" for h in model.jobs.values() if not h.compact and h.state != "ready"
        ),
        "finished": {job_id: h.since + h.keep for job_id, h in model.among("done", "cancelled").items()},
        "dead": {job_id: h.since for job_id, h in model.among("dead").items()},
        "tombs": {job_id: h.since for job_id, h in model.jobs.items() if h.compact},
        "scheduled": {job_id: h.due for job_id, h in model.among("scheduled").items()},
        "batches": {f"state{SEPARATOR}{name}": state for name, state in batches.states.items()}
        | {f"spec{SEPARATOR}{name}": pack_spec(spec) for name, spec in batches.specs.items()},
        "limits": {f"batch:{name}": row for name, row in batches.lanes.items()},
        "roster": dict.fromkeys(batches.roster(), 0),
        "chores": batches.chores,
    }
