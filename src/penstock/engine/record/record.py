"""Reads and writes the record of a job, which `layout` declares. The scripts do the same in lib/record.lua."""

import struct
from functools import lru_cache
from struct import Struct
from typing import Any, Final, NamedTuple, cast

import msgspec
from msgspec.structs import replace

from penstock.engine.record import layout
from penstock.engine.record.layout import USUAL
from penstock.model.header import Header, State

_SEPARATOR: Final = "\x1f"
_AS_SEQ: Final = -1  #: the arrival of a job whose record has none: it equals seq
_STATES: Final = {ord(letter): state for state, letter in layout.LETTERS.items()}
_CODES: Final = {1: "B", 2: "H", 4: "I", 6: "HI", 8: "Q"}  # six bytes are read as two and four


def _struct(*parts: layout.Part) -> Struct:
    return Struct(">" + "".join(_CODES[part.width] for part in parts))


_HEAD: Final = _struct(*layout.HEAD)
_RUN: Final = _struct(*layout.RUN)
_BODY: Final = _struct(*layout.BODY)
_FORM: Final = _struct(*layout.FORM)
_LANED: Final = _struct(*layout.LANED)
_LONGEST: Final = [2 ** (8 * part.width) - 1 for part in layout.FORM]
_RARE: Final = [
    (number, name, getattr(USUAL, name)) for number, name in layout.RARE.items() if name not in layout.DERIVED
]

_decode = msgspec.msgpack.Decoder(list[Any]).decode
_encode = msgspec.msgpack.Encoder().encode


class Running(msgspec.Struct, frozen=True, gc=False):
    """The fields of a leased job that a worker needs."""

    claim: str
    started: int
    fence: int
    ready: Header  #: the fields that do not change while it runs, and whether to cancel it
    payload: bytes | None = None  #: if it is small enough to be in the record
    record: bytes = b""

    def header(self) -> Header:
        return read_header(self.record)


class _Record(NamedTuple):
    """The sections of a record whose lengths add up."""

    state: State
    flags: int
    since: int
    run: bytes
    body: bytes
    arrival: bytes
    form: bytes  #: without the arrival
    payload: bytes


def pack(header: Header, more: tuple[Any, ...] = ()) -> bytes:
    """The form of a new job for enqueue. `more`: numbers and values of fields that only another version knows."""
    label = _label(header.queue, header.priority, header.task, header.keep, header.retries, header.batch)
    lanes, lane = header.lanes, b""
    rare: list[Any] = []
    for number, name, usual in _RARE:
        if (value := getattr(header, name)) != usual:
            rare += number, value
    if len(lanes) == 1 and len(packed := lanes[0].encode()) <= _LONGEST[1]:
        lane = packed
    elif lanes:
        rare += layout.NUMBERS["lanes"], lanes
    if header.state and header.home != bool(lane):
        rare += layout.NUMBERS["home"], header.home
    if header.state and not lane and header.arrival != header.seq:
        rare += layout.NUMBERS["arrival"], header.arrival
    if unexplained := header.starts - _explained(header) if header.state else 0:
        rare += layout.NUMBERS["starts"], unexplained
    rare += more
    rare_packed = _encode(rare) if rare else b""
    if len(label) > _LONGEST[0] or len(rare_packed) > _LONGEST[2]:
        raise ValueError("what describes this job, its names and lanes and unique key, is longer than 64 KiB")
    return _FORM.pack(len(label), len(lane), len(rare_packed)) + label + lane + rare_packed


def write(header: Header, payload: bytes | None, more: tuple[Any, ...] = ()) -> bytes:
    """The record of a job as the scripts write it; a large payload is not part of it."""
    run = b""
    if header.fence or header.started or header.claim:
        run = _RUN.pack(*_halves(header.started), header.fence) + header.claim.encode()
    flags = header.result * layout.RESULT + header.cancelling * layout.CANCELLING
    head = _HEAD.pack(ord(layout.LETTERS[cast("State", header.state)]), flags, len(run), *_halves(header.since))
    size = header.size if header.size >= 0 else layout.LOST
    body = _BODY.pack(size, *_halves(header.seq), *_halves(header.created))
    form = pack(header, more)
    if to := _lane_end(form):
        form = form[:to] + _LANED.pack(*_halves(header.arrival)) + form[to:]
    inside = payload or b"" if _is_inside(header.state, size, header.compact) else b""
    return head + run + body + form + inside


