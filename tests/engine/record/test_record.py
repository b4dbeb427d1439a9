"""The record of a job: scripts and Python read and write the same bytes, and keep fields that they do not know."""

import random
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.engine.engine import Engine
from penstock.engine.record import layout
from penstock.engine.record.record import pack, read_header, read_new, read_payload, write
from penstock.engine.repair.audit import audit
from penstock.engine.scripts import Scripts
from penstock.model.header import FINISHED, STATES, Header
from tests.engine.factories import TestWorker, enqueue, header_of, lane, new_batch, new_job, raw, record_of

LUA = Path(layout.__file__).parents[1] / "lua"
NEWER = len(layout.FIELDS) + 7, len(layout.FIELDS) + 30  #: fields that only a later version has


def drawn(draw: random.Random) -> Header:
    """A header such as the scripts may leave."""
    state = draw.choice(STATES)
    fields: dict[str, Any] = {"state": state, "task": draw.choice(("t", "tâche", "x" * 300))}
    for name in layout.FIELDS[2:]:
        if draw.random() < 0.6:
            usual = getattr(layout.USUAL, name)
            if isinstance(usual, int):
                fields[name] = draw.choice((1, 7, 255, 256, 70_000, 2**40 + 3))
            elif isinstance(usual, str):
                fields[name] = draw.choice(("a", "é" * 9, "long " * 60))
    fields["lanes"] = draw.choice(([], ["lock:a"], [lane("few", 2)], ["lock:" + "a" * 300], ["lock:a", lane("b", 1)]))
    fields["home"] = draw.randint(1, len(fields["lanes"])) if fields["lanes"] else 0
    fields["turn"] = draw.randint(0, len(fields["lanes"]))
    if state == "held" and not fields["lanes"]:
        fields |= {"lanes": ["lock:a"], "home": 1}
    fields["priority"] = draw.randint(0, 99)
    fields |= {
        "result": draw.randint(0, 2),
        "cancelling": draw.randint(0, 1),
        "compact": draw.randint(0, int(state in FINISHED)),
    }
    fields["size"] = draw.choice((0, 5, layout.INLINE - 1, layout.INLINE, 2**20, -1))
    fields["claim"] = "" if state == "done" else draw.choice(("", "w\x1f1", "c" * layout.LONGEST_CLAIM))
    return Header(**fields)


def payload_of(header: Header) -> bytes | None:
    return bytes(header.size) if 0 <= header.size < layout.INLINE else None


def script_with(body: str) -> str:
    """A script that knows the modules `request` and `record`."""
    verb = f"""\
-- KEYS: meta
local request = require 'request'
local record = require 'record'
return {{ run = function() {body} end }}
"""
    return Scripts(test=False, changed={"verbs/try": verb})["try"].text


async def run_with_record(engine: Engine, body: str, *args: bytes) -> Any:
    await engine.init()
    return await (await raw(engine)).eval(script_with(body), 1, engine.script_client.keys("meta"), *args)


async def rewritten(engine: Engine, record: bytes) -> bytes:
    """What the scripts write of what they read."""
    return bytes(await run_with_record(engine, "return record.encode(record.parse(request.args[1]))", record))


@pytest.mark.parametrize("seed", range(20))
async def test_the_scripts_write_what_python_writes_and_both_read_it(engine: Engine, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(20):
        header = drawn(draw)
        record = write(header, payload_of(header))
        assert read_header(record) == header
        again = await rewritten(engine, record)
        assert read_header(again) == header
        assert read_payload(again) == read_payload(record)
        assert sorted(again) == sorted(record)  # rare fields may come in another order


@pytest.mark.parametrize("seed", range(20))
def test_a_header_that_a_producer_packs_is_read_unchanged(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(50):
        fields = {
            name: getattr(drawn(draw), name) for name in ("task", "queue", "priority", "batch", "unique", "due", "keep")
        }
        header = Header(state="", **fields)
        assert read_new(pack(header)) == header


@pytest.mark.parametrize("seed", range(10))
async def test_the_scripts_and_python_refuse_a_record_that_was_cut_or_grew(engine: Engine, seed: int) -> None:
    header = drawn(random.Random(seed))
    record = write(header, payload_of(header))
    body = """
        local readable = {}
        for i = 1, request.argc do if record.decode(request.args[i]) then readable[#readable + 1] = i end end
        return readable"""
    damaged_records = [*(record[:n] for n in range(len(record))), record + b"."]
    assert await run_with_record(engine, body, record) == [1]
    assert await run_with_record(engine, body, *damaged_records) == []
    for damaged in damaged_records:
        with pytest.raises(msgspec.MsgspecError):
            read_header(damaged)


async def test_fields_that_only_another_version_knows_are_carried_through(engine: Engine) -> None:
    worker = await TestWorker(engine).register()
    await enqueue(engine, new_job("a", unique="u"), new_job("b"))
    client: Any = await raw(engine)
    unknown = (NEWER[0], {"a": [1, 2.5, None]}, NEWER[1], "text")
    for job_id in "ab":
        record = await record_of(engine, job_id)
        changed = write(read_header(record), read_payload(record), unknown)
        await client.hset(engine.keys("jobs"), job_id, changed)
    kept = b"".join(msgspec.msgpack.encode(part) for part in unknown)

    async def check(state: str) -> None:
        for job_id in "ab":
            assert (await header_of(engine, job_id)).state == state
            assert kept in await record_of(engine, job_id)
            assert await audit(engine) == []

    for lease in await worker.lease(2):
        assert await worker.retry(lease, 0) == "ok"
    await check("ready")
    for lease in await worker.lease(2):
        assert await worker.bury(lease) == "ok"
    await check("dead")
    assert await engine.revive(["a", "b"]) == ["ok", "ok"]
    leases = await worker.lease(2)
    assert {lease.payload for lease in leases} == {b"payload"}
    await check("running")
    for lease in leases:
        assert await worker.complete(lease) == "ok"
    await check("done")
    assert (await header_of(engine, "a")).unique == "u"


#: A format of struct, a byte that is compared with a number, or a mark of msgpack.
_RAW = re.compile(
    r"(?:pack|unpack|numbers)\('[<>]|string\.byte\([^()]*\) *[=~]= *\d{2,}|\b(?:145|15[2345]|196|217|220)\b"
)
#: What is stored of lanes, batches and events has forms of its own, which are written where it is read.
_OTHER_FORMS = {"lane_record.lua", "lock_owners.lua", "locks.lua", "encode_cache.lua", "batches.lua", "batch_end.lua"}


def test_the_declaration_alone_has_the_numbers_of_the_record() -> None:
    numbers = {}
    for file in LUA.rglob("*.lua"):
        code = "\n".join(line.partition("--")[0] for line in file.read_text("utf-8").splitlines())
        if file.name not in _OTHER_FORMS and (raw_ones := _RAW.findall(code)):
            numbers[file.name] = raw_ones
    assert numbers == {"record.lua": ["unpack('>", "pack('>"]}  # the length of a long list in msgpack


async def test_a_member_of_a_batch_keeps_the_lock_that_it_asks_for(engine: Engine) -> None:
    await engine.open_batch(new_batch("b"))
    await enqueue(engine, new_job("a", batch="b", lanes=["lock:t"]))
    assert [name.partition("\x1f")[0] for name in (await header_of(engine, "a")).lanes] == ["batch:b", "lock:t"]
