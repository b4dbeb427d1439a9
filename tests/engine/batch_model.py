"""Batches in plain Python: the part of the model that counts members, ends batches and does their chores.

Who is a member, and how it ended, is written down once for each; roster and numbers follow from that. `look` is the end
of every call: which batches end here, and what they make.
"""

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from penstock.engine.engine import MAX_BATCH_DEPTH, NewBatch
from penstock.engine.keys import SEPARATOR
from penstock.engine.record.record import read_new
from penstock.model.batch_state import BatchSpec, BatchState, BatchStatus, status_of
from penstock.model.header import FINISHED, Header, State

if TYPE_CHECKING:
    from tests.engine.model import Model

HANDOVER = 2_000  #: ms after a page until others may go on with it
LETTERS = {"dead": "x", "cancelled": "c"}


class Batches:
    def __init__(self, model: "Model") -> None:
        self.model = model
        self.states: dict[str, BatchState] = {}
        self.specs: dict[str, BatchSpec] = {}
        self.members: dict[str, dict[str, tuple[str, int]]] = {}  #: batch → name → outcome or '', finish number
        self.leftover: dict[str, list[str]] = {}  #: batch that is being forgotten → its entries that are still there
        self.chores: dict[str, int] = {}  #: what, batch → when
        self.lanes: dict[str, tuple[int, int]] = {}  #: batch → limit by hand, is it closed
        self.made: dict[str, BatchStatus] = {}  #: job that a batch made → the status that it carries
        self._touched: list[str] = []
        self._died: set[str] = set()  #: those in which a member died by this call
        self._handover = HANDOVER

    def of(self, batch: str, created: int) -> BatchState | None:
        """The batch that one made at that time is in. Another one may have got the id of one that was forgotten."""
        state = self.states.get(batch)
        return state if state and state.created <= created else None

    def is_needed(self, h: Header) -> bool:
        """Whether it is a member of a batch that has not ended."""
        b = self.of(h.batch, h.created)
        return b is not None and b.phase != "ended"

    def may_start(self, job_id: str) -> bool:
        """Whether its batch is not being cancelled, and its limit kept."""
        b = self.of(self.model.jobs[job_id].batch, self.model.jobs[job_id].created)
        if b is None:
            return True
        batch = self.model.jobs[job_id].batch
        running = sum(h.batch == batch for h in self.model.among("running").values())
        by_hand, closed = self.lanes.get(batch, (-1, 0))
        limit = by_hand if by_hand >= 0 else b.limit
        return not closed and (limit < 0 or running < limit)

    def roster(self) -> set[str]:
        entries_left = {entry for entries in self.leftover.values() for entry in entries}
        return entries_left.union(*map(self._entries, self.states))

    def _entries(self, batch: str) -> list[str]:
        entries = []
        for name, (outcome, number) in self.members[batch].items():
            rows = [("f", f"{number:016d}"), *([(LETTERS[outcome],)] if outcome in LETTERS else [])]
            entries += [SEPARATOR.join((batch, *row, name)) for row in (rows if outcome else [("u",)])]
        return sorted(entries)

    # Members

    def refusal(self, batch: str) -> str:
        """Why it takes no members; nothing if it does."""
        b = self.states.get(batch)
        if b is None:
            return "unknown"
        return "" if b.phase == "open" else "ended" if b.phase == "ended" else "cancelled" if b.reason else "sealed"

    def adopt(self, h: Header) -> Header:
        b = self.states[h.batch]
        lane = SEPARATOR.join((f"batch:{h.batch}", str(b.limit) if b.limit >= 0 else "", "", "", "", "1"))
        priority = b.priority if b.priority >= 0 else h.priority
        return replace(h, lanes=[lane, *h.lanes], priority=priority)

    def moved(self, job_id: str, old: State | str, new: State) -> Header:
        """With its finish number; if its batch was forgotten and it runs again, it is no member any more."""
        h = self.model.jobs[job_id]
        if self.of(h.batch, h.created) is None:
            return replace(h, batch="", finish=0) if old in FINISHED else h
        if not old:
            self._join(h.batch, job_id)
        elif old not in FINISHED and new in FINISHED:
            number = self._leave(h.batch, job_id, new)
            return replace(h, finish=0 if new == "done" else number)
        elif old in FINISHED:
            self._back(h.batch, job_id)
            return replace(h, finish=0)
        return h

    def _join(self, batch: str, name: str) -> None:
        self.members[batch][name] = ("", 0)
        self._set(batch, total=self.states[batch].total + 1, added=self.model.now)

    def _leave(self, batch: str, name: str, outcome: str) -> int:
        b = self.states[batch]
        self.members[batch][name] = (outcome, b.finishes + 1)
        self._set(batch, finishes=b.finishes + 1, **{outcome: getattr(b, outcome) + 1})
        if outcome == "dead":
            self._died.add(batch)
        return b.finishes + 1

    def _back(self, batch: str, name: str) -> None:
        if self.states[batch].phase == "ended":
            self._reopen(batch)
        outcome, _ = self.members[batch][name]
        self.members[batch][name] = ("", 0)
        self._set(batch, **{outcome: getattr(self.states[batch], outcome) - 1})

    def _reopen(self, batch: str) -> None:
        b = self.states[batch]
        if self.of(b.parent, b.created):
            self._back(b.parent, f"{{{batch}")
        fresh = {"ended": 0, "failed": 0, "reason": "", "outcome": "", "finish": 0}
        self._set(batch, phase="sealed", generation=b.generation + 1, **fresh)
        self.chores.pop(f"forget{SEPARATOR}{batch}")

    def _set(self, batch: str, **changes: Any) -> None:
        self.states[batch] = replace(self.states[batch], **changes)
        if batch not in self._touched:
            self._touched.append(batch)

    # Ends

    def look(self) -> None:
        """The end of a call: batches that were touched, those that these are in, and so on."""
        for batch in self._touched:  # it may grow
            if batch in self._died and not self.states[batch].failed:
                self._set(batch, failed=1)
                self._make(batch, "on_failure")
            b = self.states[batch]
            if b.phase == "sealed" and not b.pending and b.chore != "retry":
                self._end(batch)
        self._touched, self._died = [], set()

    def _end(self, batch: str) -> None:
        b = self.states[batch]
        outcome = "cancelled" if b.reason else "dead" if b.dead else "done"
        self._set(batch, phase="ended", ended=self.model.now, outcome=outcome)
        if b.chore == "cancel":
            self._let_go(batch)
        self.chores[f"forget{SEPARATOR}{batch}"] = self.model.now + b.keep
        self._tell("end_batch", batch, outcome)
        self._make(batch, "then")
        if self.of(b.parent, b.created):
            self._set(batch, finish=self._leave(b.parent, f"{{{batch}", outcome))
            self._touched.append(b.parent)  # also if it was looked at before

    def _make(self, batch: str, what: str) -> None:
        b, job_id = self.states[batch], f"{batch}@{what}-{self.states[batch].generation}"
        if job_id in self.model.jobs:
            job_id += f"-{b.created}"  # the batch that had this id before has made that one
        assert job_id not in self.model.jobs
        self.made[job_id] = status_of(batch, b)
        header = read_new(getattr(self.specs[batch], what).header)
        self.model.make(job_id, header, b"", f"batch {batch}")

    def _tell(self, verb: str, batch: str, note: str = "") -> None:
        self.model.last_event.setdefault((verb, ""), []).append((batch, 0, note))

    # Verbs

    def open_batch(self, new: NewBatch) -> str:
        if old := self.states.get(new.id):
            return "created" if old.nonce == new.nonce else "exists"
        if f"forget{SEPARATOR}{new.id}" in self.chores:
            return "exists"
        refusal = self.refusal(new.parent) if new.parent else ""
        depth = self.states[new.parent].depth + 1 if new.parent and not refusal else 1
        if refusal or depth > MAX_BATCH_DEPTH:
            return refusal or "deep"
        now, same = self.model.now, ("name", "parent", "priority", "limit", "nonce", "abandon_after", "keep")
        fields = {name: getattr(new, name) for name in same}
        self.states[new.id] = BatchState("open", depth=depth, created=now, added=now, **fields)
        self.specs[new.id], self.members[new.id] = new.spec, {}
        self.chores[f"abandon{SEPARATOR}{new.id}"] = now + new.abandon_after
        if new.parent:
            self._join(new.parent, f"{{{new.id}")
        self._tell("open_batch", new.id)
        return "created"

    def seal_batch(self, batch: str) -> str:
        if batch not in self.states:
            return "missing"
        if self.states[batch].phase == "open":
            self._set(batch, phase="sealed")
            del self.chores[f"abandon{SEPARATOR}{batch}"]
            self._tell("seal_batch", batch)
            self.look()
        return self.states[batch].phase

    def cancel_batch(self, batch: str, reason: str) -> str:
        return self._call_off(batch, reason) if batch in self.states else "missing"

    def _call_off(self, batch: str, reason: str) -> str:
        b = self.states[batch]
        if b.phase == "ended" or b.reason:
            return "ended" if b.phase == "ended" else "cancelled"
        self.chores.pop(f"abandon{SEPARATOR}{batch}", None)
        self._set(batch, phase="sealed", reason=reason)
        if b.pending:
            self._take_up(batch, "cancel")
            self._close(batch, shut=1)
        elif b.chore:
            self._let_go(batch)
        self._tell("cancel_batch", batch, reason)
        return "cancelled"

    def retry_batch(self, batch: str, nonce: str) -> str:
        b = self.states.get(batch)
        if b is None or b.retried == nonce:
            return "ok" if b else "missing"
        if b.reason and b.phase != "ended":
            return "cancelling"
        if not b.dead and b.chore != "retry":
            return "none"
        self._set_going(batch, again=True)
        self._set(batch, retried=nonce)
        return "ok"

    def _set_going(self, batch: str, *, again: bool = False) -> None:
        b = self.states[batch]
        if (b.phase != "ended" and b.reason) or (b.chore == "retry" and not again) or not (b.dead or b.chore):
            return
        if b.phase == "ended":
            self._reopen(batch)
        if not b.chore:
            self._tell("retry_batch", batch)
        self._take_up(batch, "retry")

    def set_batch(self, batch: str, *, priority: int | None, limit: int | None) -> str:
        if batch not in self.states:
            return "missing"
        if limit is not None:
            self._tune(batch, limit, self.lanes.get(batch, (-1, 0))[1])
        if priority is not None:
            self.states[batch] = replace(self.states[batch], priority=priority)
        self._tell("set_batch", batch)
        return "ok"

    def _close(self, batch: str, *, shut: int) -> None:
        self._tune(batch, self.lanes.get(batch, (-1, 0))[0], shut)

    def _tune(self, batch: str, limit: int, shut: int) -> None:
        self.lanes[batch] = (limit, shut)
        if limit < 0 and not shut:
            del self.lanes[batch]

    # Chores

    def _take_up(self, batch: str, what: str, cursor: str = "") -> None:
        self.chores.pop(f"{self.states[batch].chore}{SEPARATOR}{batch}", None)
        self._set(batch, chore=what, cursor=cursor)
        self.chores[f"{what}{SEPARATOR}{batch}"] = self.model.now + self._handover

    def _let_go(self, batch: str) -> None:
        what = self.states[batch].chore
        del self.chores[f"{what}{SEPARATOR}{batch}"]
        if what == "cancel":
            self._close(batch, shut=0)
        self._set(batch, chore="", cursor="")

    def do_chores(self, what: str = "", batch: str = "", *, limit: int) -> tuple[int, int, int, bool]:
        """As a timer does it, or whoever asked for one of them."""
        due = sorted((at, chore) for chore, at in self.chores.items() if at <= self.model.now)
        chore = f"{what}{SEPARATOR}{batch}" if what else due[0][1] if due else ""
        self._handover, seen = HANDOVER if what else 0, 0
        if chore:
            kind, _, named = chore.partition(SEPARATOR)
            seen = self._do(kind, named, limit)
        self.look()
        self._handover = HANDOVER
        following = min(self.chores.values(), default=-1)
        return seen + bool(chore and not what), following, self.model.now, chore in self.chores

    def _do(self, what: str, batch: str, limit: int) -> int:
        b = self.states.get(batch)
        match what:
            case "forget" if b is None or b.phase == "ended":
                return self._forget(batch, limit)
            case "abandon" if b and b.phase == "open":
                return self._abandon(batch)
            case "cancel" | "retry" if b and b.chore == what:
                return self._page(batch, what, limit)
        self.chores.pop(f"{what}{SEPARATOR}{batch}", None)
        return 0

    def _page(self, batch: str, what: str, limit: int) -> int:
        b, wanted = self.states[batch], "" if what == "cancel" else "dead"
        names = sorted(name for name, (outcome, _) in self.members[batch].items() if outcome == wanted)
        page = [name for name in names if name > b.cursor][:limit]
        for name in page:
            if not self._has(batch, name):
                continue
            if name.startswith("{"):
                if what == "cancel":
                    self._call_off(name[1:], b.reason)
                else:
                    self._set_going(name[1:])
            elif what == "cancel":
                self.model.cancel(name, b.reason)
            else:
                self.model.revive(name)
        if len(page) < limit:
            self._let_go(batch)
        else:
            self._take_up(batch, what, page[-1])
        return len(page)

    def _has(self, batch: str, name: str) -> bool:
        """Whether a member is still there; its id may be another's by now."""
        inside, job = self.states.get(name[1:]), self.model.jobs.get(name)
        if name.startswith("{"):
            return bool(inside and inside.parent == batch and self.of(batch, inside.created))
        return bool(job and job.batch == batch and self.of(batch, job.created))

    def _abandon(self, batch: str) -> int:
        b = self.states[batch]
        if b.added + b.abandon_after > self.model.now:
            self.chores[f"abandon{SEPARATOR}{batch}"] = b.added + b.abandon_after
        else:
            self._call_off(batch, "abandoned")
        return 0

    def _forget(self, batch: str, limit: int) -> int:
        b, chore = self.states.get(batch), f"forget{SEPARATOR}{batch}"
        parent = self.of(b.parent, b.created) if b else None
        if parent and parent.phase != "ended":
            self.chores[chore] = self.model.now + 60_000
            return 0
        if b:
            self.leftover[batch] = self._entries(batch)
            for part in (self.states, self.specs, self.members, self.lanes):
                part.pop(batch, None)
        page = self.leftover.get(batch, [])[:limit]
        self.leftover[batch] = self.leftover.get(batch, [])[limit:]
        self.chores[chore] = self.model.now
        if len(page) < limit:
            self.chores.pop(chore)
        return len(page)