def _lane_end(form: bytes) -> int:
    """Where the lane ends in a form; 0 if there is no lane."""
    label, lane, _ = _FORM.unpack_from(form)
    return _FORM.size + label + lane if lane else 0


def is_plain(header: Header) -> bool:
    """Whether a new job has no lane, no batch and no rare field."""
    _, lane, rare = _FORM.unpack_from(pack(header))
    return not (lane or rare or header.batch)


def read_new(form: bytes) -> Header:
    """The header of a new job from its form, the reverse of `pack`."""
    return replace(_header_of(form), state="", arrival=0)


def read_header(record: bytes) -> Header:
    """The header from a record; raises `msgspec.MsgspecError` if the record cannot be read."""
    sections = _sections(record)
    shared = _header_of(sections.form)
    size, *halves = _BODY.unpack(sections.body)
    seq, created = _joined(halves)
    arrival = _joined(list(_LANED.unpack(sections.arrival)))[0] if sections.arrival else shared.arrival
    started, fence, claim = _run(sections.run)
    last, reason = shared.last, shared.reason
    if sections.state == "done" and claim:  # complete has left it there
        claim, last, reason = "", _SEPARATOR.join((claim, "complete", "ok")), ""
    header = replace(
        shared,
        state=sections.state,
        since=sections.since,
        seq=seq,
        arrival=seq if arrival == _AS_SEQ else arrival,
        created=created,
        size=-1 if size == layout.LOST else size,
        started=started,
        fence=fence,
        claim=claim,
        result=sections.flags % layout.CANCELLING // layout.RESULT,
        cancelling=sections.flags // layout.CANCELLING,
        last=last,
        reason=reason,
    )
    return replace(header, starts=header.starts + _explained(header))


def read_running(record: bytes) -> Running:
    """The fields that a worker needs. Every job passes here, so this is written for speed."""
    try:
        flags, run, high, low, fence = _running_front(record)
        body_at = _HEAD.size + run
        size, label, lane, rare = _lengths(record, body_at)
        form_at = body_at + _BODY.size
        lane_end = form_at + _FORM.size + label + lane
        to = rare_at = lane_end + _LANED.size if lane else lane_end
        claim = record[_HEAD.size + _RUN.size : body_at].decode()
        if rare:
            to += rare
            ready = _header_of(record[form_at:lane_end] + record[rare_at:to])
        else:
            ready = _known_form(record[form_at:lane_end])
    except (struct.error, ValueError):
        raise msgspec.DecodeError("the record of a job cannot be read") from None
    if len(record) - to != (size if size < layout.INLINE else 0):
        raise msgspec.DecodeError("the record of a job is cut off")
    if flags >= layout.CANCELLING:
        ready = replace(ready, cancelling=1)
    return Running(claim, high << 32 | low, fence, ready, record[to:] or None, record)


_running_front: Final = Struct(f">xBB{layout.HEAD[-1].width}x" + _RUN.format.removeprefix(">")).unpack_from
_lengths: Final = Struct(f">I{_BODY.size - layout.BODY[0].width}x" + _FORM.format.removeprefix(">")).unpack_from


def read_payload(record: bytes) -> bytes | None:
    """The payload if it is part of the record; raises the same error."""
    sections = _sections(record)
    (size,) = _SIZE.unpack_from(sections.body)
    return sections.payload if _is_inside(sections.state, size, _header_of(sections.form).compact) else None


def form_in(record: bytes) -> tuple[int, int, int]:
    """The lengths of label, lane and rare fields of a record."""
    label, lane, rare = _FORM.unpack_from(_sections(record).form)
    return label, lane, rare


def is_owner(record: bytes) -> bool:
    """Whether a waiting job owns its lock already, so that lease need not check the lock: see lib/locks.lua."""
    return len(record) > 1 and record[1] & layout.OWNER != 0


