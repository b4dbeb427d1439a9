"""Lanes under random calls, on virtual time. A simple model looks at all jobs: all that was started was allowed to.

What the lanes say of themselves is checked by the audit after each step. At the end every obstacle is taken away, and
everything drains: no wake-up was lost, and of idle lanes nothing is left.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.engine.engine import Retention
from penstock.engine.keys import SEPARATOR
from penstock.engine.record.lane_entry import LaneSpec, specs_of
from penstock.engine.record.record import read_header
from penstock.engine.repair.audit_lanes import holds
from penstock.engine.repair.reconcile import reconcile
from penstock.model.header import Header
from tests.engine.factories import lane, new_job
from tests.engine.machines import Steps, World, one_of, run, world_at
from tests.servers import Server

LIFE = 10**9
IDS = tuple(f"job{n}" for n in range(24))
QUEUES = ("a", "b")
WORKERS = (("*",), ("b", "a"), ("a",))
LANES = (
    "lock:x",
    "lock:y",
    lane("two", 2),
    lane("two", 2),
    lane("line", 1, kind="ordered"),
    lane("row", 1, kind="ordered"),
    lane("stop", 1, kind="hold"),
    lane("rate", rate="0.002", burst="2"),
    lane("rate", rate="0.002", burst="2", cost=3),
    lane("paced", 1, rate="0.001", burst="1", kind="ordered"),
)
NAMES = tuple(sorted({spec.split(SEPARATOR)[0] for spec in LANES}))
LINED = ("ready", "held")
UNFINISHED = ("scheduled", "held", "ready", "running")
SETTLES = ("complete", "retry", "bury", "release", "snooze")


def jobs_of(world: World) -> dict[str, Header]:
    records: Any = world.client.hgetall(world.engine.keys("jobs"))
    headers = {name.decode(): read_header(raw) for name, raw in records.items() if name}
    return {job_id: header for job_id, header in headers.items() if not header.compact}


def left_over(world: World) -> dict[str, Any]:
    """What is stored of lanes besides the sentinels and what was set by hand."""
    pipe = world.client.pipeline(transaction=False)
    pipe.hkeys(world.engine.keys("lanes"))
    for name in ("held", "holders", "openings"):
        pipe.zrange(world.engine.keys(name), 0, -1)
    parts = zip(("lanes", "held", "holders", "openings"), pipe.execute(), strict=True)
    return {name: rows for name, left in parts if (rows := [row for row in left if row])}


class Rules:
    """What lanes allow, worked out from all jobs."""

    def __init__(self) -> None:
        self.by_hand: dict[str, int] = {}
        self.paused: set[str] = set()
        self.starts: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)  #: of a rate: when, at which cost

    def limit(self, spec: LaneSpec) -> float:
        limit = self.by_hand.get(spec.name, float(spec.limit or "inf"))
        return 0 if spec.name in self.paused else min(limit, 1) if spec.kind else limit

    def check_start(self, job_id: str, jobs: dict[str, Header], now: int) -> None:
        """A job that waits by these headers has just been started."""
        header = jobs[job_id]
        for place, spec in enumerate(specs_of(header), 1):
            use = sum(_has(other, spec.name) for one, other in jobs.items() if one != job_id)
            assert use < self.limit(spec), f"{job_id} was started in {spec.name}: {use} in use"
            if spec.kind and header.turn != place and turn_place(header) == place:
                self._check_order(job_id, spec, jobs)
            if spec.rate:
                self._check_rate(spec, now)
        if len(header.lanes) == 1 and not specs_of(header)[0].kind:
            self._check_priority(job_id, jobs)

    def _check_order(self, job_id: str, spec: LaneSpec, jobs: dict[str, Header]) -> None:
        """In an ordered lane nobody of the same queue is passed over."""
        header = jobs[job_id]
        for one, other in jobs.items():
            place = turn_place(other)
            mine = place and specs_of(other)[place - 1].name == spec.name
            if mine and other.state in LINED and other.queue == header.queue:
                assert header.arrival <= other.arrival, f"{job_id} came before {one} in {spec.name}"

    def _check_priority(self, job_id: str, jobs: dict[str, Header]) -> None:
        header = jobs[job_id]
        for one, other in jobs.items():
            if other.lanes == header.lanes and other.queue == header.queue and other.state in LINED:
                better = (header.priority, header.arrival) if header.state == "held" else (header.priority,)
                assert better <= (other.priority, other.arrival), f"{job_id} was started before {one}"

    def _check_rate(self, spec: LaneSpec, now: int) -> None:
        rate, burst, starts = float(spec.rate), float(spec.burst), self.starts[spec.name]
        starts.append((now, int(spec.cost)))
        spent = 0
        for at, cost in reversed(starts):
            spent += cost
            # A start that costs more than the burst needs a full one, and owes the rest: that of the last comes later.
            owed = max(0, starts[-1][1] - burst)
            assert spent <= rate * (now - at) + max(burst, cost) + owed + 0.001, f"{spec.name}: {starts}"


def turn_place(header: Header) -> int:
    """The place of the lane whose turn this job keeps, 0 without one: the first ordered one by name."""
    places = [(spec.name, place) for place, spec in enumerate(specs_of(header), 1) if spec.kind]
    return min(places)[1] if places else 0


def _has(header: Header, name: str) -> bool:
    """Whether this job has a slot of that lane."""
    return any(spec.name == name and holds(header, place) for place, spec in enumerate(specs_of(header), 1))


numbers = st.integers(0, 23)
some = st.lists(numbers, min_size=1, max_size=4)
new_jobs = st.lists(
    st.fixed_dictionaries(
        {
            "job_id": one_of(*IDS),
            "queue": one_of(*QUEUES),
            "priority": one_of(50, 50, 10, 90),
            "lanes": st.lists(one_of(*LANES), min_size=1, max_size=3),
            "due": one_of(0, 0, 0, 0, 1_000),
            "expires": one_of(0, 0, 0, 0, 5_000),
        }
    ),
    min_size=1,
    max_size=12,
)
step = Steps()


class Machine(RuleBasedStateMachine):
    def __init__(self, world: World) -> None:
        super().__init__()
        world.begin()
        self.world, self.engine = world, world.engine
        self.lane_rules = Rules()
        self.calls: Counter[str] = Counter()
        self.incarnation = 0
        self.names = [f"w{n}" for n in range(len(WORKERS))]
        for name, queues in zip(self.names, WORKERS, strict=True):
            self.engine.register(name, LIFE, "{}", queues).sync()
        self.closed: set[str] = set()  #: paused queues

    @invariant()
    def everything_agrees(self) -> None:
        findings = self.world.audit()
        assert findings == [], findings

    def teardown(self) -> None:
        if self.world.audit() == []:
            self._drain()
        self.world.seen.update(["run"])

    # Jobs come and go

    @initialize(jobs=new_jobs)
    def open(self, jobs: list[dict[str, Any]]) -> None:
        self.enqueue(jobs)

    @step(8, jobs=new_jobs)
    def enqueue(self, jobs: list[dict[str, Any]]) -> None:
        self.engine.enqueue([new_job(**job) for job in jobs]).sync()

    @step(12, who=numbers, want=one_of(1, 2, 5, 20))
    def lease(self, who: int, want: int) -> list[str]:
        slot = who % len(WORKERS)
        worker, before = self.names[slot], jobs_of(self.world)
        self.calls[worker] += 1
        call = self.calls[worker]
        leased = self.engine.lease(worker, call, queues=WORKERS[slot], want=want, answered=call - 1).sync()
        assert leased.word == "ok"
        after = jobs_of(self.world)
        # What is over by now leaves its place, and its turn, before others start.
        before |= {one: after[one] for one, header in before.items() if 0 < header.expires <= self.world.clock()}
        for leases in leased.leases:
            assert before[leases.id].queue not in self.closed
            self.world.seen[f"from {before[leases.id].state}"] += 1
            self.lane_rules.check_start(leases.id, before, self.world.clock())
            before[leases.id] = leases.header
        self.world.seen["parked"] += sum(before[job].state == "ready" and after[job].state == "held" for job in before)
        return [leases.id for leases in leased.leases]

    @step(10, verb=one_of(*SETTLES), picks=some, delay=one_of(0, 0, 500))
    def settle(self, verb: str, picks: list[int], delay: int) -> None:
        values = {
            "complete": (b"",),
            "retry": (delay, "e", "{}"),
            "bury": ("e", "{}"),
            "release": (),
            "snooze": (500, ""),
        }
        by_worker: defaultdict[str, list[Any]] = defaultdict(list)
        for job_id, header in self._some(picks, "running").items():
            worker, number = header.claim.split(SEPARATOR)
            by_worker[worker].append((job_id, int(number), *values[verb]))
        for worker, rows in by_worker.items():
            words = getattr(self.engine, verb)(worker, rows).sync()
            self.world.seen.update(f"{verb}: {word}" for word in words)

    @step(3, picks=some)
    def cancel(self, picks: list[int]) -> None:
        self.engine.cancel(list(self._some(picks, *UNFINISHED)) or ["missing"]).sync()

    @step(2, picks=some)
    def revive(self, picks: list[int]) -> None:
        self.engine.revive(list(self._some(picks, "dead", "cancelled")) or ["missing"]).sync()

    @step(2, dead=one_of(0, 100))
    def prune(self, dead: int) -> None:
        self.engine.prune(Retention(finished=0, tombs=0, dead=dead, dead_life=LIFE)).sync()

    @step(5, verb=one_of("promote", "expire", "admit", "admit"), limit=one_of(100, 1))
    def see_to_timers(self, verb: str, limit: int) -> None:
        moved = getattr(self.engine, verb)(limit).sync()[0]
        self.world.seen[f"{verb}: {'some' if moved else 'none'}"] += 1

    @step(5, milliseconds=one_of(1, 100, 500, 1_000, 6_000))
    def advance(self, milliseconds: int) -> None:
        self.world.clock.advance(milliseconds)

    # Steering

    @step(5, name=one_of(*NAMES), limit=one_of(-1, -1, 0, 1, 2, 5), paused=one_of(None, None, True, False, False))
    def tune(self, name: str, limit: int, paused: bool | None) -> None:
        assert self.engine.tune(name, limit=limit, paused=paused).sync() == "ok"
        self.lane_rules.by_hand.pop(name, None)
        if limit >= 0:
            self.lane_rules.by_hand[name] = limit
        if paused is not None:
            (self.lane_rules.paused.add if paused else self.lane_rules.paused.discard)(name)

    @step(2, queue=one_of(*QUEUES), resume=st.booleans())
    def steer(self, queue: str, resume: bool) -> None:
        (self.engine.resume if resume else self.engine.pause)(queue).sync()
        (self.closed.discard if resume else self.closed.add)(queue)

    @step(2, who=numbers, started=some, crashes=one_of(1, 3), leave=st.booleans())
    def lose_worker(self, who: int, started: list[int], crashes: int, leave: bool) -> None:
        slot = who % len(WORKERS)
        worker = self.names[slot]
        if leave:
            self.engine.retire(worker).sync()
        else:
            ids = list(self._some(started, "running"))
            self.engine.reap_worker(worker, ids, LIFE, crashes=crashes).sync()
        self.incarnation += 1
        self.names[slot] = f"w{slot}-{self.incarnation}"
        self.engine.register(self.names[slot], LIFE, "{}", WORKERS[slot]).sync()

    @step(1)
    def reconcile(self) -> None:
        assert self.world.wait(reconcile(self.engine)) == 0

    @rule(step=step.any())
    def take(self, step: tuple[str, dict[str, Any]]) -> None:
        name, arguments = step
        getattr(self, name)(**arguments)

    def _some(self, picks: Sequence[int], *states: str) -> dict[str, Header]:
        jobs = {job_id: header for job_id, header in sorted(jobs_of(self.world).items()) if header.state in states}
        chosen = [list(jobs)[n % len(jobs)] for n in picks] if jobs else []
        return {job_id: jobs[job_id] for job_id in chosen}

    def _drain(self) -> None:
        """Nothing is in the way any more, so everything ends, and nothing is left."""
        for queue in QUEUES:
            self.steer(queue, resume=True)
        for name in NAMES:
            self.tune(name, -1, paused=False)
        for _ in range(60):
            self.world.clock.advance(1_000)
            for verb in ("promote", "expire", "admit"):
                getattr(self.engine, verb)().sync()
            self.prune(0)  # the dead make way where they hold a lane
            self.lease(0, 20)
            self.settle("complete", list(range(len(IDS))), 0)
            if not any(header.state in UNFINISHED for header in jobs_of(self.world).values()):
                break
        left = {one: header for one, header in jobs_of(self.world).items() if header.state in UNFINISHED}
        assert left == {}
        self.prune(0)
        self.world.clock.advance(60_000)
        self.engine.admit().sync()
        assert left_over(self.world) == {}


OFTEN = {"from ready", "from held", "parked", "admit: some", "promote: some", *(f"{verb}: ok" for verb in SETTLES)}


@pytest.mark.parametrize(("servers", "runs"), [("single", 80), ("cluster", 20)])
@pytest.mark.timeout(600)  # a failure takes a while to shrink
def test_lanes_start_nothing_that_they_should_not_and_keep_nobody_waiting(
    servers: str, runs: int, request: pytest.FixtureRequest
) -> None:
    with world_at(request.getfixturevalue(servers).url) as world:
        run(lambda: Machine(world), runs=runs, steps=40)
    assert world.seen["from ready"]  # what else a short run comes by is chance; the long one comes by everything


@pytest.mark.long
@pytest.mark.timeout(0)
def test_lanes_start_nothing_that_they_should_not_in_3_000_runs(single: Server) -> None:
    with world_at(single.url) as world:
        for _ in range(10):  # not at once, for Hypothesis remembers every choice of a run
            run(lambda: Machine(world), runs=300, steps=40)
    assert world.seen.keys() >= OFTEN
