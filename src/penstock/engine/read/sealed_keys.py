"""Which keys what is stored is sealed with: a key may be dropped when nothing needs it any more."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, Final

import msgspec

from penstock.engine.engine import Engine
from penstock.engine.record.record import read_header, read_payload
from penstock.model.codec import open_envelope
from penstock.model.header import Attempt
from penstock.model.payload_codec import key_name, text_key_name
from penstock.model.schedule import ScheduleSpec

_PAGE: Final = 500  #: fields of a hash in one call
_decode = msgspec.msgpack.Decoder().decode
_history = msgspec.msgpack.Decoder(list[Attempt]).decode
_spec = msgspec.msgpack.Decoder(ScheduleSpec).decode


async def count_keys(engine: Engine) -> Counter[str]:
    """Key → how many stored values are sealed with it; all of them are looked at, in pages."""
    found: Counter[str] = Counter()
    for name, keys_in in _KEYS_IN.items():
        async for value in _values(engine, name):
            try:
                found.update(filter(None, keys_in(value)))
            except (msgspec.MsgspecError, ValueError, TypeError, LookupError, AttributeError):
                continue  # the audit reports what cannot be read
    return found


async def _values(engine: Engine, name: str) -> AsyncIterator[bytes]:
    cursor = 0
    while True:
        cursor, page = await engine.script_client.ask(partial(_page, engine.keys(name), cursor))
        for value in page.values():
            if value:
                yield value
        if cursor == 0:
            return


def _page(key: bytes, cursor: int, client: Any) -> Any:
    return client.hscan(key, cursor, count=_PAGE)


def _in_payload(payload: bytes) -> Iterator[str]:
    yield key_name(bytes(open_envelope(payload).args))


def _in_record(record: bytes) -> Iterator[str]:
    progress = read_header(record).progress
    if progress:
        yield text_key_name(json.loads(progress)[2])
    if payload := read_payload(record):
        yield from _in_payload(payload)


def _in_attempts(attempts: bytes) -> Iterator[str]:
    for attempt in _history(attempts):
        yield text_key_name(str(json.loads(attempt.error).get("message", "")))


def _in_log(log: bytes) -> Iterator[str]:
    for line in _decode(log)[2]:
        yield text_key_name(line[3])


def _in_cron(spec: bytes) -> Iterator[str]:
    yield from _in_payload(_spec(spec).payload)


_KEYS_IN: Final = {
    "jobs": _in_record,
    "payloads": _in_payload,
    "results": lambda result: iter([key_name(result)]),
    "attempts": _in_attempts,
    "logs": _in_log,
    "crons": _in_cron,
}
