"""A batch as data: its stored state, and the status that users see."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import msgspec

Phase = Literal["open", "sealed", "ended"]


class BatchState(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The state of a batch, in the order in which the scripts store it; the Lua constants B_… are made from it.

    Times are milliseconds of the server's clock. A batch inside another is one of its members.
    """

    phase: Phase
    name: str
    parent: str = ""
    depth: int = 1
    created: int = 0
    added: int = 0  #: when the last member came
    ended: int = 0
    total: int = 0
    done: int = 0
    dead: int = 0
    cancelled: int = 0
    finishes: int = 0  #: the last finish number that was given out
    generation: int = 1  #: one more each time that a member of an ended batch runs again
    failed: int = 0  #: 1 once a member of this generation has died, so that `on_failure` was made
    reason: str = ""  #: why it was cancelled
    outcome: str = ""  #: done, dead or cancelled: how it counts as a member of its parent, once it has ended
    finish: int = 0  #: its finish number there
    priority: int = -1  #: of every member; -1: each has its own
    limit: int = -1  #: of its lane, as it was opened with; -1: none
    chore: str = ""  #: cancel or retry, while members are processed in pages
    cursor: str = ""  #: the last member that was processed
    nonce: str = ""  #: of the call that opened it
    retried: str = ""  #: nonce of the last retry_batch
    abandon_after: int = 86_400_000  #: it is cancelled if it is open and nothing was added for so long
    keep: int = 86_400_000  #: how long it is remembered after its end

    @property
    def pending(self) -> int:
        return self.total - self.done - self.dead - self.cancelled


class Ending(NamedTuple):
    """A job that a batch makes: its packed header, and its payload before and after the status."""

    header: bytes = b""
    before: bytes = b""
    after: bytes = b""


class BatchSpec(NamedTuple):
    """The jobs that a batch makes; an empty header means none."""

    then: Ending = Ending()
    on_failure: Ending = Ending()


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """How a batch stands at one moment: total = done + dead + cancelled + pending."""

    id: str
    name: str
    state: Phase
    total: int
    done: int
    dead: int
    cancelled: int
    pending: int
    open: bool  #: it takes more members
    reason: str  #: why it was cancelled; empty if it was not
    generation: int  #: 1, and one more each time that a member ran again after its end
    parent: str  #: the batch that it is in, or nothing
    priority: int | None
    created: datetime
    ended: datetime | None


read_state = msgspec.msgpack.Decoder(BatchState).decode
read_status = msgspec.msgpack.Decoder(BatchStatus).decode


def pack_spec(spec: BatchSpec) -> bytes:
    """Each part after its length, because the msgpack of the scripts has no bytes type."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in (*spec.then, *spec.on_failure))


def read_spec(raw: bytes) -> BatchSpec:
    """The spec from its stored form; raises ValueError if it cannot be read."""
    parts, at = list[bytes](), 0
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 4], "big")
        parts.append(raw[at + 4 : at + 4 + size])
        at += 4 + size
    if len(parts) != 6 or at != len(raw):
        raise ValueError(f"{len(parts)} parts instead of 6")
    return BatchSpec(Ending(*parts[:3]), Ending(*parts[3:]))


def status_of(batch_id: str, state: BatchState) -> BatchStatus:
    """The status, as the scripts compute it for `then`."""
    return BatchStatus(
        id=batch_id,
        name=state.name,
        state=state.phase,
        total=state.total,
        done=state.done,
        dead=state.dead,
        cancelled=state.cancelled,
        pending=state.pending,
        open=state.phase == "open",
        reason=state.reason,
        generation=state.generation,
        parent=state.parent,
        priority=state.priority if state.priority >= 0 else None,
        created=datetime.fromtimestamp(state.created / 1000, UTC),
        ended=datetime.fromtimestamp(state.ended / 1000, UTC) if state.ended else None,
    )
