"""Two builds on one namespace: each runs the jobs of the other, and the older one keeps a field it does not know."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.record.builds import Build, two_builds
from tests.servers import Server, running, wait_for

TABLE = Path(__file__).parents[3] / "docs" / "internals.md"
#: What a job may ask for; the last is a payload that is kept outside of its record.
KINDS: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "plain": ("run", ["return"], {}),
    "retried": ("run", ["retry"], {}),
    "snoozed": ("run", ["snooze"], {}),
    "reporting": ("run", ["report"], {}),
    "locked": ("run", ["retry"], {"lanes": "lock"}),
    "limited": ("run", ["snooze"], {"lanes": "limit"}),
    "ordered": ("run", ["retry"], {"lanes": "order"}),
    "unique": ("run", ["return"], {"unique": "only"}),
    "delayed": ("run", ["return"], {"delay": 0.2, "expires": 60, "priority": 3}),
    "large": ("run", ["retry", "." * 1000], {}),
    "in a process": ("apart", [], {}),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(Server("--appendonly", "no")) as server:
        yield server


@pytest.fixture
def builds(server: Server, tmp_path: Path) -> Iterator[tuple[Build, Build]]:
    with two_builds(tmp_path, server.url) as builds:
        yield builds


def libraries(server: Server) -> set[str]:
    with server.client() as client:
        rows: Any = client.function_list()
    return {row[row.index(b"library_name") + 1].decode() for row in rows}


def test_workers_of_two_builds_run_each_others_jobs(server: Server, builds: tuple[Build, Build]) -> None:
    today, later = builds
    for build in builds:
        build.start_worker("-q", f"for-{build.name},either", "-c", "5")
    jobs = {}
    for maker, runner, shade in ((later, today, "red"), (today, later, "")):
        for kind, (task, arguments, options) in KINDS.items():
            unique = {"unique": f"only for {runner.name}"} if "unique" in options else {}
            wanted = options | unique | {"queue": f"for-{runner.name}"}
            jobs[maker.ask("enqueue", task, arguments, wanted, shade)] = kind, maker, runner, shade
    for job, (kind, maker, runner, _) in jobs.items():
        name, attempt = maker.ask("result", job)
        assert (name, attempt) == (runner.name, 2 if "retry" in KINDS[kind][1] else 1), kind
    shared = [build.ask("enqueue", "run", ["return"], {"queue": "either"}, "") for build in builds for _ in range(20)]
    assert {today.ask("result", job)[0] for job in shared} <= {"today", "next"}
    for job, (kind, _, _, shade) in jobs.items():
        assert later.ask("read", job)["shade"] == shade, kind
        assert today.ask("read", job)["shade"] == "unknown here"
    assert today.ask("listed") == later.ask("listed") == sorted([*jobs, *shared])
    assert today.ask("findings") == later.ask("findings") == []


def test_functions_of_two_builds_live_side_by_side(server: Server, builds: tuple[Build, Build]) -> None:
    with server.client() as client:
        client.function_flush()
    today, later = builds
    of_today = _libraries_after(server, today)
    of_both = _libraries_after(server, later)
    assert of_today < of_both
    for build in (today, later, today):
        assert _libraries_after(server, build) == of_both


def _libraries_after(server: Server, build: Build) -> set[str]:
    """The libraries that the server has after calls of this build."""
    for number in (1, 2):
        build.ask("enqueue", "run", ["return"], {}, "")
        build.call("lease", "nobody", number)
    return libraries(server)


class Life:
    """A job of one build that the other build moves. After each step the next build reads what it should."""

    def __init__(self, name: str, maker: Build, mover: Build, later: Build, shade: str) -> None:
        self.worker = f"worker-{name}"
        self._maker, self._mover, self._later, self._shade = maker, mover, later, shade
        self.verbs: set[str] = set()  #: that the mover was asked for
        self._calls: dict[str, int] = {}

    def make(self, **options: Any) -> str:
        return str(self._maker.ask("enqueue", "run", ["return"], options, self._shade))

    def make_member(self, batch: str) -> str:
        return str(self._maker.ask("add_to_batch", batch, self._shade))

    def check(self, job: str, state: str) -> None:
        row = self._later.ask("read", job)
        assert (row["state"], row["shade"]) == (state, self._shade)

    def step(self, job: str, state: str, verb: str, *arguments: Any, **options: Any) -> None:
        """The mover makes this call, which puts the job into this state."""
        self.call(verb, *arguments, **options)
        self.check(job, state)

    def call(self, verb: str, *arguments: Any, **options: Any) -> Any:
        self.verbs.add({"reap_worker": "reap"}.get(verb, verb))
        return self._mover.call(verb, *arguments, **options)

    def start(self, job: str, worker: str = "") -> int:
        """A worker leases the job; the number of the call."""
        worker = worker or self.worker
        number = self._calls.get(worker, 0) + 1
        if number == 1:
            self.call("register", worker, 60_000)
        self._calls[worker] = number
        self.call("lease", worker, number, answered=number - 1)
        self.check(job, "running")
        return number

    def settle(self, job: str, state: str, verb: str, *values: Any) -> None:
        """The worker runs the job and settles it so."""
        number = self.start(job)
        assert self.call(verb, self.worker, [[job, number, *values]]) == ["ok"]
        self.check(job, state)

    def until(self, state: str, job: str, verb: str) -> None:
        """The mover makes this call until the job is in this state: its time has come."""
        wait_for(lambda: self.call(verb) and self._later.ask("read", job)["state"] == state)
        self.check(job, state)


def _settles(life: Life) -> None:
    job = life.make(lanes="order", unique="u", expires=3600)
    life.settle(job, "ready", "retry", 0, "error", "{}")
    number = life.start(job)
    assert life.call("progress", life.worker, job, number, "{}") == "ok"
    assert life.call("log", life.worker, [[job, number, 0, [[1, 1, "info", "a line"]]]]) == ["ok"]
    assert life.call("crash", life.worker, [[job, number, "{}"]]) == ["ok"]
    life.settle(job, "ready", "release")
    life.settle(job, "scheduled", "snooze", 1, "snoozed")
    life.until("ready", job, "promote")
    life.settle(job, "dead", "bury", "reason", "{}")
    life.step(job, "ready", "revive", [job])
    number = life.start(job)
    life.step(job, "running", "cancel", [job])
    life.step(job, "done", "complete", life.worker, [[job, number, ""]])
    life.step(job, "done", "discard", [job])


def _waits(life: Life) -> None:
    job = life.make(lanes="lock")
    life.step(job, "scheduled", "reschedule", [job], 60_000)
    life.step(job, "ready", "reschedule", [job], 0)
    life.step(job, "ready", "transfer", [job], "other")
    behind = life.make(lanes="lock", queue="other")
    life.check(behind, "held")
    life.step(job, "ready", "tune", "lock:door", paused=True)
    life.step(job, "ready", "tune", "lock:door", paused=False)
    life.step(job, "cancelled", "cancel", [job])
    life.check(behind, "ready")
    life.settle(behind, "done", "complete", "")
    late = life.make(expires=0.001)
    life.until("cancelled", late, "expire")
    rated = [life.make(lanes="rate") for _ in range(2)]
    life.settle(rated[0], "done", "complete", "")
    life.check(rated[1], "held")
    life.until("ready", rated[1], "admit")
    life.settle(rated[1], "done", "complete", "")
    brief = life.make(keep_result=0)
    life.settle(brief, "done", "complete", "")
    life.step(brief, "done", "prune")


def _lost_workers(life: Life) -> None:
    job = life.make(unique="u")
    life.start(job, "leaves")
    life.step(job, "ready", "retire", "leaves")
    life.start(job, "dies")
    life.step(job, "ready", "reap_worker", "dies", [job], 60_000)
    life.settle(job, "done", "complete", "")


def _members(life: Life) -> None:
    batch = life._maker.ask("open_batch", "many")
    failed, other = life.make_member(batch), life.make_member(batch)
    life.settle(failed, "dead", "bury", "reason", "{}")
    life.call("set_batch", batch, priority=3)
    life.check(other, "ready")
    life.call("retry_batch", batch, "now")
    life.step(failed, "ready", "do_chores", "retry", batch)
    life.call("cancel_batch", batch)
    life.step(other, "cancelled", "do_chores", "cancel", batch)
    life.check(failed, "cancelled")


def _scheduled(life: Life) -> None:
    life._maker.ask("set_schedule", "each", life._shade)
    job = life._mover.ask("run_schedule", "each")
    life.check(job, "ready")
    life.settle(job, "done", "complete", "")


LIVES: dict[str, Callable[[Life], None]] = {
    "settles": _settles,
    "waits": _waits,
    "lost": _lost_workers,
    "members": _members,
    "scheduled": _scheduled,
}


@pytest.mark.parametrize("newer", [True, False], ids=["jobs of the next build", "jobs of today's build"])
def test_a_build_carries_a_field_that_it_does_not_know_through_every_verb(
    server: Server, builds: tuple[Build, Build], newer: bool
) -> None:
    today, later = builds
    maker, mover = (later, today) if newer else (today, later)
    verbs: set[str] = set()
    for name, live in LIVES.items():
        life = Life(name, maker, mover, later, "red" if newer else "")
        live(life)
        verbs |= life.verbs
        assert today.ask("findings") == later.ask("findings") == [], name
    assert _that_move_jobs() - verbs == set()


def _that_move_jobs() -> set[str]:
    """The verbs of which the table says from which state to which they move a job."""
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*→[^|]*) \|", TABLE.read_text("utf-8"), re.MULTILINE)
    return {verb for verb, _ in rows} - {"enqueue", "reconcile"}


def test_reconcile_carries_a_field_that_it_does_not_know(server: Server, builds: tuple[Build, Build]) -> None:
    today, later = builds
    first, held = (later.ask("enqueue", "run", ["return"], {"lanes": "lock"}, "red") for _ in range(2))
    with server.client() as client:
        client.delete(*client.keys(f"*{today.namespace}*:ready"), *client.keys(f"*{today.namespace}*:lanes"))
    assert today.ask("findings")
    assert today.ask("repair") > 0
    rows = [later.ask("read", job) for job in (first, held)]
    assert [(row["state"], row["shade"]) for row in rows] == [("ready", "red"), ("held", "red")]
    assert today.ask("findings") == later.ask("findings") == []


def test_schedules_of_one_build_are_ticked_by_workers_of_the_other(builds: tuple[Build, Build]) -> None:
    today, later = builds
    for maker, runner, shade in ((later, today, "red"), (today, later, "")):
        maker.ask("set_schedule", f"of-{maker.name}", shade)
        worker = runner.start_worker("-c", "2")
        job = wait_for(lambda maker=maker: maker.ask("last_job_of", f"of-{maker.name}"))  # type: ignore[misc]
        assert maker.ask("result", job) == [runner.name, 1]
        assert later.ask("read", job)["shade"] == shade
        maker.call("remove_cron", f"of-{maker.name}")
        worker.terminate()
        assert worker.wait(30) == 0
    assert today.ask("findings") == later.ask("findings") == []
