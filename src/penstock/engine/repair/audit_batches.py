"""The audit's rules for batches: counts their members again, from the records and from `roster`."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.engine.keys import SEPARATOR
from penstock.model.batch_state import BatchState, read_spec, read_state
from penstock.model.header import FINISHED, Header

Found = tuple[str, str | bytes, str]  #: rule, subject, text
_NUMBERS = ("total", "done", "dead", "cancelled")
_KINDS = {"dead": "x", "cancelled": "c"}


def entries_of(batch: str, name: str, state: str, finish: int) -> list[str]:
    """The entries of `roster` that a member in this state must have; a done member's finish number is not known."""
    if state not in FINISHED:
        return [SEPARATOR.join((batch, "u", name))]
    numbered = [SEPARATOR.join((batch, "f", f"{finish:016d}", name))] if finish else []
    return numbered + [SEPARATOR.join((batch, _KINDS[state], name)) for state in (state,) if state in _KINDS]


class BatchCounts:
    """All batches, with the numbers that follow from records and from `roster`."""

    def __init__(self) -> None:
        self.states: dict[str, BatchState] = {}
        self.broken: list[Found] = []
        self._specs: set[str] = set()
        self._headers: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._entries: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def know(self, name: bytes, raw: bytes) -> None:
        what, _, batch = name.decode(errors="replace").partition(SEPARATOR)
        try:
            if what == "spec":
                read_spec(raw)
                self._specs.add(batch)
            else:
                self.states[batch] = read_state(raw)
        except (msgspec.MsgspecError, ValueError) as error:
            self.broken.append(("batches", batch, f"its {what} cannot be read: {error}"))

    def expected(self, job_id: str, header: Header) -> list[str]:
        """Count a job; the entries that it must have."""
        if not self._is_in(header.batch, header.created):
            return []
        self._headers[header.batch].update(("total", header.state))
        return entries_of(header.batch, job_id, header.state, header.finish)

    def inside(self) -> Iterator[str]:
        """Count the batches inside others; the entries that these must have."""
        for batch, state in self.states.items():
            if self._is_in(state.parent, state.created):
                outcome = state.outcome if state.phase == "ended" else "running"
                self._headers[state.parent].update(("total", outcome))
                yield from entries_of(state.parent, f"{{{batch}", outcome, state.finish)

    def _is_in(self, batch: str, created: int) -> bool:
        """Whether a job created then is in this batch, and not in an earlier batch with the same id."""
        return batch in self.states and self.states[batch].created <= created

    def check_entry(self, entry: str, header: Header | None, chores: set[str]) -> Iterator[Found]:
        batch, kind, number, name = _split(entry)
        state = self.states.get(batch)
        self._entries[batch][kind] += 1
        if state is None:
            if f"forget{SEPARATOR}{batch}" not in chores:
                yield "roster", entry, "is of a batch that does not exist"
            return
        child = self.states.get(name[1:]) if name.startswith("{") else None
        if child is not None and child.parent == batch and self._is_in(batch, child.created):
            outcome, finish = child.outcome if child.phase == "ended" else "running", child.finish
        elif header is not None and header.batch == batch and self._is_in(batch, header.created):
            outcome, finish = str(header.state), header.finish
        elif kind != "u" and (state.phase == "ended" or state.generation > 1):
            self._count_gone(batch, kind)
            return
        else:
            yield "roster", entry, "is a member that is gone, though its batch has not ended"
            return
        wants = {
            "u": outcome not in FINISHED,
            "f": outcome in FINISHED,
            "x": outcome == "dead",
            "c": outcome == "cancelled",
        }
        if not wants.get(kind, False):
            yield "roster", entry, f"belongs to a member that is {outcome}"
        if kind == "f" and finish and finish != int(number):
            yield "roster", entry, f"belongs to a member with the finish number {finish}"

    def _count_gone(self, batch: str, kind: str) -> None:
        """Count a finished member that was forgotten after an end of its batch."""
        counted = {"f": {"total": 1, "done": 1}, "x": {"done": -1, "dead": 1}, "c": {"done": -1, "cancelled": 1}}
        for name, change in counted.get(kind, {}).items():
            self._headers[batch][name] += change

    def check(self, chores: set[str], limits: dict[bytes, bytes]) -> Iterator[Found]:
        yield from self.broken
        yield from (("batches", batch, "is stored by half") for batch in self._specs ^ self.states.keys())
        for batch, state in self.states.items():
            yield from self._check_numbers(batch, state)
            yield from _check_phase(batch, state, chores)
            paused: Any = msgspec.msgpack.decode(limits.get(f"batch:{batch}".encode(), b"\x92\xff\x00"))[1]
            if bool(paused) != (state.chore == "cancel"):
                yield "batches", batch, f"its lane is {'closed' if paused else 'open'}, its chore is {state.chore!r}"
        for chore in chores:
            what, _, batch = chore.partition(SEPARATOR)
            if what != "forget" and batch not in self.states:
                yield "chores", chore, "is to be done to a batch that does not exist"

    def _check_numbers(self, batch: str, state: BatchState) -> Iterator[Found]:
        entries, headers = self._entries[batch], self._headers[batch]
        stored = {name: getattr(state, name) for name in _NUMBERS}
        dead, cancelled = entries["x"], entries["c"]
        listed = (entries["u"] + entries["f"], entries["f"] - dead - cancelled, dead, cancelled)
        for where, counted in (("roster", dict(zip(_NUMBERS, listed, strict=True))), ("headers", headers)):
            for name in _NUMBERS:
                if stored[name] != counted[name]:
                    yield "batches", batch, f"says {stored[name]} {name}, {where} say {counted[name]}"
        if state.finishes < entries["f"]:
            yield "batches", batch, f"gave out {state.finishes} finish numbers, but {entries['f']} are in use"


def _split(entry: str) -> tuple[str, str, str, str]:
    """The parts of an entry: batch, kind, finish number or empty, name."""
    batch, _, rest = entry.partition(SEPARATOR)
    kind, _, rest = rest.partition(SEPARATOR)
    number, _, name = rest.partition(SEPARATOR) if kind == "f" else ("", "", rest)
    return batch, kind, number, name


def _check_phase(batch: str, state: BatchState, chores: set[str]) -> Iterator[Found]:
    if state.phase == "sealed" and not state.pending and state.chore != "retry":
        yield "batches", batch, "is sealed and nothing is pending, but it has not ended"
    if state.phase == "ended" and state.pending:
        yield "batches", batch, f"has ended, but {state.pending} are pending"
    want = {"open": {"abandon"}, "sealed": set[str](), "ended": {"forget"}}[state.phase] | {state.chore} - {""}
    kinds = ("abandon", "forget", "cancel", "retry")
    stored = {what for what in kinds if f"{what}{SEPARATOR}{batch}" in chores}
    if want != stored:
        yield "chores", batch, f"{sorted(stored)} are due, it should be {sorted(want)}"
