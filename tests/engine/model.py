"""The engine in plain Python: what each verb must answer, and what must be true afterwards. It knows no Redis.

There are no indexes here: whatever the engine keeps beside its headers is looked for among all jobs. The verbs have the
arguments and answers of `Engine`; where that takes a page, this takes one job: a page is nothing but its jobs in turn.
"""

import json
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from penstock.engine.engine import MAX_CRASHES
from penstock.engine.keys import SEPARATOR
from penstock.model.error_fingerprint import error_fingerprint
from penstock.model.header import DELAY_BELOW, Attempt, Header, State
from tests.engine.batch_model import Batches
from tests.engine.cron_model import Crons

LOOK_AGAIN = 600_000  #: ms after which prune looks again at finished members that their batches need
WAITING: tuple[State, ...] = ("scheduled", "ready")
SETTLES = ("complete", "retry", "bury", "crash", "release", "snooze")
ZEROS = ("failures", "crashes", "starts", "releases", "expires")
FRESH: dict[str, Any] = dict.fromkeys(ZEROS, 0) | dict.fromkeys(
    ("reason", "progress", "last", "death"), ""
)  #: when revived


class Model:
    def __init__(self, now: int) -> None:
        self.now = now
        self.jobs: dict[str, Header] = {}
        self.payloads: dict[str, bytes] = {}
        self.results: dict[str, bytes] = {}
        self.attempts: dict[str, list[Attempt]] = {}
        self.logs: dict[str, list[Any]] = {}  #: attempts and how many lines they sent, how many are gone, the others
        self.workers: dict[str, int] = {}  #: alive until
        self.lives: dict[str, int] = {}  #: how long each lives without a renewal
        self.calls: dict[str, list[int]] = {}  #: up to which call a worker has all answers, and those made above that
        self.claims: set[tuple[str, int]] = set()  #: worker and call of each lease that was answered
        self.idle: set[str] = set()  #: workers that may be given the next job, unless they were woken
        self.skills: dict[str, tuple[frozenset[str], tuple[str, ...]]] = {}  #: tasks and queues, of those that say
        self.retired: dict[str, int] = {}  #: since when
        self.paused: dict[str, bool] = {}  #: for each queue that was ever named
        self.batches = Batches(self)
        self.crons = Crons(self)
        self.last_event: dict[tuple[str, str], list[tuple[str, int, str]]] = {}  #: verb, queue → id, attempt, note
        self.seq = self.fence = 0
        self.passed: dict[str, tuple[int, tuple[int, str]]] = {}  #: key → when pruning passed it, the last needed row
        self.resumed = 0  #: when the last silence ended
        self.seen: int | None = None  #: when a worker, or one that looks after them, was last heard of

    def among(self, *states: State) -> dict[str, Header]:
        return {job_id: h for job_id, h in self.jobs.items() if h.state in states and not h.compact}

    def unfinished(self) -> dict[str, Header]:
        return self.among(*WAITING, "running")

    def holder(self, unique: str) -> str | None:
        return next((job_id for job_id, h in self.unfinished().items() if unique and h.unique == unique), None)

    def held_by(self, workers: Collection[str]) -> list[str]:
        held = sorted((h.claim, job_id) for job_id, h in self.jobs.items() if h.claim)
        return [job_id for claim, job_id in held if claim.split(SEPARATOR)[0] in workers]

    def line(self, queues: Sequence[str]) -> list[str]:
        """Who is next: named queues one after the other, all of them (*) as one line."""
        ready = sorted(self.among("ready").items(), key=lambda row: (row[1].priority, row[1].seq))
        return [job_id for name in queues for job_id, h in ready if name in {"*", h.queue}]

    # Entering the line

    def enqueue(self, job_id: str, new: Header, payload: bytes) -> tuple[str, str, str]:
        if old := self.jobs.get(job_id):
            return "created" if old.nonce == new.nonce else "exists", job_id, old.state
        if holder := self.holder(new.unique):
            return "unique", holder, self.jobs[holder].state
        if new.batch:
            if refusal := self.batches.refusal(new.batch):
                return refusal, job_id, ""
            new = self.batches.adopt(new)
        self.make(job_id, new, payload)
        return "created", job_id, self.jobs[job_id].state

    def make(self, job_id: str, new: Header, payload: bytes, note: str = "") -> None:
        due, expires = (self.now + at if 0 < at < DELAY_BELOW else at for at in (new.due, new.expires))
        lanes = list(dict.fromkeys(new.lanes))
        self.jobs[job_id] = replace(new, created=self.now, size=len(payload), expires=expires, lanes=lanes)
        self.payloads[job_id] = payload
        self.paused.setdefault(new.queue, False)
        self._wait("enqueue", job_id, note, due=due)

    def promote(self, limit: int) -> tuple[int, int, int]:
        due = sorted((h.due, job_id) for job_id, h in self.among("scheduled").items() if h.due <= self.now)[:limit]
        for at, job_id in due:
            self._wait("promote", job_id, due=at)
        return len(due), min((h.due for h in self.among("scheduled").values()), default=-1), self.now

    def expire(self, limit: int) -> tuple[int, int, int]:
        timers = sorted((h.expires, job_id) for job_id, h in self.among(*WAITING).items() if h.expires)
        late = [job_id for at, job_id in timers if at <= self.now][:limit]
        for job_id in late:
            self._put("expire", job_id, "cancelled", "expired")
        return len(late), next((at for at, _ in timers[len(late) :]), -1), self.now

    def revive(self, job_id: str) -> str:
        h = self.jobs.get(job_id)
        if h is None or job_id not in self.payloads:
            return "done" if h and h.state == "done" else "missing"
        if h.state not in {"dead", "cancelled"}:
            return h.state
        if self.holder(h.unique):
            return "taken"
        self._wait("revive", job_id, due=min(h.due, self.now), generation=h.generation + 1, **FRESH)
        return "ok"

    # Running

    def lease(
        self,
        worker: str,
        number: int,
        *,
        queues: Sequence[str],
        want: int,
        answered: int,
        room: int,
        push: bool = False,
    ) -> tuple[str, bool, list[str]]:
        floor, *made = self.calls.get(worker, [0])
        if worker not in self.workers or number <= floor:
            return "stale" if worker in self.workers else "unknown", False, []
        claim = f"{worker}{SEPARATOR}{number}"
        if number in made:
            before = [job_id for job_id in self.held_by([worker]) if self.jobs[job_id].claim == claim]
            return "ok", False, sorted(before, key=lambda job_id: self.jobs[job_id].fence)
        line = [job_id for job_id in self.line(queues) if not self.paused[self.jobs[job_id].queue]]
        line = [job_id for job_id in line if self.may_take(worker, job_id)]
        again, chosen = self._choose(line[:want], room)
        for job_id in chosen:
            self.fence = max(self.fence + 1, self.now * 1000)
            starts = self.jobs[job_id].starts + 1
            self._move("lease", job_id, "running", claim=claim, fence=self.fence, started=self.now, starts=starts)
        floor = max(floor, answered)
        self.calls[worker] = [floor, *sorted(call for call in (*made, number) if call > floor)]
        rests = push and not again and not self.held_by([worker])
        self.idle = self.idle | {worker} if rests else self.idle - {worker}
        return "ok", again, chosen

    def handed_over(self, job_id: str, worker: str, number: int, queues: Sequence[str]) -> None:
        """A new job went to this worker at once, for its next call; to which of them is not known here."""
        h = self.jobs[job_id]
        assert worker in self.idle
        assert worker in self.workers
        assert not self.held_by([worker])
        assert {"*", h.queue} & {*queues}
        assert [job for job in self.line([h.queue]) if job != job_id] == []
        assert not self.paused[h.queue]
        assert self.may_take(worker, job_id)
        made = self.calls[worker]
        assert number == made[-1] + 1
        self.idle.remove(worker)
        self.calls[worker] = [*made, number]
        self.fence = max(self.fence + 1, self.now * 1000)
        claim = f"{worker}{SEPARATOR}{number}"
        self._move("lease", job_id, "running", claim=claim, fence=self.fence, started=self.now, starts=1)

    def leased(self, worker: str, number: int, late: Sequence[str], ids: Sequence[str]) -> None:
        """A call took these, and came by others that were too late: whom lanes let go first is not known here."""
        self.claims.add((worker, number))
        for job_id in late:
            assert 0 < self.jobs[job_id].expires <= self.now
            self._put("expire", job_id, "cancelled", "expired")
        for job_id in ids:
            h = self.jobs[job_id]
            assert h.state == "ready", job_id
            assert self.batches.may_start(job_id), job_id
            claim = f"{worker}{SEPARATOR}{number}"
            self._move("lease", job_id, "running", claim=claim, started=self.now, starts=h.starts + 1)

    def _choose(self, line: list[str], room: int) -> tuple[bool, list[str]]:
        """Whether there is a reason to ask again at once, and the jobs that fit into the answer; what is late ends."""
        again, chosen = False, list[str]()
        for job_id in line:
            if 0 < self.jobs[job_id].expires <= self.now:
                self._put("expire", job_id, "cancelled", "expired")
                again = True
            elif chosen and sum(self.jobs[job].size for job in (*chosen, job_id)) > room:
                return True, chosen
            else:
                chosen.append(job_id)
        return again, chosen

    def settle(self, verb: str, worker: str, job_id: str, number: int, *values: Any) -> str:
        """Only the attempt that holds a job settles it; the one that did so last gets its answer again."""
        h, claim = self.jobs.get(job_id), f"{worker}{SEPARATOR}{number}"
        if h is None or h.claim != claim:
            *settled, answer = h.last.rsplit(SEPARATOR, 2) if h else [""]
            return answer if settled == [claim, verb] else "stale"
        answer = "cancelled" if h.cancelling and verb != "complete" else "ok"
        self.jobs[job_id] = replace(h, last=SEPARATOR.join((claim, verb, answer)))
        if answer == "ok":
            self._settled(verb, job_id, h, *values)
        else:
            self._cancelled(verb, job_id)
        return answer

    def _settled(self, verb: str, job_id: str, h: Header, *values: Any) -> None:
        match verb, *values:
            case "complete", result:
                del self.payloads[job_id]
                if result and h.keep:
                    self.results[job_id] = result
                self._put(verb, job_id, "done", "", result=(1 if h.keep else 2) if result else 0)
            case "retry", delay, reason, error:
                self._remember(verb, job_id, error)
                self._wait(verb, job_id, reason, due=self.now + delay, failures=h.failures + 1, reason=reason)
            case "bury", reason, error:
                self._remember(verb, job_id, error)
                self._put(verb, job_id, "dead", reason, failures=h.failures + 1, death=error_fingerprint(error, reason))
            case "crash", cause:
                self._crash(verb, job_id, MAX_CRASHES, cause)
            case "snooze", delay, reason:
                self._put(verb, job_id, "scheduled", reason, due=self.now + delay, releases=h.releases + 1)
            case _:
                self._give_back(verb, job_id)

    def progress(self, worker: str, job_id: str, number: int, progress: str) -> str:
        h = self.jobs.get(job_id)
        if h is None or h.claim != f"{worker}{SEPARATOR}{number}":
            return "stale"
        self.jobs[job_id] = replace(h, progress=progress)
        self._tell("progress", job_id, progress)
        return "cancelling" if h.cancelling else "ok"

    def log(self, worker: str, job_id: str, number: int, before: int, lines: list[Any]) -> str:
        h, claim = self.jobs.get(job_id), f"{worker}{SEPARATOR}{number}"
        if h is None or h.compact:
            return "stale"
        sent, gone, kept = self.logs.get(job_id, [[], 0, []])
        counts = dict(zip(sent[::2], sent[1::2], strict=True))
        known = counts.get(claim, before)
        counts[claim] = max(known, before + len(lines))
        sent = [value for row in list(counts.items())[-4:] for value in row]
        self.logs[job_id] = [sent, gone, kept + lines[max(known - before, 0) :]]
        self._tell("log", job_id)
        return "ok"

    def may_take(self, worker: str, job_id: str) -> bool:
        """Unless it does not know the task, and another live worker of that queue does."""
        task, queue = self.jobs[job_id].task, self.jobs[job_id].queue
        if worker not in self.skills or task in self.skills[worker][0]:
            return True
        return not any(task in tasks and {"*", queue} & {*queues} for tasks, queues in self.skills.values())

    # Workers' lives

    def register(self, worker: str, life: int, info: str = "{}", queues: Sequence[str] = ("*",)) -> str:
        if worker in self.retired:
            return "retired"
        self._heard()
        self.workers[worker], self.lives[worker] = self.now + life, life
        self.skills.pop(worker, None)
        if tasks := json.loads(info).get("tasks"):
            self.skills[worker] = frozenset(tasks), tuple(queues)
        return "ok"

    def renew(self, life: int, workers: Sequence[str]) -> tuple[list[str], list[tuple[str, str]], int]:
        self._heard()
        known = [worker for worker in workers if worker in self.workers]
        self.workers.update(dict.fromkeys(known, self.now + life))
        asked = [(worker, job_id) for worker in known for job_id in sorted(self.held_by([worker]))]
        words = ["ok" if worker in known else "unknown" for worker in workers]
        late = sum(until < self.now for until in self.workers.values())
        return words, [row for row in asked if self.jobs[row[1]].cancelling], late

    def retire(self, worker: str, limit: int) -> tuple[int, int]:
        return self._take_back("release", [worker], limit, partial(self._give_back, "release"))

    def reap(
        self, life: int, worker: str = "", started: Collection[str] = (), *, limit: int, crashes: int, cause: str
    ) -> tuple[int, int]:
        resumed = self._heard()
        by_time = sorted((until, w) for w, until in self.workers.items())
        late = [w for until, w in by_time if until < self.now >= resumed + self.lives[w]]
        lose = partial(self._lose, started if worker else self.jobs, crashes, cause)
        moved, more = self._take_back("reap", [worker] if worker else late, limit, lose)
        return moved, max(more, not worker and moved >= limit)  # after a full page there may be other dead workers

    def _heard(self) -> int:
        """When the last silence ended: nobody spoke for half the life of a worker that was alive before."""
        if self.seen is not None:
            alive = [worker for worker, until in self.workers.items() if until > self.seen]
            if any(self.now - self.seen > self.lives[worker] / 2 for worker in alive):
                self.resumed = self.now
        self.seen = self.now
        return self.resumed

    def _take_back(self, verb: str, workers: list[str], limit: int, lose: Callable[[str], None]) -> tuple[int, int]:
        """How many of their jobs were moved, and 1 if there are more; a worker that holds none is forgotten."""
        page = [job_id for worker in workers for job_id in self.held_by([worker])][:limit]
        for job_id in page:
            (partial(self._cancelled, verb) if self.jobs[job_id].cancelling else lose)(job_id)
        gone = [worker for worker in workers if not self.held_by([worker])]
        for worker in gone:
            self.retired[worker] = self.now
            for known in (self.workers, self.lives, self.skills, self.calls):
                known.pop(worker, None)
        return len(page), int(len(gone) < len(workers))

    def _lose(self, started: Collection[str], budget: int, cause: str, job_id: str) -> None:
        if job_id not in started:
            return self._give_back("reap", job_id, "not_started")
        return self._crash("reap", job_id, budget, cause)

    def _crash(self, verb: str, job_id: str, budget: int, cause: str) -> None:
        self._remember("crash", job_id, cause)
        crashes = self.jobs[job_id].crashes + 1
        if crashes < budget:
            return self._move(verb, job_id, "ready", "crash", crashes=crashes)
        return self._put(verb, job_id, "dead", "crash_loop", crashes=crashes, death="crash_loop")

    # Ending otherwise, and steering

    def cancel(self, job_id: str, reason: str) -> str:
        h = self.jobs.get(job_id)
        if h is None:
            return "missing"
        if h.state in WAITING:
            self._put("cancel", job_id, "cancelled", reason)
        elif h.state == "running" and not h.cancelling:
            self.jobs[job_id] = replace(h, cancelling=1, reason=reason)
            self._tell("cancel", job_id, "cancelling")
        return "cancelling" if h.state == "running" else self.jobs[job_id].state

    def prune(self, keep: tuple[int, int, int, int, int], limit: int) -> tuple[int, int]:
        most_finished, tomb_life, most_tombs, dead_life, most_dead = keep
        with_jobs = {h.queue for h in self.jobs.values() if not h.compact}
        forgotten = [queue for queue, paused in self.paused.items() if not paused and queue not in with_jobs]
        for queue in forgotten:
            del self.paused[queue]
        tombs = [(h.since, job_id) for job_id, h in self.jobs.items() if h.compact]
        finished = [(h.since + h.keep, job_id) for job_id, h in self.among("done", "cancelled").items()]
        dead = [(h.since, job_id) for job_id, h in self.among("dead").items()]
        gone = [job_id for _, job_id in _old(tombs, self.now - tomb_life, most_tombs, limit)]
        self.jobs = {job_id: h for job_id, h in self.jobs.items() if job_id not in gone}
        kept = [
            self._sweep("finished", finished, self.now, most_finished, limit),
            self._sweep("dead", dead, self.now - dead_life, most_dead, limit),
        ]
        retired = sorted((since, worker) for worker, since in self.retired.items() if since <= self.now - tomb_life)
        for _, worker in retired[:limit]:
            del self.retired[worker]
        return len(gone) + sum(n for n, _ in kept), int(len(gone) == limit or any(full for _, full in kept))

    def _sweep(self, key: str, rows: list[tuple[int, str]], before: int, most: int, limit: int) -> tuple[int, bool]:
        """How many were seen to, and whether there may be more; members that their batch needs stay, and are passed."""
        rows.sort()
        since, mark = self.passed.get(key, (-LOOK_AGAIN, (0, "")))
        if self.now - since >= LOOK_AGAIN:
            since, passed = self.now, 0
        else:
            passed = rows.index(mark) + 1 if mark in rows else sum(at < mark[0] for at, _ in rows)
        page, stay = _old(rows[passed:], before, most, limit), 0
        for at, job_id in page:
            h = self.jobs[job_id]
            if not self.batches.is_needed(h):
                self._entomb("prune", job_id)
            elif key == "finished" and at <= before:
                self.jobs[job_id] = replace(h, keep=max(2 * h.keep, self.now - h.since + 60_000))
            else:
                stay += 1
                self.passed[key] = since, (at, job_id)
        return len(page) - stay, len(page) == limit

    def discard(self, job_id: str) -> str:
        h = self.jobs.get(job_id)
        if h is None or h.state in {*WAITING, "running"}:
            return h.state if h else "missing"
        if not h.compact and self.batches.is_needed(h):
            return "needed"
        if not h.compact:
            self._entomb("discard", job_id)
        return "ok"

    def _entomb(self, verb: str, job_id: str) -> None:
        self.jobs[job_id] = replace(
            self.jobs[job_id], compact=1, unique="", progress="", death="", lanes=[], home=0, turn=0
        )
        for contents in (self.payloads, self.results, self.attempts, self.logs):
            contents.pop(job_id, None)
        self._tell(verb, job_id)

    def transfer(self, job_id: str, queue: str) -> str:
        h = self.jobs.get(job_id)
        if h is None or h.state not in WAITING:
            return h.state if h else "missing"
        if h.queue != queue:
            self.paused.setdefault(queue, False)
            self._move("transfer", job_id, h.state, queue=queue)
        return "ok"

    def pause(self, queue: str) -> str:
        return self._steer("pause", queue, paused=True) or "paused"

    def resume(self, queue: str) -> str:
        return self._steer("resume", queue, paused=False) or "open"

    def _steer(self, verb: str, queue: str, *, paused: bool) -> str:
        if self.paused.get(queue, False) == paused:
            return ""
        self.paused[queue] = paused
        self.last_event[verb, queue] = []
        return "ok"

    def reschedule(self, job_id: str, due: int) -> str:
        h = self.jobs.get(job_id)
        if h is None or h.state not in WAITING:
            return h.state if h else "missing"
        due = self.now + due if due < DELAY_BELOW else due
        if due > self.now or h.state == "scheduled":
            self._wait("reschedule", job_id, due=due)
        return "ok"

    # Moves

    def _wait(self, verb: str, job_id: str, note: str = "", *, due: int, **changes: Any) -> None:
        """At the tail of its line, or until it is due."""
        if due > self.now:
            self._move(verb, job_id, "scheduled", note, due=due, **changes)
        else:
            self.seq += 1
            self._move(verb, job_id, "ready", note, due=due, seq=self.seq, arrival=self.seq, **changes)

    def _give_back(self, verb: str, job_id: str, note: str = "") -> None:
        """To the place in line that it had; no attempt is used."""
        self._move(verb, job_id, "ready", note, releases=self.jobs[job_id].releases + 1)

    def _cancelled(self, verb: str, job_id: str) -> None:
        reason = self.jobs[job_id].reason
        self._remember("cancelled", job_id, json.dumps({"message": reason}, separators=(",", ":")))
        self._put(verb, job_id, "cancelled", reason)

    def _put(self, verb: str, job_id: str, state: State, reason: str, **changes: Any) -> None:
        self._move(verb, job_id, state, reason, reason=reason, **changes)

    def _move(self, verb: str, job_id: str, state: State, note: str = "", *, claim: str = "", **changes: Any) -> None:
        old = self.jobs[job_id].state
        changes |= {"state": state, "since": self.now, "claim": claim, "cancelling": 0}
        self.jobs[job_id] = replace(self.jobs[job_id], **changes)
        self.jobs[job_id] = self.batches.moved(job_id, old, state)
        self._tell(verb, job_id, note)

    def _tell(self, verb: str, job_id: str, note: str = "") -> None:
        h = self.jobs[job_id]
        self.last_event.setdefault((verb, h.queue), []).append((job_id, h.attempt, note))

    def _remember(self, outcome: str, job_id: str, error: str) -> None:
        h, worker = self.jobs[job_id], self.jobs[job_id].claim.split(SEPARATOR)[0]
        attempt = Attempt(h.failures + h.crashes + 1, h.started, self.now, worker, outcome, error)
        self.attempts[job_id] = [*self.attempts.get(job_id, []), attempt][-10:]


def ask(model: Model, verb: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """What the model says to a call of the engine."""
    answer = _answer(model, verb, args, options)
    model.batches.look()
    return answer


def _answer(model: Model, verb: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    match verb:
        case "enqueue":
            return [model.enqueue(job.id, job.header, job.payload) for job in args[0]]
        case "cancel" | "revive" | "reschedule" | "discard" | "transfer":
            return [getattr(model, verb)(job_id, *args[1:]) for job_id in args[0]]
        case "register":
            return model.register(*args)
        case "reap_worker":
            return model.reap(args[2], *args[:2], **options)
        case _ if verb in {*SETTLES, "log"}:
            call = model.log if verb == "log" else partial(model.settle, verb)
            return [call(args[0], *row) for row in args[1]]
        case _:
            part = next(part for part in (model.batches, model.crons, model) if hasattr(part, verb))
            return getattr(part, verb)(*args, **options)


def _old(rows: list[tuple[int, str]], before: int, most: int, limit: int) -> list[tuple[int, str]]:
    """Of the first page those that are older than that, or too many."""
    page = sorted(rows)[:limit]
    return [row for i, row in enumerate(page) if i < len(rows) - most or row[0] <= before]
