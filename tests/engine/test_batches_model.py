"""Batches under random calls, on virtual time: members finish while others are added, seals race, calls are resent.

The audit counts every batch again after each few steps, from headers alone. What a batch makes is held against what
happened: one `then` for each end, one `on_failure` for each generation in which a member died. At the end everything
drains, every batch ends, and once it is forgotten nothing is left of it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.batch_state import BatchState, read_state
from penstock.engine.engine import Retention
from penstock.engine.keys import SEPARATOR
from penstock.engine.mend import reconcile
from penstock.job import Header, read_header
from tests.engine import machines
from tests.engine.factories import new_batch, new_job
from tests.engine.machines import Steps, one_of, run
from tests.servers import Server

LIFE = 10**9
DAY = 86_400_000
BATCHES = ("b0", "b1", "b2", "b3")
IDS = tuple(f"job{n}" for n in range(16))
WORKERS = (("a", "b"), ("b",))
UNFINISHED = ("scheduled", "held", "ready", "running")
SETTLES = ("complete", "complete", "bury", "retry", "release", "snooze", "crash")


class World(machines.World):
    """The engine with batches in it."""

    def reconcile(self) -> int:
        return self.wait(reconcile(self.engine))

    def jobs(self) -> dict[str, Header]:
        found: Any = self.client.hgetall(self.engine.keys("jobs"))
        return {name.decode(): read_header(raw) for name, raw in found.items() if name}

    def batches(self) -> dict[str, BatchState]:
        found: Any = self.client.hgetall(self.engine.keys("batches"))
        rows = ((name.decode().split(SEPARATOR), raw) for name, raw in found.items() if name)
        return {batch: read_state(raw) for (what, batch), raw in rows if what == "state"}


numbers = st.integers(0, 23)
some = st.lists(numbers, min_size=1, max_size=4)
new_jobs = st.lists(
    st.fixed_dictionaries(
        {
            "job_id": one_of(*IDS),
            "batch": one_of(*BATCHES, "b0", "b0", ""),
            "queue": one_of("a", "b"),
            "priority": one_of(50, 50, 10),
            "lanes": st.lists(one_of("lock:x"), max_size=1),
            "due": one_of(0, 0, 0, 1_000),
            "expires": one_of(0, 0, 0, 5_000),
            "unique": one_of("", "", "", "u"),
            "keep": one_of(3_600_000, 1_000),
        }
    ),
    min_size=1,
    max_size=6,
)
step = Steps()


class Machine(RuleBasedStateMachine):
    def __init__(self, world: World) -> None:
        super().__init__()
        world.begin()
        self.world, self.engine = world, world.engine
        self.calls: Counter[str] = Counter()
        self.incarnation = 0
        self.names: list[str] = []
        self.sent: list[Callable[[], Any]] = []  #: calls, to be sent again
        self.jobs: dict[str, Header] = {}
        self.batches: dict[str, BatchState] = {}
        self.deaths: defaultdict[str, set[int]] = defaultdict(set)  #: batch → generations in which a member died
        self.ends: Counter[str] = Counter()
        self.made: Counter[str] = Counter()  #: every job that a batch ever made

    def send(self, verb: str, *args: Any, **options: Any) -> Any:
        def call() -> Any:
            return getattr(self.engine, verb)(*args, **options).sync()

        self.sent.append(call)
        return self._observed(call)

    def _observed(self, call: Callable[[], Any]) -> Any:
        """Make a call, and work out from headers what the batches should have made of it."""
        answer = call()
        jobs, batches = self.world.jobs(), self.world.batches()
        for job_id, header in jobs.items():
            old = self.jobs.get(job_id)
            if header.state == "dead" and header.batch in batches and (old is None or old.finish != header.finish):
                self.deaths[header.batch].add(batches[header.batch].generation)
            if old is None and "@" in job_id:
                self.made[job_id] += 1
        for batch, state in batches.items():
            before = self.batches.get(batch)
            known = before is not None and (before.phase, before.generation) == ("ended", state.generation)
            if state.phase == "ended" and not known:
                self.ends[batch] += 1
                assert state.ended == self.world.clock()
                if state.outcome == "dead" and state.parent in batches:
                    self.deaths[state.parent].add(batches[state.parent].generation)
        self.jobs, self.batches = jobs, batches
        return answer

    @invariant()
    def everything_agrees(self) -> None:
        if len(self.sent) % 4 == 0:  # it takes longer than all the rest
            found = self.world.audit()
            assert found == [], found
        for batch, state in self.batches.items():
            assert state.total == state.done + state.dead + state.cancelled + state.pending
            thens = {f"{batch}@then-{n}" for n in range(1, state.generation + (state.phase == "ended"))}
            wails = {f"{batch}@on_failure-{n}" for n in self.deaths[batch]}
            made = {job for job in self.made if job.startswith(f"{batch}@")}
            assert made == thens | wails, (batch, state)
            assert self.ends[batch] == len(thens)
        assert all(count == 1 for count in self.made.values())

    def teardown(self) -> None:
        if self.world.audit() == []:
            self._drain()
            found = self.world.audit()
            assert found == [], found
        self.world.seen.update(["run"])

    # Batches come and end

    @initialize(jobs=new_jobs)
    def open(self, jobs: list[dict[str, Any]]) -> None:
        for slot in range(len(WORKERS)):
            self._register(slot)
        self.open_batch("b0", "", 1, -1)
        self.open_batch("b1", "b0", -1, 20)
        self.enqueue(jobs)

    def _register(self, slot: int) -> None:
        self.incarnation += 1
        self.names[slot : slot + 1] = [f"w{slot}-{self.incarnation}"]
        self.engine.register(self.names[slot], LIFE, "{}", WORKERS[slot]).sync()

    @step(3, batch=one_of(*BATCHES), parent=one_of("", *BATCHES), limit=one_of(-1, 1, 2), priority=one_of(-1, 20))
    def open_batch(self, batch: str, parent: str, limit: int, priority: int) -> None:
        parent = "" if parent == batch else parent
        new = new_batch(batch, parent=parent, limit=limit, priority=priority, nonce=f"{limit}{priority}{parent}")
        self.world.seen[f"open: {self.send('open_batch', new)}"] += 1

    @step(8, jobs=new_jobs)
    def enqueue(self, jobs: list[dict[str, Any]]) -> None:
        for placed in self.send("enqueue", [new_job(**job) for job in jobs]):
            self.world.seen[f"enqueue: {placed.word}"] += 1

    @step(4, batch=one_of(*BATCHES))
    def seal(self, batch: str) -> None:
        self.world.seen[f"seal: {self.send('seal_batch', batch)}"] += 1

    @step(2, batch=one_of(*BATCHES), pages=st.integers(0, 3))
    def cancel_batch(self, batch: str, pages: int) -> None:
        self.world.seen[f"cancel: {self.send('cancel_batch', batch, 'stop')}"] += 1
        for _ in range(pages):
            self.send("do_chores", "cancel", batch, limit=2)

    @step(3, batch=one_of(*BATCHES), pages=st.integers(0, 3), nonce=one_of("x", "y", "z"))
    def retry_batch(self, batch: str, pages: int, nonce: str) -> None:
        self.world.seen[f"retry: {self.send('retry_batch', batch, nonce)}"] += 1
        for _ in range(pages):
            self.send("do_chores", "retry", batch, limit=2)

    @step(3, limit=one_of(1, 2, 100))
    def see_to_chores(self, limit: int) -> None:
        self.send("do_chores", limit=limit)

    @step(2, batch=one_of(*BATCHES), priority=one_of(None, 5, 70), limit=one_of(None, -1, 0, 3))
    def set_batch(self, batch: str, priority: int | None, limit: int | None) -> None:
        self.send("set_batch", batch, priority=priority, limit=limit)

    # Members run

    @step(12, who=numbers, want=one_of(1, 2, 5))
    def lease(self, who: int, want: int) -> None:
        slot = who % len(WORKERS)
        worker = self.names[slot]
        self.calls[worker] += 1
        self.send("lease", worker, self.calls[worker], queues=WORKERS[slot], want=want)

    @step(12, verb=one_of(*SETTLES), picks=some)
    def settle(self, verb: str, picks: list[int]) -> None:
        values: dict[str, tuple[Any, ...]] = {
            "complete": (b"1",),
            "retry": (500, "e", "{}"),
            "bury": ("e", "{}"),
            "crash": ("{}",),
            "release": (),
            "snooze": (500, ""),
        }
        by_worker: defaultdict[str, list[Any]] = defaultdict(list)
        for job_id, header in self._some(picks, "running").items():
            worker, number = header.claim.split(SEPARATOR)
            by_worker[worker].append((job_id, int(number), *values[verb]))
        for worker, rows in by_worker.items():
            self.send(verb, worker, rows)

    @step(3, picks=some)
    def cancel(self, picks: list[int]) -> None:
        self.send("cancel", list(self._some(picks, *UNFINISHED)) or ["missing"])

    @step(3, picks=some)
    def revive(self, picks: list[int]) -> None:
        self.send("revive", list(self._some(picks, "dead", "cancelled")) or ["missing"])

    @step(1, picks=some, queue=one_of("a", "b"))
    def transfer(self, picks: list[int], queue: str) -> None:
        self.send("transfer", list(self._some(picks, *UNFINISHED)) or ["missing"], queue)

    @step(1, picks=some)
    def discard(self, picks: list[int]) -> None:
        self.send("discard", list(self._some(picks, "done", "dead", "cancelled")) or ["missing"])

    @step(2, finished=one_of(0, 100))
    def prune(self, finished: int) -> None:
        self.send("prune", Retention(finished=finished, dead=100, tomb_life=DAY * 9))

    @step(3, verb=one_of("promote", "expire"))
    def see_to_timers(self, verb: str) -> None:
        self.send(verb)

    @step(4, milliseconds=one_of(1, 500, 2_000, 6_000))
    def advance(self, milliseconds: int) -> None:
        self.world.clock.advance(milliseconds)

    @step(2, who=numbers, started=some, crashes=one_of(1, 3), leave=st.booleans())
    def lose_worker(self, who: int, started: list[int], crashes: int, leave: bool) -> None:
        slot = who % len(WORKERS)
        if leave:
            self.send("retire", self.names[slot])
        else:
            self.send("reap_worker", self.names[slot], list(self._some(started, "running")), LIFE, crashes=crashes)
        self._register(slot)

    @step(6, back=st.integers(0, 3))
    def resend(self, back: int) -> None:
        if back < len(self.sent):
            self._observed(self.sent[-1 - back])

    @step(1)
    def reconcile(self) -> None:
        assert self.world.reconcile() == 0

    @rule(step=step.any())
    def take(self, step: tuple[str, dict[str, Any]]) -> None:
        name, arguments = step
        getattr(self, name)(**arguments)

    def _some(self, picks: Sequence[int], *states: str) -> dict[str, Header]:
        mine = ((one, h) for one, h in sorted(self.jobs.items()) if "@" not in one and not h.compact)
        jobs = {one: h for one, h in mine if h.state in states}
        chosen = [list(jobs)[n % len(jobs)] for n in picks] if jobs else []
        return {job_id: jobs[job_id] for job_id in chosen}

    def _drain(self) -> None:
        """Everything is sealed and nothing is in the way, so every batch ends; then it is forgotten."""
        for batch in BATCHES:
            self.send("seal_batch", batch)
            self.send("set_batch", batch, limit=5)
        for _ in range(80):
            self.world.clock.advance(2_000)
            for verb in ("promote", "expire", "do_chores"):
                self.send(verb)
            self.lease(0, 20)
            self.settle("complete", list(range(len(IDS))))
            if all(state.phase == "ended" for state in self.batches.values()):
                break
        self.everything_agrees()
        assert all(state.phase == "ended" for state in self.batches.values()), self.batches
        for _ in range(12):
            self.world.clock.advance(DAY)
            while self.send("do_chores", limit=3).moved:
                pass
        assert self.world.batches() == {}
        for name in ("roster", "chores"):
            assert self.world.client.zrange(self.engine.keys(name), 0, -1) == [b""]


OFTEN = {
    *("enqueue: created", "enqueue: sealed", "enqueue: unknown", "enqueue: ended", "enqueue: cancelled"),
    *("seal: ended", "cancel: cancelled", "retry: ok", "open: ended"),
}


@pytest.mark.parametrize(("servers", "runs"), [("single", 25), ("cluster", 5)])
@pytest.mark.timeout(600)  # a failure takes a while to shrink
def test_batches_end_once_and_count_every_member_once(servers: str, runs: int, request: pytest.FixtureRequest) -> None:
    with closing(World(request.getfixturevalue(servers).url)) as world:
        run(lambda: Machine(world), runs=runs, steps=40)
    assert world.seen["enqueue: created"]


@pytest.mark.long
@pytest.mark.timeout(0)
def test_batches_end_once_and_count_every_member_once_in_10_000_runs(single: Server) -> None:
    with closing(World(single.url)) as world:
        for _ in range(40):  # not at once, for Hypothesis remembers every choice of a run
            run(lambda: Machine(world), runs=250, steps=40)
    assert world.seen.keys() >= OFTEN
