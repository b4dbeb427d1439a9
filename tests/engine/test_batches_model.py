"""Batches beside the model, on virtual time: members finish while others are added, seals race, calls are resent.

Every answer, and all that is stored of jobs and batches after each step, is what the model says: numbers, roster,
chores, ends, what they make and the status that it carries. Only the places in line are not compared: which of the
members that may run are shown is the business of lanes, so whom a lease takes is told to the model, which says whether
it was allowed.
At the end everything drains, every batch ends, and once it is forgotten nothing is left of it.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.engine.engine import Retention
from penstock.engine.keys import SEPARATOR
from penstock.engine.record.record import read_header
from penstock.engine.repair.reconcile import reconcile
from tests.engine.batch_model_state import expected, stored
from tests.engine.factories import new_batch, new_job
from tests.engine.machines import Steps, World, one_of, run, world_at
from tests.engine.model import WAITING, Model, ask
from tests.servers import Server

LIFE = 10**9
DAY = 86_400_000
BATCHES = ("b0", "b1", "b2", "b3")
IDS = tuple(f"job{n:02d}" for n in range(16))
WORKERS = (("a", "b"), ("b",))
UNFINISHED = (*WAITING, "running")
ENDED = ("done", "dead", "cancelled")
ERROR = '{"type": "Error"}'

# What nearly every run comes across, and what many runs do: if one is missing, the steps have become blind.
ALWAYS = {"enqueue: created", "open_batch: created", "seal_batch: ended", "end: done", "then", "inside"}
OFTEN = ALWAYS | {
    *("enqueue: sealed", "enqueue: ended", "enqueue: cancelled", "enqueue: unknown", "enqueue: unique"),
    *("seal_batch: sealed", "open_batch: exists", "open_batch: sealed", "cancel_batch: cancelled", "retry_batch: ok"),
    *("retry_batch: cancelling", "do_chores: some", "discard: needed", "end: dead", "end: cancelled", "on_failure"),
    *("generation 2", "id used again"),
}


def _lined(answer: Any) -> Any:
    """The same with ready where it says held."""
    if isinstance(answer, list | tuple):
        return (list if isinstance(answer, list) else tuple)(map(_lined, answer))
    return "ready" if answer == "held" else answer


numbers = st.integers(0, 23)
pages = one_of(100, 100, 1, 2)
some = st.lists(numbers, min_size=1, max_size=4)
new_jobs = st.lists(
    st.fixed_dictionaries(
        {
            "job_id": one_of(*IDS),
            "batch": one_of(*BATCHES, "b0", "b0", ""),
            "queue": one_of("a", "b"),
            "priority": one_of(50, 50, 10),
            "lanes": st.lists(one_of("lock:x"), max_size=2),
            "due": one_of(0, 0, 0, 1_000),
            "expires": one_of(0, 0, 0, 5_000),
            "unique": one_of("", "", "", "u"),
            "nonce": one_of("", "x"),
            "keep": one_of(3_600_000, 1_000, 0),
        }
    ),
    min_size=1,
    max_size=6,
)
new_batches = st.fixed_dictionaries(
    {
        "batch_id": one_of(*BATCHES),
        "parent": one_of("", "", *BATCHES),
        "limit": one_of(-1, 1, 2),
        "priority": one_of(-1, 20),
        "abandon_after": one_of(DAY, 3_000),
        "keep": one_of(DAY, 3_000, 3_000),
        "nonce": one_of("x", "y"),
    }
)
retentions = st.builds(
    Retention,
    finished=one_of(100, 0),
    tomb_life=one_of(9 * DAY, 0),
    tombs=st.just(100),
    dead_life=one_of(9 * DAY, 0),
    dead=one_of(100, 0),
)
step = Steps()


class Machine(RuleBasedStateMachine):
    def __init__(self, world: World) -> None:
        super().__init__()
        world.begin()
        self.world = world
        self.model = Model(world.clock())
        self.calls: Counter[str] = Counter()
        self.incarnation = 0
        self.names: list[str] = []
        self.sent: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.last_event: dict[Any, Any] = {}
        self.sound = True  #: what is stored was compared since the last call

    def send(self, verb: str, *args: Any, **options: Any) -> Any:
        """One call to both: they give the same answer."""
        self.sound = False
        answer = getattr(self.world.engine, verb)(*args, **options).sync()
        if verb == "enqueue":
            answer = [(placed.word, placed.id, placed.state) for placed in answer]
        if verb == "lease":
            answer = self._leased(args[0], args[1], answer)
        else:
            assert _lined(answer) == ask(self.model, verb, args, options), verb
        if self.model.last_event:
            self.last_event = {name: sorted(rows) for name, rows in self.model.last_event.items()}
            self.model.last_event = {}
        self.sent.append((verb, args, options))
        self._note(verb, answer)
        return answer

    def _leased(self, worker: str, number: int, leased: Any) -> list[str]:
        """The model is told whom the engine has chosen; a call that is sent again gets what it still holds."""
        ids = [lease.id for lease in leased.leases]
        alive, made = worker in self.model.workers, (worker, number) in self.model.claims
        if made or not alive:
            claim = f"{worker}{SEPARATOR}{number}"
            held = [job for job in self.model.held_by([worker]) if self.model.jobs[job].claim == claim]
            assert sorted(ids) == (held if alive else [])
            return ids
        records: Any = self.world.client.hgetall(self.world.engine.keys("jobs"))
        real = {name.decode(): read_header(raw) for name, raw in records.items() if name}
        late = [job for job in self.model.among("ready") if real[job].state == "cancelled"]
        self.model.leased(worker, number, sorted(late, key=lambda one: real[one].finish), ids)
        self.model.batches.look()
        return ids

    def _note(self, verb: str, answer: Any) -> None:
        """What was seen, so that it is known what the steps come across."""
        words = [answer] if isinstance(answer, str) else answer if isinstance(answer, list) else []
        outcomes = {f"{verb}: {row if isinstance(row, str) else row[0]}" for row in words}
        states = self.model.batches.states
        outcomes |= {f"end: {state.outcome}" for state in states.values() if state.phase == "ended"}
        outcomes |= {f"generation {state.generation}" for state in states.values()}
        outcomes |= {job_id.split("@")[1].split("-")[0] for job_id in self.model.batches.made}
        outcomes |= {"id used again" for job_id in self.model.batches.made if job_id.count("-") > 1}
        outcomes |= {"inside" for members in self.model.batches.members.values() for name in members if name[0] == "{"}
        if verb == "do_chores" and answer[0]:
            outcomes.add("do_chores: some")
        self.world.seen.update(outcomes)

    @invariant()
    def the_state_is_the_same(self) -> None:
        if self.sound:
            return
        actual, want = stored(self.world), expected(self.model) | {"last_event": self.last_event}
        payloads, sizes = actual["payloads"], {}
        for job_id in want["made"]:  # how long a status is as bytes is not the model's business
            sizes[job_id] = len(payloads.pop(job_id, b""))
        for job_id in [job for job in want["jobs"] if "@" in job]:
            size = sizes.get(job_id, actual["jobs"][job_id].size if job_id in actual["jobs"] else 0)
            want["jobs"][job_id] = msgspec.structs.replace(want["jobs"][job_id], size=size)
        for name, value in want.items():
            assert actual[name] == value, name
        self.sound = True

    def teardown(self) -> None:
        if self.sound:  # otherwise the audit would only hide what went wrong
            assert self.world.audit() == []
            self._drain()
            assert self.world.audit() == []

    # Batches come and end

    @initialize(jobs=new_jobs, keep=one_of(DAY, 3_000))
    def open(self, jobs: list[dict[str, Any]], keep: int) -> None:
        for slot in range(len(WORKERS)):
            self._register(slot)
        self.open_batch({"batch_id": "b0", "limit": 1, "keep": keep})
        self.open_batch({"batch_id": "b1", "parent": "b0", "priority": 20})
        self.enqueue(jobs)

    def _register(self, slot: int) -> None:
        self.incarnation += 1
        self.names[slot : slot + 1] = [f"w{slot}-{self.incarnation}"]
        self.send("register", self.names[slot], LIFE, "{}", WORKERS[slot])

    @step(4, new=new_batches)
    def open_batch(self, new: dict[str, Any]) -> None:
        self.send("open_batch", new_batch(**new))

    @step(8, jobs=new_jobs)
    def enqueue(self, jobs: list[dict[str, Any]]) -> None:
        self.send("enqueue", [new_job(**job) for job in jobs])

    @step(4, batch=one_of(*BATCHES))
    def seal(self, batch: str) -> None:
        self.send("seal_batch", batch)

    @step(2, batch=one_of(*BATCHES), pages=st.integers(0, 3))
    def cancel_batch(self, batch: str, pages: int) -> None:
        self.send("cancel_batch", batch, "stop")
        for _ in range(pages):
            self.send("do_chores", "cancel", batch, limit=2)

    @step(4, batch=one_of(*BATCHES), pages=st.integers(0, 3), nonce=one_of("x", "y", "z"))
    def retry_batch(self, batch: str, pages: int, nonce: str) -> None:
        self.send("retry_batch", batch, nonce)
        for _ in range(pages):
            self.send("do_chores", "retry", batch, limit=2)

    @step(4, limit=one_of(1, 2, 100))
    def see_to_chores(self, limit: int) -> None:
        self.send("do_chores", limit=limit)

    @step(2, batch=one_of(*BATCHES), priority=one_of(None, 5, 70), limit=one_of(None, -1, 0, 3))
    def set_batch(self, batch: str, priority: int | None, limit: int | None) -> None:
        self.send("set_batch", batch, priority=priority, limit=limit)

    @step(3, batch=one_of(*BATCHES), outcome=one_of("complete", "bury"))
    def work_off(self, batch: str, outcome: str) -> None:
        """All that a worker can get now ends so, and the batch is sealed: ends are common."""
        self.lease(0, 20)
        self.settle(outcome, list(range(len(IDS))))
        self.send("seal_batch", batch)
        if outcome == "bury":
            self.send("retry_batch", batch, str(len(self.sent)))

    @step(2, batch=one_of(*BATCHES), limit=one_of(2, 100), jobs=new_jobs)
    def start_over(self, batch: str, limit: int, jobs: list[dict[str, Any]]) -> None:
        """It ends, is forgotten, perhaps by half, and opened again; what it made and its old members may be there."""
        self.send("cancel_batch", batch, "over")
        self.send("do_chores", "cancel", batch, limit=100)
        self.settle("bury", list(range(len(IDS))))
        self.advance(DAY)
        for _ in range(4):
            self.send("do_chores", limit=limit)
        self.open_batch({"batch_id": batch, "nonce": str(self.model.now)})
        self.enqueue([job | {"batch": batch} for job in jobs])
        self.send("seal_batch", batch)

    # Members run

    @step(12, who=numbers, want=one_of(1, 2, 5))
    def lease(self, who: int, want: int) -> None:
        slot = who % len(WORKERS)
        worker = self.names[slot]
        self.calls[worker] += 1
        self.send("lease", worker, self.calls[worker], queues=WORKERS[slot], want=want)

    @step(12, verb=one_of("complete", "complete", "bury", "bury", "retry", "release", "snooze", "crash"), picks=some)
    def settle(self, verb: str, picks: list[int]) -> None:
        values: dict[str, tuple[Any, ...]] = {
            "complete": (b"1",),
            "retry": (500, "e", ERROR),
            "bury": ("e", ERROR),
            "crash": (ERROR,),
            "release": (),
            "snooze": (500, ""),
        }
        by_worker: defaultdict[str, list[Any]] = defaultdict(list)
        running = self.model.among("running")
        for job_id in self._some(picks, "running") if running else ():
            worker, number = running[job_id].claim.split(SEPARATOR)
            by_worker[worker].append((job_id, int(number), *values[verb]))
        for worker, rows in by_worker.items():
            self.send(verb, worker, rows)

    @step(3, picks=some)
    def cancel(self, picks: list[int]) -> None:
        self.send("cancel", self._some(picks, *UNFINISHED), "no longer wanted")

    @step(3, picks=some)
    def revive(self, picks: list[int]) -> None:
        self.send("revive", self._some(picks, "dead", "cancelled"))

    @step(1, picks=some, queue=one_of("a", "b"))
    def transfer(self, picks: list[int], queue: str) -> None:
        self.send("transfer", self._some(picks, *WAITING), queue)

    @step(1, picks=some, due=one_of(0, 1_000))
    def reschedule(self, picks: list[int], due: int) -> None:
        self.send("reschedule", self._some(picks, *WAITING), due)

    @step(2, picks=some)
    def discard(self, picks: list[int]) -> None:
        self.send("discard", self._some(picks, *ENDED))

    @step(3, keep=retentions, limit=pages)
    def prune(self, keep: Retention, limit: int) -> None:
        self.send("prune", keep, limit)

    @step(3, verb=one_of("promote", "expire"), limit=pages)
    def see_to_timers(self, verb: str, limit: int) -> None:
        self.send(verb, limit)

    @step(5, milliseconds=one_of(1, 500, 2_000, 6_000, DAY))
    def advance(self, milliseconds: int) -> None:
        self.world.clock.advance(milliseconds)
        self.model.now = self.world.clock()

    @step(2, who=numbers, started=some, crashes=one_of(1, 3), leave=st.booleans(), limit=pages)
    def lose_worker(self, who: int, started: list[int], crashes: int, leave: bool, limit: int) -> None:
        slot = who % len(WORKERS)
        worker, options = self.names[slot], {"limit": limit, "crashes": crashes, "cause": ERROR}
        if leave:
            self.send("retire", worker, 100)
        else:
            self.send("reap_worker", worker, self._some(started, "running"), LIFE, **options)
        if worker in self.model.retired:
            self._register(slot)

    @step(6, back=st.integers(0, 3))
    def resend(self, back: int) -> None:
        if back < len(self.sent):
            verb, args, options = self.sent[-1 - back]
            self.send(verb, *args, **options)

    @step(1)
    def reconcile(self) -> None:
        assert self.world.wait(reconcile(self.world.engine)) == 0

    @rule(step=step.any())
    def take(self, step: tuple[str, dict[str, Any]]) -> None:
        name, arguments = step
        getattr(self, name)(**arguments)

    def _some(self, picks: Sequence[int], *states: Any) -> list[str]:
        """Some jobs that are so, each once; what batches make stays as it is made."""
        jobs = sorted(job for job in self.model.among(*states) if "@" not in job)
        return list(dict.fromkeys(jobs[n % len(jobs)] for n in picks)) if jobs else ["missing"]

    def _drain(self) -> None:
        """Everything is sealed and nothing is in the way, so every batch ends; then it is forgotten."""
        batches = self.model.batches
        if self.names[0] not in self.model.workers:  # a call that reaped it was sent again
            self._register(0)
        for batch in BATCHES:
            self.send("seal_batch", batch)
            self.send("set_batch", batch, priority=None, limit=5)
        for _ in range(80):
            self.advance(2_000)
            for verb in ("promote", "expire"):
                self.send(verb, 100)
            self.send("do_chores", limit=100)
            self.lease(0, 20)
            self.settle("complete", list(range(len(IDS))))
            if all(state.phase == "ended" for state in batches.states.values()):
                break
        self.the_state_is_the_same()
        assert all(state.phase == "ended" for state in batches.states.values()), batches.states
        for _ in range(12):
            self.advance(DAY)
            while self.send("do_chores", limit=3).moved:
                pass
        self.the_state_is_the_same()
        assert (batches.states, batches.roster(), batches.chores, batches.lanes) == ({}, set(), {}, {})


@pytest.mark.parametrize(("servers", "runs"), [("single", 30), ("cluster", 4)])
@pytest.mark.timeout(600)  # a failure takes a while to shrink
def test_batches_do_what_the_model_does(servers: str, runs: int, request: pytest.FixtureRequest) -> None:
    with world_at(request.getfixturevalue(servers).url) as world:
        run(lambda: Machine(world), runs=runs, steps=60)
    assert world.seen.keys() >= ALWAYS


@pytest.mark.long
@pytest.mark.timeout(0)
def test_batches_do_what_the_model_does_10_000_times(single: Server) -> None:
    with world_at(single.url) as world:
        for done in range(250, 10_001, 250):  # not at once, for Hypothesis remembers every choice of a run
            run(lambda: Machine(world), runs=250, steps=60)
            print(f"{done:,} runs", flush=True)
    assert world.seen.keys() >= OFTEN
