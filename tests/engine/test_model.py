"""The engine beside the model, on virtual time: same calls, same answers, same state after each step."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.engine.answers import read_pushed_lease
from penstock.engine.engine import Retention
from penstock.engine.keys import SEPARATOR
from penstock.model.schedule import ScheduleSpec, first, plan
from tests.engine.factories import LIFE, new_job, new_spec
from tests.engine.machines import START, Steps, World, one_of, run, world_at
from tests.engine.model import SETTLES, WAITING, Model, ask
from tests.engine.model_state import expected, stored
from tests.servers import Server

HOUR = 3_600_000
DAY = 24 * HOUR
IDS = tuple(f"job{n}" for n in range(10))
QUEUES = ("a", "b", "c")
CRONS = ("x", "y")
SERVES = (("*",), ("b", "a"), ("c",), ("*",))  # the queues of each worker
ERROR = '{"type": "Error"}'
TASKS = ("tasks:run", "tasks:other", "tasks:new")
KNOWN = ("{}", *(json.dumps({"tasks": tasks}) for tasks in (TASKS[:1], TASKS[:2], TASKS[1:], ())))  # by a worker

# What at least 60 of 300 runs come across: if one is missing, the steps have become blind.
OFTEN = {
    *(
        "enqueue: created",
        "enqueue: handed over",
        "enqueue: exists",
        "enqueue: unique",
        "lease: jobs",
        "lease: ok",
        "lease: unknown",
    ),
    *("complete: ok", "retry: ok", "bury: ok", "crash: ok", "release: ok", "snooze: ok", "progress: ok"),
    *("complete: stale", "retry: stale", "bury: stale", "release: stale", "snooze: stale", "progress: stale"),
    *("promote: some", "expire: some", "prune: some", "reap_worker: some", "pause: ok", "renew: unknown"),
    *("set_cron: made", "tick: ok", "tick: jobs", "run_cron: made", "reschedule: ok", "reschedule: missing"),
    *("discard: ok", "discard: missing", "transfer: ok", "transfer: missing", "log: ok", "log: stale"),
    *("cancel: cancelled", "cancel: cancelling", "cancel: missing", "revive: ok", "revive: ready", "revive: missing"),
}
numbers = st.integers(0, 11)
limits = one_of(100, 100, 1, 2)
lives = one_of(LIFE, LIFE, 2 * LIFE)
slots = st.integers(0, len(SERVES) - 1)
some = st.lists(numbers, min_size=1, max_size=4)
attempts = st.lists(st.tuples(one_of("right", "right", "stale", "random"), numbers), min_size=1, max_size=3)
new_jobs = st.lists(
    st.fixed_dictionaries(
        {
            "job_id": one_of(*IDS),
            "payload": one_of(b"", b"small", b"not so small"),
            "queue": one_of(*QUEUES),
            "task": one_of(*TASKS),
            "priority": one_of(50, 10, 90),
            "unique": one_of("", "", "", "u", "u", "v", "w"),
            "nonce": one_of("", "x", "y"),
            "due": one_of(0, 0, 0, 0, 0, 0, 1, 5_000, START - 1, START + LIFE),
            "expires": one_of(0, 0, 0, 0, 0, 0, 1, 5_000, 2 * HOUR, START + 2 * LIFE),
            "keep": one_of(HOUR, 5_000, 0),
        }
    ),
    min_size=1,
    max_size=4,
)
specs = st.builds(
    new_spec,
    every=one_of(5_000, 5_000, HOUR),
    catch_up=one_of("none", "latest", "all"),
    overlap=one_of("allow", "skip", "queue"),
    jitter=one_of(0, 0, 2_000),
    queue=one_of(*QUEUES),
    unique=one_of("", "", "", "u"),
    due=one_of(0, 0, 1_000),
    expires=one_of(0, 0, 5_000),
)
retentions = st.builds(
    Retention,
    finished=one_of(100, 0, 0, 1),
    tomb_life=one_of(DAY, 0, LIFE),
    tombs=one_of(100, 0, 0, 1),
    dead_life=one_of(DAY, 0, LIFE),
    dead=one_of(100, 0, 1),
)
step = Steps()


class Sent(NamedTuple):
    verb: str
    args: tuple[Any, ...]
    options: dict[str, Any]
    answer: Any


class Machine(RuleBasedStateMachine):
    def __init__(self, world: World) -> None:
        super().__init__()
        world.begin()
        self.world = world
        self.model = Model(world.clock())
        self.names = [f"w{slot}-0" for slot in range(len(SERVES))]  #: of each worker's present incarnation
        self.calls: Counter[str] = Counter()  #: each worker's last lease call
        self.given: list[tuple[str, int, str]] = []  #: every lease that there was: worker, call, id
        self.sent: list[Sent] = []
        self.events = 1
        self.last_event: dict[Any, Any] = {}
        self.sound = True  #: what is stored was compared since the last call

    def send(self, verb: str, *args: Any, **options: Any) -> Any:
        """One call to both: they give the same answer, and if anything moved there is one more event."""
        self.sound = False
        answer = getattr(self.world.engine, verb)(*args, **options).sync()
        want = ask(self.model, verb, args, options)
        if verb == "lease":
            answer = self._ids(answer)
            self.given += [(args[0], args[1], job_id) for job_id in answer[2]]
        if verb == "enqueue":
            answer = [(placed.word, placed.id, placed.state) for placed in answer]
        if verb == "enqueue" and answer[0] == (*want[0][:2], "running") != want[0]:
            want = [self._hand_over(*want[0])]
        if verb == "due_crons":
            answer = answer[0], answer[1], [cron.id for cron in answer.crons]
        assert answer == want, verb
        if self.model.last_event:
            lines = {name: sorted(rows) for name, rows in self.model.last_event.items()}
            self.events, self.last_event, self.model.last_event = self.events + 1, lines, {}
        self.world.seen.update(f"{verb}: {word}" for word in _words(answer))
        self.sent.append(Sent(verb, args, options, answer))
        return answer

    def _hand_over(self, word: str, job_id: str, state: str) -> tuple[str, str, str]:
        """The job may have gone to an idle worker."""
        assert (word, state) == ("created", "ready")
        worker, message = self.world.last_pushed_job()
        number, leased = read_pushed_lease(message)
        self.model.handed_over(job_id, worker, number, SERVES[int(worker[1])])
        assert self._ids(leased) == ("ok", False, [job_id])
        self.calls[worker] = max(self.calls[worker], number)
        self.given.append((worker, number, job_id))
        self.world.seen["enqueue: handed over"] += 1
        return word, job_id, "running"

    def _ids(self, leased: Any) -> tuple[str, bool, list[str]]:
        for lease in leased.leases:
            assert (lease.header, lease.payload) == (self.model.jobs[lease.id], self.model.payloads[lease.id])
        return leased.word, leased.again, [lease.id for lease in leased.leases]

    @invariant()
    def the_state_is_the_same(self) -> None:
        if self.sound:
            return
        actual, want = stored(self.world), expected(self.model) | {"events": self.events, "last_event": self.last_event}
        for name, value in want.items():
            assert actual[name] == value, name
        self.sound = True

    def teardown(self) -> None:
        if self.sound:  # otherwise the audit would only hide what went wrong
            assert self.world.audit() == []

    # Jobs come and go

    @step(8, jobs=new_jobs)
    def enqueue(self, jobs: list[dict[str, Any]]) -> None:
        self.send("enqueue", [new_job(**job) for job in jobs])

    @step(2, who=numbers, job_id=one_of(*IDS), queue=one_of(*QUEUES), payload=one_of(b"", b"small"))
    def enqueue_for_an_idle_worker(self, who: int, job_id: str, queue: str, payload: bytes) -> None:
        """A worker asks, and then there comes a job with nothing to it."""
        self.lease(who, 4, 0, 0, 100, listens=True)
        self.send("enqueue", [new_job(job_id, queue=queue, payload=payload)])

    @step(4, verb=one_of("promote", "expire"), limit=limits)
    def see_to_timers(self, verb: str, limit: int) -> None:
        self.send(verb, limit)

    @step(4, picks=some, running=st.booleans())
    def cancel(self, picks: list[int], running: bool) -> None:
        self.send("cancel", _pick(picks[:2], self.model.among("running") if running else ()), "no longer wanted")

    @step(3, picks=some, ended=st.booleans())
    def revive(self, picks: list[int], ended: bool) -> None:
        self.send("revive", _pick(picks, self.model.among("dead", "cancelled") if ended else ()) or ["missing"])

    @step(2, picks=some, ended=st.booleans())
    def discard(self, picks: list[int], ended: bool) -> None:
        self.send("discard", _pick(picks[:2], self.model.among("dead", "cancelled", "done") if ended else ()))

    @step(2, picks=some, waiting=st.booleans(), queue=one_of(*QUEUES))
    def transfer(self, picks: list[int], waiting: bool, queue: str) -> None:
        self.send("transfer", _pick(picks, self.model.among(*WAITING) if waiting else ()), queue)

    @step(2, picks=some, waiting=st.booleans(), due=one_of(0, 1, 5_000, START + LIFE))
    def reschedule(self, picks: list[int], waiting: bool, due: int) -> None:
        self.send("reschedule", _pick(picks, self.model.among(*WAITING) if waiting else ()), due)

    # Schedules make some

    @step(2, schedule=one_of(*CRONS), spec=specs, who=one_of(*range(len(SERVES)), None, None))
    def set_cron(self, schedule: str, spec: ScheduleSpec, who: int | None) -> None:
        worker = "" if who is None else self.names[who]
        source = "set" if who is None else "code"
        self.send("set_cron", schedule, spec, first(schedule, spec, self.model.now), source=source, worker=worker)

    @step(1, schedule=one_of(*CRONS), verb=one_of("pause_cron", "resume_cron", "remove_cron"), spec=specs)
    def steer_cron(self, schedule: str, verb: str, spec: ScheduleSpec) -> None:
        spec = self.model.crons.states[schedule][0] if schedule in self.model.crons.states else spec
        rest = (spec.version, first(schedule, spec, self.model.now)) if verb == "resume_cron" else ()
        self.send(verb, schedule, *rest)

    @step(1, schedule=one_of(*CRONS), spec=specs, number=st.integers(0, 2), same=one_of(True, True, False))
    def run_cron(self, schedule: str, spec: ScheduleSpec, number: int, same: bool) -> None:
        if same and schedule in self.model.crons.states:
            spec = self.model.crons.states[schedule][0]
        self.send("run_cron", schedule, spec, f"{schedule}@run-{number}")

    @step(4, limit=limits, also=st.lists(one_of(*CRONS), max_size=1), early=one_of(False, False, True))
    def see_to_crons(self, limit: int, also: list[str], early: bool) -> None:
        """As a timer does it; or all of them, due or not."""
        if not self.model.crons.states:
            self.set_cron("x", new_spec(5_000), None)
        _, _, due = self.send("due_crons", limit, also)
        for schedule in sorted(self.model.crons.states) if early else due:
            spec, standing = self.model.crons.states[schedule]
            self.send("tick", schedule, spec, standing.next, plan(schedule, spec, standing.next, self.model.now))
            self.send("tick", schedule, spec, -1, plan(schedule, spec, standing.next, self.model.now))

    @step(3, keep=retentions, limit=limits)
    def prune(self, keep: Retention, limit: int) -> None:
        self.send("prune", keep, limit)

    @step(2, queue=one_of(*QUEUES), change=one_of(True, True, False))
    def steer(self, queue: str, change: bool) -> None:
        self.send("pause" if self.model.paused.get(queue, False) != change else "resume", queue)

    # They run

    @step(
        10,
        who=numbers,
        want=st.integers(1, 4),
        back=one_of(0, 0, 0, 1, 2),
        lag=one_of(0, 0, 1),
        room=one_of(100, 6),
        listens=st.booleans(),
    )
    def lease(self, who: int, want: int, back: int, lag: int, room: int, listens: bool = False) -> None:
        """As the next call or as an earlier one that was late; the last answers may not have come yet."""
        slot = who % len(SERVES)
        worker = self.names[slot]
        call = max(1, self.calls[worker] + 1 - back)
        self.calls[worker] = max(self.calls[worker], call)
        options = {"queues": SERVES[slot], "want": want, "answered": max(0, call - 1 - lag), "room": room}
        if listens:
            self.world.listen_for(worker)
            options["push"] = True
        word, *_ = self.send("lease", worker, call, **options)
        if word == "unknown":
            self.register(slot, LIFE, again=who > 8)

    @step(10, verb=one_of(*SETTLES), who=numbers, picks=attempts, delay=one_of(0, 1, 5_000), result=one_of(b"1", b""))
    def settle(self, verb: str, who: int, picks: list[tuple[str, int]], delay: int, result: bytes) -> None:
        if who < 8 and not self.model.among("running"):
            self.lease(who, 4, 0, 0, 100)
        worker = self._someone(who)
        values = {
            "complete": (result,),
            "retry": (delay, "failed", ERROR),
            "bury": ("hopeless", ERROR),
            "crash": (ERROR,),
            "release": (),
            "snooze": (delay, "later"),
        }[verb]
        self.send(verb, worker, [(*attempt, *values) for attempt in self._attempts(worker, picks)])

    @step(2, who=numbers, picks=attempts, text=one_of("[1,2]", "[2,2]"))
    def progress(self, who: int, picks: list[tuple[str, int]], text: str) -> None:
        worker = self._someone(who)
        self.send("progress", worker, *self._attempts(worker, picks)[0], text)

    @step(2, who=numbers, picks=attempts, before=st.integers(0, 2), lines=st.integers(1, 2))
    def log(self, who: int, picks: list[tuple[str, int]], before: int, lines: int) -> None:
        worker = self._someone(who)
        text = [[START, 1, "info", f"line {before + n}"] for n in range(lines)]
        held = dict(self._attempts(worker, picks)[:2]).items()
        self.send("log", worker, [(job_id, number, before, text) for job_id, number in held])

    def _someone(self, who: int) -> str:
        """A worker that holds jobs, one that once did, or any."""
        running = self.model.held_by(self.model.workers)
        if who < 8 and running:
            return self.model.jobs[running[who % len(running)]].claim.split(SEPARATOR)[0]
        return self.given[-1 - who % len(self.given)][0] if self.given else self.names[who % len(SERVES)]

    def _attempts(self, worker: str, picks: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Id and call of jobs that this worker holds, of those that it once got, or of anything."""
        claims = [(job_id, self.model.jobs[job_id].claim) for job_id in self.model.held_by([worker])]
        held = [(job_id, int(claim.split(SEPARATOR)[1])) for job_id, claim in claims]
        given = [(job_id, call) for name, call, job_id in self.given if name == worker]
        anything = [(job_id, call) for call, job_id in enumerate(sorted(self.model.among("running")) or IDS)]
        known = {"right": held or given, "stale": given, "random": anything}
        chosen = [(known[kind] or anything, n) for kind, n in picks]
        return [rows[-1 - n % len(rows)] for rows, n in chosen]

    # Workers live and die

    @initialize(jobs=new_jobs)
    def open(self, jobs: list[dict[str, Any]]) -> None:
        for slot in range(len(SERVES) - 1):
            self.register(slot, LIFE, again=False, info=KNOWN[slot])
        self.enqueue(jobs)
        self.lease(0, 4, 0, 0, 100)

    @step(1, slot=slots, life=lives, again=st.booleans(), info=one_of(*KNOWN))
    def register(self, slot: int, life: int, again: bool, info: str = "{}") -> None:
        """A worker whose id was retired begins a new life, or tries to go on with the old one."""
        if self.names[slot] in self.model.retired and not again:
            name, incarnation = self.names[slot].split("-")
            self.names[slot] = f"{name}-{int(incarnation) + 1}"
        self.send("register", self.names[slot], life, info, SERVES[slot])

    @step(1, slots=st.lists(slots, unique=True), life=lives)
    def renew(self, slots: list[int], life: int) -> None:
        self.send("renew", life, [self.names[slot] for slot in slots])

    @step(1, who=numbers, limit=limits)
    def retire(self, who: int, limit: int) -> None:
        self.send("retire", self._someone(who), limit)

    @step(1, life=lives, limit=limits, crashes=st.integers(1, 3))
    def reap(self, life: int, limit: int, crashes: int) -> None:
        self.send("reap", life, limit=limit, crashes=crashes, cause=ERROR)

    @step(2, who=numbers, started=some, life=lives, limit=limits, crashes=st.integers(1, 3))
    def reap_worker(self, who: int, started: list[int], life: int, limit: int, crashes: int) -> None:
        worker, ids = self._someone(who), _pick(started, self.model.among("running"))
        self.send("reap_worker", worker, ids, life, limit=limit, crashes=crashes, cause=ERROR)

    # Time passes, and calls get lost on their way

    @step(5, milliseconds=one_of(0, 0, 1, 1_000, 5_000, LIFE + 1, HOUR, DAY))
    def advance(self, milliseconds: int) -> None:
        """By so much, or to the moment at which something is due next."""
        ticks = [one.due for _, one in self.model.crons.states.values()]
        moments = ticks + [at for h in self.model.among(*WAITING).values() for at in (h.due, h.expires)]
        later = [at - self.model.now for at in (*moments, *self.model.workers.values()) if at > self.model.now]
        self.world.clock.advance(milliseconds or min(later, default=1))
        self.model.now = self.world.clock()

    @step(2, slots=st.lists(slots, unique=True), halves=st.integers(2, 3), limit=limits, crashes=st.integers(1, 3))
    def outlive(self, slots: list[int], halves: int, limit: int, crashes: int) -> None:
        """All are alive, then only some, until the others are dead or just about to be."""
        self.renew([*range(len(SERVES))], LIFE)
        for _ in range(halves):
            self.advance(LIFE // 2)
            self.renew(slots, LIFE)
        self.reap(LIFE, limit, crashes)

    @step(4, back=one_of(0, 0, 1, 2))
    def resend(self, back: int) -> None:
        """An earlier call comes again; if nothing happened in between, it gets its first answer."""
        if back < len(self.sent):
            verb, args, options, first = self.sent[-1 - back]
            answer = self.send(verb, *args, **options)
            if back == 0 and (verb in SETTLES or (verb == "enqueue" and _distinct(args[0]))):
                assert answer == first
            if back == 0 and verb == "lease" and first[2]:
                assert sorted(answer[2]) == sorted(first[2])

    @step(1)
    def forget_scripts(self) -> None:
        self.world.client.script_flush()
        self.world.client.function_flush()

    @rule(step=step.any())
    def take(self, step: tuple[str, dict[str, Any]]) -> None:
        name, arguments = step
        getattr(self, name)(**arguments)


def _pick(picks: Sequence[int], of: Iterable[str]) -> list[str]:
    """Some of these, or of all if there are none."""
    ids = sorted(of or IDS)
    return [ids[n % len(ids)] for n in picks]


def _distinct(jobs: Sequence[Any]) -> bool:
    return len({job.id for job in jobs}) == len(jobs)


def _words(answer: Any) -> list[str]:
    match answer:
        case str():
            return [answer]
        case (int(moved), *_):
            return ["some" if moved else "none"]
        case (str(word), int(made)) if not isinstance(made, bool):
            return [word, *(["jobs"] if made else [])]
        case (str(word), bool(), list(ids)):
            return ["jobs" if ids else word]
        case (list(words), list(), int()):
            return words
        case _:
            return [row if isinstance(row, str) else row[0] for row in answer]


@pytest.mark.parametrize(("servers", "runs"), [("single", 250), ("cluster", 50)])
@pytest.mark.timeout(600)  # a failure takes a while to shrink
def test_the_engine_does_what_the_model_does(servers: str, runs: int, request: pytest.FixtureRequest) -> None:
    with world_at(request.getfixturevalue(servers).url) as world:
        run(lambda: Machine(world), runs=runs, steps=50)
    assert runs < 250 or world.seen.keys() >= OFTEN


@pytest.mark.long
@pytest.mark.timeout(0)
def test_the_engine_does_what_the_model_does_20_000_times(single: Server) -> None:
    with world_at(single.url) as world:
        for _ in range(20):  # not at once, for Hypothesis remembers every choice of a run
            run(lambda: Machine(world), runs=1_000, steps=50)
