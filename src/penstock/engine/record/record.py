"""How a job is stored: as a header or, like most, as a label and what is its own; what lease and complete put in front.

Each form has a first byte of its own. `pack` makes what enqueue takes; the rest reads what the scripts left.
"""

from functools import lru_cache
from typing import ClassVar, Final

import msgspec
from msgspec.structs import replace

from penstock.model.header import Header

_SEPARATOR: Final = "\x1f"
USUAL: Final = Header(state="", task="")  #: what a label need not say


class Plain(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What enqueue stores of most jobs, which wait for their turn or for one lane: a label, and what they do not share.

    Those with the same label differ in nothing that lease and complete ask for. The values follow each other without
    the mark of an array, so that they are the end of one when something is put in front of them: see the next ones.
    """

    label: str
    seq: int
    created: int
    size: int
    payload: bytes | None  #: a small one; others are kept apart

    def header(self) -> Header:
        return replace(
            kind(self.label),
            created=self.created,
            since=self.created,
            seq=self.seq,
            arrival=self.seq,
            size=self.size,
        )


class Laned(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The same of a job with a lane, after what that adds."""

    shown: int  #: 0: the lane holds it, 1: shows it, 2: is a lock, and the job's own
    since: int
    place: int
    label: str
    lane: str
    seq: int
    created: int
    size: int
    payload: bytes | None

    def header(self) -> Header:
        return replace(
            kind(self.label, self.lane),
            state="ready" if self.shown else "held",
            created=self.created,
            since=self.since,
            seq=self.place,
            arrival=self.seq,
            size=self.size,
        )


class Begun(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What lease stores of one: the same, after what it adds."""

    claim: str
    started: int
    fence: int
    label: str
    seq: int
    created: int
    size: int
    payload: bytes | None

    @property
    def ready(self) -> Header:
        """What it has in common with those alike."""
        return kind(self.label)

    def header(self) -> Header:
        plain = Plain(self.label, self.seq, self.created, self.size, None)
        return Running(self.claim, self.started, self.fence, plain.header()).header()


class BegunLaned(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The same of one with a lane."""

    claim: str
    started: int
    fence: int
    since: int
    place: int
    label: str
    lane: str
    seq: int
    created: int
    size: int
    payload: bytes | None

    @property
    def ready(self) -> Header:
        return kind(self.label, self.lane)

    def header(self) -> Header:
        found = Laned(1, self.since, self.place, self.label, self.lane, self.seq, self.created, self.size, None)
        return Running(self.claim, self.started, self.fence, found.header()).header()


class Running(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What lease stores of other jobs: the header as it found it, and what it adds."""

    claim: str
    started: int
    fence: int
    ready: Header
    payload: ClassVar[bytes | None] = None  #: that of such a job is kept apart

    def header(self) -> Header:
        if self.ready.state == "running":
            return self.ready
        return replace(
            self.ready,
            state="running",
            since=self.started,
            claim=self.claim,
            started=self.started,
            fence=self.fence,
            starts=self.ready.starts + 1,
        )


class Done(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What complete stores of a job that is as lease left it: that, and what it adds."""

    since: int
    result: int
    running: msgspec.Raw

    def header(self) -> Header:
        running = read_running(bytes(self.running))
        last = f"{running.claim}\x1fcomplete\x1fok"
        return replace(
            running.header(), state="done", since=self.since, result=self.result, claim="", last=last, reason=""
        )


#: The first byte of what is stored tells which of these it is; a header is a longer array.
PLAIN: Final = 0xD9
LANED: Final = 0x99
BEGUN: Final = 0x98
BEGUN_LANED: Final = 0x9B
RUNNING: Final = 0x94
DONE: Final = 0x93

_FIVE: Final = b"\x95"
_LONGEST: Final = 255  #: bytes of a label

_plain = msgspec.msgpack.Decoder(Plain).decode
_laned = msgspec.msgpack.Decoder(Laned).decode
_begun = msgspec.msgpack.Decoder(Begun).decode
_begun_laned = msgspec.msgpack.Decoder(BegunLaned).decode
_header = msgspec.msgpack.Decoder(Header).decode
_running = msgspec.msgpack.Decoder(Running).decode
_done = msgspec.msgpack.Decoder(Done).decode
_encode = msgspec.msgpack.Encoder().encode


def pack(header: Header) -> bytes:
    """A new job's header as enqueue takes it; of one that can do with a label, see `Plain`, only that and its lane."""
    if header.nonce or header.unique or header.due or header.expires:
        return _encode(header)
    lanes = header.lanes
    if lanes and (header.batch or len(lanes) > 1 or not _is_only_limited(lanes[0])):
        return _encode(header)
    label = _label(header.queue, header.priority, header.task, header.keep, header.retries, header.batch)
    lane = _short(lanes[0]) if lanes else b""
    return label + lane if label and (lane or not lanes) else _encode(header)


def is_plain(header: Header) -> bool:
    """Whether a new job can do with a label, and asks for no lane and no batch."""
    return not header.lanes and not header.batch and pack(header)[0] == PLAIN


def _is_only_limited(lane: str) -> bool:
    _, *rest = lane.split(_SEPARATOR)
    return not rest or not (rest[1] or rest[3])  # a rate, or an order


@lru_cache(maxsize=1024)
def _label(queue: str, priority: int, task: str, keep: int, retries: int, batch: str) -> bytes:
    """What is usual is left out."""
    parts = [
        queue if queue != USUAL.queue else "",
        f"{priority:02d}" if priority != USUAL.priority else "",
        task,
        str(keep) if keep != USUAL.keep else "",
        str(retries) if retries != USUAL.retries else "",
        *([batch] if batch else []),
    ]
    label = _short(_SEPARATOR.join(parts))
    # A batch may have the priority written out, which takes two bytes more.
    return b"" if batch and not parts[1] and len(label) > _LONGEST else label


def _short(text: str) -> bytes:
    """As it is stored; nothing if it is too long."""
    packed = text.encode()
    return bytes([PLAIN, len(packed)]) + packed if len(packed) <= _LONGEST else b""


@lru_cache(maxsize=4096)
def kind(label: str, lane: str = "") -> Header:
    """What jobs with this label, and this lane, have in common."""
    try:
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
            batch=batch,
        )
    except ValueError:
        raise msgspec.ValidationError("the label of a job cannot be read") from None


def read_new(raw: bytes) -> Header:
    """The header that `pack` was given, as far as it matters."""
    if raw[0] != PLAIN:
        return _header(raw)
    end = 2 + raw[1]
    return kind(raw[2:end].decode(), raw[end + 2 :].decode())


def read_header(raw: bytes) -> Header:
    """A header as it is stored; a `msgspec.MsgspecError` if it cannot be read."""
    first = raw[0] if raw else 0
    try:
        if first == PLAIN:
            return _plain(_FIVE + raw).header()
        if first == LANED:
            return _laned(raw).header()
        if first in {BEGUN, BEGUN_LANED, RUNNING}:
            return read_running(raw).header()
        return _done(raw).header() if first == DONE else _header(raw)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from None


def is_owner(raw: bytes) -> bool:
    """Whether a job that waits has its lock already, so that lease need not ask: see lib/locks.lua."""
    return raw[:2] == bytes((LANED, 2))


def read_running(raw: bytes) -> Running | Begun | BegunLaned:
    """The same for a worker, which needs little of it, so it is not put together."""
    first = raw[0] if raw else 0
    try:
        if first == BEGUN:
            return _begun(raw)
        if first == BEGUN_LANED:
            return _begun_laned(raw)
        if first == RUNNING:
            return _running(raw)
        header = _header(raw)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from None
    return Running(header.claim, header.started, header.fence, header)


def read_payload(raw: bytes) -> bytes | None:
    """The payload that is part of what is stored of a job, if it is; the same error."""
    first = raw[0] if raw else 0
    try:
        if first == PLAIN:
            return _plain(_FIVE + raw).payload
        if first == LANED:
            return _laned(raw).payload
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from None
    return read_running(raw).payload if first in {BEGUN, BEGUN_LANED} else None