def _sections(record: bytes) -> _Record:
    try:
        letter, flags, run_size, *since = _HEAD.unpack_from(record)
        state = _STATES[letter]
        body_at = _HEAD.size + run_size
        form_at = body_at + _BODY.size
        (size,) = _SIZE.unpack_from(record, body_at)
        label, lane, rare = _FORM.unpack_from(record, form_at)
    except (struct.error, KeyError):
        raise msgspec.DecodeError("the record of a job cannot be read") from None
    lane_end = form_at + _FORM.size + label + lane
    rare_at = lane_end + (_LANED.size if lane else 0)
    to = rare_at + rare
    form = record[form_at:lane_end] + record[rare_at:to]
    inside = size if _is_inside(state, size) else 0
    if inside and rare and state in _ENDED and _header_of(form).compact:
        inside = 0
    if len(record) != to + inside or 0 < run_size < _RUN.size:
        raise msgspec.DecodeError("the record of a job is cut off")
    (time,) = _joined(since)
    run, body, arrival = record[_HEAD.size : body_at], record[body_at:form_at], record[lane_end:rare_at]
    return _Record(state, flags, time, run, body, arrival, form, record[to:])


_SIZE: Final = _struct(layout.BODY[0])
_ENDED: Final = frozenset({"dead", "cancelled"})


def _is_inside(state: str, size: int, compact: int = 0) -> bool:
    return size < layout.INLINE and state != "done" and not compact


def _explained(header: Header) -> int:
    """The number of starts that follow from the other counts."""
    return header.failures + header.crashes + header.releases + (header.state in {"running", "done"})


def _halves(number: int) -> tuple[int, int]:
    return number >> 32, number & 0xFFFFFFFF


def _joined(halves: list[int]) -> list[int]:
    return [high << 32 | low for high, low in zip(halves[::2], halves[1::2], strict=True)]


def _run(run: bytes) -> tuple[int, int, str]:
    if not run:
        return 0, 0, ""
    high, low, fence = _RUN.unpack_from(run)
    try:
        return high << 32 | low, fence, run[_RUN.size :].decode()
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from None


@lru_cache(maxsize=1024)
def _label(queue: str, priority: int, task: str, keep: int, retries: int, batch: str) -> bytes:
    """The label; defaults are left out."""
    parts = [
        queue if queue != USUAL.queue else "",
        f"{priority:02d}" if priority != USUAL.priority else "",
        task,
        str(keep) if keep != USUAL.keep else "",
        str(retries) if retries != USUAL.retries else "",
        *([batch] if batch else []),
    ]
    return _SEPARATOR.join(parts).encode()


def _header_of(form: bytes) -> Header:
    """The header from a form; `starts` has only what the other counts do not explain."""
    try:
        label, lane, rare = _FORM.unpack_from(form)
        to = _FORM.size + label + lane
        shared = _shared(form[_FORM.size : to - lane].decode(), form[to - lane : to].decode())
        return replace(shared, **_read_rare(form[to:])) if rare else shared
    except (ValueError, TypeError, struct.error):
        raise msgspec.ValidationError("the form of a job cannot be read") from None


_known_form: Final = lru_cache(maxsize=4096)(_header_of)  #: for forms without rare fields


@lru_cache(maxsize=4096)
def _shared(label: str, lane: str) -> Header:
    queue, priority, task, keep, retries, *rest = label.split(_SEPARATOR)
    (batch,) = rest or ("",)
    return Header(
        state="ready",
        task=task,
        queue=queue or USUAL.queue,
        priority=int(priority or USUAL.priority),
        keep=int(keep or USUAL.keep),
        retries=int(retries or USUAL.retries),
        lanes=[lane] if lane else [],
        home=1 if lane else 0,
        arrival=_AS_SEQ,
        batch=batch,
    )


def _read_rare(packed: bytes) -> dict[str, Any]:
    """The rare fields by name, without those that only another version knows."""
    values = _decode(packed)
    fields = {}
    for number, value in zip(values[::2], values[1::2], strict=True):
        name = layout.RARE.get(number)
        if name is not None:
            if type(value) is not type(getattr(USUAL, name)):
                raise ValueError(name)
            fields[name] = value
        elif number <= len(layout.FIELDS):
            raise ValueError(number)
    return fields
