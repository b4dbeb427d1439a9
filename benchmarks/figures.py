"""What is measured, and what was found."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class Measure:
    """One row of the table; `--measure` selects by the part of its name before the dot."""

    name: str
    title: str
    unit: str
    more_is_better: bool = False
    digits: int = 0


MEASURES: Final = {
    measure.name: measure
    for measure in (
        Measure("drain.async", "drain, `async def`, one process", "jobs/s", more_is_better=True),
        Measure("drain.thread", "drain, `def` in threads", "jobs/s", more_is_better=True),
        Measure("drain.payload", "drain, 1 KiB payload", "jobs/s", more_is_better=True),
        Measure("drain.locked", "drain, 1,000 locks", "jobs/s", more_is_better=True),
        Measure("drain.batch", "drain, members of a batch", "jobs/s", more_is_better=True),
        Measure("drain.two", "drain, two worker processes", "jobs/s", more_is_better=True),
        Measure("enqueue.sync", "enqueue, one by one, blocking", "jobs/s", more_is_better=True),
        Measure("enqueue.async", "enqueue, one by one, `await`", "jobs/s", more_is_better=True),
        Measure("enqueue.callers", "enqueue, 100 concurrent callers", "jobs/s", more_is_better=True),
        Measure("enqueue.bulk", "enqueue in bulk", "jobs/s", more_is_better=True),
        Measure("latency.p50", "idle latency, enqueue to start, p50", "ms", digits=2),
        Measure("latency.p99", "idle latency, enqueue to start, p99", "ms", digits=2),
        Measure("lateness.p50", "lateness of delayed jobs, p50", "ms", digits=1),
        Measure("lateness.p99", "lateness of delayed jobs, p99", "ms", digits=1),
        Measure("memory.job", "server memory per queued job, 100-byte payload", "bytes"),
        Measure("cost.commands", "client commands per job, draining", "", digits=3),
        Measure("cost.bytes", "bytes on the wire per job, draining", "bytes"),
        Measure("cost.worker", "worker CPU per job, draining", "µs"),
        Measure("cost.server", "server CPU per job, draining", "µs"),
        Measure("idle.commands", "idle worker, commands", "/s", digits=2),
        Measure("idle.cpu", "idle worker, CPU", "% of a core", digits=2),
        Measure("start.seconds", "worker start to its first job", "s", digits=2),
        Measure("start.memory", "worker memory", "MiB"),
        Measure("crash.return", "job back after kill -9 of its worker", "s", digits=1),
    )
}
GROUPS: Final = tuple(dict.fromkeys(name.partition(".")[0] for name in MEASURES))


@dataclass(frozen=True, slots=True)
class Figure:
    """What one system reached in one measure, over its repeats."""

    system: str
    measure: str
    values: list[float]

    @property
    def best(self) -> float:
        return max(self.values) if MEASURES[self.measure].more_is_better else min(self.values)

    @property
    def spread(self) -> float:
        """How far the repeats lie apart, as a share of the largest."""
        largest = max(map(abs, self.values))
        return (max(self.values) - min(self.values)) / largest if largest else 0.0

    def __str__(self) -> str:
        measure = MEASURES[self.measure]
        return f"{self.best:,.{measure.digits}f} {measure.unit}".rstrip()


@dataclass(slots=True)
class Results:
    """Everything that one run found."""

    date: str = ""
    machine: str = ""
    load: float = 0.0  #: of the machine before the run: anything but a small figure spoils it
    server: str = ""
    python: str = ""
    seconds: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)

    def get(self, system: str, measure: str) -> Figure | None:
        return next((figure for figure in self.figures if (figure.system, figure.measure) == (system, measure)), None)

    def add(self, figure: Figure) -> Figure:
        """What was found so far, with these repeats more."""
        known = self.get(figure.system, figure.measure)
        if known is None:
            self.figures.append(figure)
            return figure
        known.values.extend(figure.values)
        return known

    def note(self, system: str, text: str) -> None:
        notes = self.notes.setdefault(system, [])
        if text not in notes:
            notes.append(text)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Results":
        data = json.loads(path.read_text())
        data["figures"] = [Figure(**fields) for fields in data["figures"]]
        return cls(**data)
