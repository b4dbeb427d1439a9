"""The measures, in the order in which a run takes them. Each gives figures as it finds them.

Workers are held still (SIGSTOP) while their queue is filled, so that a drain begins with warm workers, a full queue and
a known moment, for every system alike. While other systems have their turns they idle, at a fraction of a percent each.
"""

import statistics
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks import processes
from benchmarks.adapter import Adapter, Failed, Place, Workers, sending, working
from benchmarks.server import Server

KINDS: Final = ("async", "thread", "payload", "locked", "batch")  #: of jobs that are drained
#: measures and their values; None: let others have their turns
Measured = Generator[tuple[str, list[float]] | None, None, None]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured; the smoke test has little time."""

    repeats: int = 3
    slices: int = 10  #: of a repeat of enqueueing, of which the fastest counts
    latency_turns: int = 5  #: turns in which a repeat's idle latencies are measured
    drains: int = 2  #: of each kind of job in a repeat, in turns; the faster one counts
    seconds: float = 0.8  #: that one repeat of a drain or of enqueueing should take
    max_jobs: int = 40_000  #: in one repeat
    warm: int = 200  #: jobs that show how fast a system is, before it counts
    limit: float = 20.0  #: seconds that one repeat may take
    pause: float = 1.0  #: seconds until a worker has done what it does once, after its start; and of jobs' delays
    idle: float = 5.0
    stored: int = 10_000  #: jobs that the server's memory is divided by; many, as its tables grow in steps
    latency: int = 100  #: jobs in one repeat
    late: int = 30
    crash: float = 90.0

    def count(self, rate: float) -> int:
        """As many jobs as fill a repeat, in whole hundreds."""
        return max(self.warm, min(self.max_jobs, round(rate * self.seconds / 100) * 100))


@dataclass(frozen=True, slots=True)
class Bench:
    """One system on one fresh server."""

    server: Server
    place: Place
    scale: Scale
    wanted: Callable[[str], bool]  #: whether a group of measures was asked for

    def memory(self) -> Measured:
        """What the server needs for each of many queued jobs."""
        with sending(self.place) as adapter:
            self._fill(adapter, "payload", 100, size=100)  # whatever a system stores once
            before = self.server.memory()
            self._fill(adapter, "payload", self.scale.stored, size=100)
            yield "memory.job", [(self.server.memory() - before) / self.scale.stored]
            audit(adapter)

    def _fill(self, adapter: Adapter, kind: str, count: int, size: int = 0) -> int:
        first = self.place.numbers(count)
        adapter.ask("many", kind=kind, first=first, count=count, size=size)
        return first

    def one_worker(self) -> Measured:
        """Everything that one worker process shows."""
        with sending(self.place) as adapter:
            first = self._fill(adapter, adapter.kind, 1)
            begin = time.monotonic()
            with working(self.place) as workers:
                startup = self.place.started(first, 1, self.scale.limit) - begin
                yield "start.seconds", [startup]
                time.sleep(self.scale.pause)
                yield "start.memory", [processes.memory(workers.pids())]
                if self.wanted("idle"):
                    yield from self._idle(workers)
                yield None
                if self.wanted("latency"):
                    yield from self._latency(adapter)
                if self.wanted("lateness"):
                    yield from self._lateness(adapter)
                    yield None
                if self.wanted("drain") or self.wanted("cost"):
                    yield from self._drains(adapter, workers, KINDS)
            audit(adapter)

    def two_workers(self) -> Measured:
        with sending(self.place) as adapter:
            with working(self.place, 2) as workers:
                first = self._fill(adapter, adapter.kind, self.scale.warm)
                self.place.started(first, self.scale.warm, self.scale.limit)
                time.sleep(2 * self.scale.pause)  # until the slower starter is there, too
                for measured in self._drains(adapter, workers, [adapter.kind]):
                    if measured is None:
                        yield None
                    elif measured[0].startswith("drain"):
                        yield "drain.two", measured[1]
            audit(adapter)

    def _restarted(self, number: int) -> float:
        try:
            return self.place.started(number, 1, self.scale.crash)
        except Failed:
            raise Failed(f"the job did not run again within {self.scale.crash:g} s of kill -9") from None

    def _idle(self, workers: Workers) -> Measured:
        pids = workers.pids()
        spent, begin = processes.cpu(pids), time.monotonic()
        with self.server.counting() as counter:
            time.sleep(self.scale.idle)
        seconds = time.monotonic() - begin
        yield "idle.commands", [counter.commands / seconds]
        yield "idle.cpu", [100 * (processes.cpu(pids) - spent) / seconds]

    def _latency(self, adapter: Adapter) -> Measured:
        waits: list[float] = []
        count = self.scale.latency // self.scale.latency_turns
        for _ in range(self.scale.latency_turns):
            first = self.place.numbers(count)
            waits += adapter.ask("latency", kind=adapter.kind, first=first, count=count, seconds=4.0)["waits"]
            yield None
        if len(waits) < 2:
            raise Failed("an idle worker did not start two jobs within 4 s")
        yield "latency.p50", [1_000 * _quantile(waits, 50)]
        yield "latency.p99", [1_000 * _quantile(waits, 99)]

    def _lateness(self, adapter: Adapter) -> Measured:
        helper = self.place.start(*self.place.system.scheduler) if self.place.system.scheduler else None
        try:
            first, count = self.place.numbers(self.scale.late), self.scale.late
            delays = [self.scale.pause * (0.5 + i / count) for i in range(count)]
            due = adapter.ask("later", kind=adapter.kind, first=first, delays=delays)["due"]
            self.place.started(first, count, 8.0)
            late = [1_000 * (self.place.marks.started(first + i) - at) for i, at in enumerate(due)]
        finally:
            if helper is not None:
                processes.end(helper.pid)
                helper.wait()
        yield "lateness.p50", [_quantile(late, 50)]
        yield "lateness.p99", [_quantile(late, 99)]

    def _drains(self, adapter: Adapter, workers: Workers, kinds: Sequence[str]) -> Measured:
        counts = {kind: self._count(adapter, workers, kind) for kind in kinds if kind in adapter.kinds}
        repeats: dict[str, list[dict[str, float]]] = {kind: [] for kind in counts}
        for _ in range(self.scale.drains):
            for kind in kinds:
                yield None  # also for a kind that this system lacks, so that all drain the same kind at a time
                if kind in counts:
                    repeats[kind].append(self._drain(adapter, workers, kind, counts[kind]))
        best = {kind: max(figures, key=lambda figure: figure["drain"]) for kind, figures in repeats.items()}
        for kind in counts:
            yield f"drain.{kind}", [best[kind]["drain"]]
        for name in ("bytes", "worker", "server"):
            yield f"cost.{name}", [best[adapter.kind][name]]
        yield "cost.commands", [self._commands(adapter, workers, adapter.kind, counts[adapter.kind])]

    def _count(self, adapter: Adapter, workers: Workers, kind: str) -> int:
        return self.scale.count(self._drain(adapter, workers, kind, self.scale.warm)["drain"])

    def _drain(self, adapter: Adapter, workers: Workers, kind: str, count: int) -> dict[str, float]:
        first = self._fill_held(adapter, workers, kind, count)
        used, spent, begin = self.server.meter(), processes.cpu(workers.pids()), time.monotonic()
        seconds = self._release(workers, first, count) - begin
        usage = self.server.meter().since(used)
        return {
            "drain": count / seconds,
            "bytes": usage.bytes / count,
            "server": 1e6 * usage.cpu / count,
            "worker": 1e6 * (processes.cpu(workers.pids()) - spent) / count,
        }

    def _commands(self, adapter: Adapter, workers: Workers, kind: str, count: int) -> float:
        first = self._fill_held(adapter, workers, kind, count)
        with self.server.counting() as counter:
            self._release(workers, first, count)
        return counter.commands / count

    def _fill_held(self, adapter: Adapter, workers: Workers, kind: str, count: int) -> int:
        """Hold the workers still and fill the queue."""
        workers.hold()
        return self._fill(adapter, kind, count, size=1_024 if kind == "payload" else 0)

    def _release(self, workers: Workers, first: int, count: int) -> float:
        workers.go()
        last = self.place.started(first, count, self.scale.limit)
        time.sleep(0.3)  # until the last ones are settled
        return last

    def crash(self) -> Measured:
        """Kill a worker in the middle of a job and start another; when the job runs again."""
        with sending(self.place) as adapter:
            if "crash" not in adapter.kinds:
                return
            first = self.place.numbers(2)
            adapter.ask("many", kind="crash", first=first, count=1)
            with working(self.place) as workers:
                self.place.started(first, 1, self.scale.limit)
                workers.kill()
                begin = time.monotonic()
            with working(self.place):
                again = self._restarted(first + 1)
            yield "crash.return", [again - begin]
            audit(adapter)


def audit(adapter: Adapter) -> None:
    if "audit" in adapter.ways and (findings := adapter.ask("audit", limit=120)["findings"]):
        raise Failed(f"the audit found: {findings[:3]}")


def _quantile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
