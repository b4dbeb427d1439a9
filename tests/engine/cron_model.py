"""Schedules in plain Python: the part of the model that makes their jobs, each tick once."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from penstock.engine.record.record import read_new
from penstock.model.schedule import ScheduleSpec, Standing, Ticks, job_of

if TYPE_CHECKING:
    from tests.engine.model import Model


class Crons:
    def __init__(self, model: "Model") -> None:
        self.model = model
        self.states: dict[str, tuple[ScheduleSpec, Standing]] = {}
        self.keepers: set[tuple[str, str]] = set()  #: schedule, worker whose code has it

    def set_cron(self, schedule: str, spec: ScheduleSpec, first: tuple[int, int], *, source: Any, worker: str) -> str:
        before = self.states.get(schedule)
        if before and source == "code" and before[1].source == "set":
            return "kept"
        if worker in self.model.workers:
            self.keepers.add((schedule, worker))
        word = "changed" if before else "made"
        if before and (before[1].version, before[1].source) == (spec.version, source):
            word = "same"
            if before[1].status != "orphaned":
                return word
        fresh = Standing("", source, "active", "", "", "", "", 0, 0, 0)
        standing = before[1] if before else fresh
        if standing.pace != spec.pace:
            standing = replace(standing, pace=spec.pace, next=first[0], due=first[1])
        standing = replace(
            standing,
            version=spec.version,
            source=source,
            changed=self.model.now,
            overlap=spec.overlap,
            task=spec.task,
            queue=spec.queue,
            status="active" if standing.status == "orphaned" else standing.status,
        )
        self._stand(schedule, spec, standing)
        self._tell_of(word, "set_cron", schedule)
        return word

    def remove_cron(self, schedule: str) -> str:
        if schedule not in self.states:
            return "missing"
        self._tell_of("", "remove_cron", schedule)
        del self.states[schedule]
        self.keepers = {(one, worker) for one, worker in self.keepers if one != schedule}
        return "ok"

    def pause_cron(self, schedule: str) -> str:
        if schedule not in self.states or self.states[schedule][1].status == "paused":
            return "paused" if schedule in self.states else "missing"
        spec, standing = self.states[schedule]
        self._stand(schedule, spec, replace(standing, status="paused"))
        self._tell_of("", "pause_cron", schedule)
        return "ok"

    def resume_cron(self, schedule: str, version: str, first: tuple[int, int]) -> str:
        if schedule not in self.states:
            return "missing"
        spec, standing = self.states[schedule]
        if standing.status != "paused" or standing.version != version:
            return standing.status if standing.status != "paused" else "changed"
        if standing.due <= self.model.now:
            standing = replace(standing, next=first[0], due=first[1])
        self._stand(schedule, spec, replace(standing, status="active"))
        self._tell_of("", "resume_cron", schedule)
        return "ok"

    def run_cron(self, schedule: str, spec: ScheduleSpec, job_id: str) -> str:
        if schedule not in self.states or self.states[schedule][1].version != spec.version:
            return "changed" if schedule in self.states else "missing"
        standing = self.states[schedule][1]
        if job_id in self.model.jobs or job_id in standing.line:
            return "made" if job_id in self.model.jobs else "queued"
        behind = standing.overlap != "allow" and (bool(standing.line) or self._unfinished(standing.last))
        if behind and (standing.overlap == "skip" or len(standing.line) >= 200):
            return "busy"
        standing, _ = self._drain(schedule, spec, replace(standing, line=[*standing.line, job_id, self.model.now]))
        self._stand(schedule, spec, standing)
        return "made" if job_id in self.model.jobs else "queued" if behind else "unique"

    def due_crons(self, limit: int, also: Sequence[str]) -> tuple[int, int, list[str]]:
        looks = sorted((one.look, schedule) for schedule, (_, one) in self.states.items() if one.status == "active")
        due = [schedule for at, schedule in looks if at <= self.model.now][:limit]
        waiting = [schedule for schedule in also if schedule in self.states and self.states[schedule][1].line]
        return looks[0][0] if looks else -1, self.model.now, due + waiting

    def tick(self, schedule: str, spec: ScheduleSpec, expected: int, ticks: Ticks) -> tuple[str, int]:
        if schedule not in self.states:
            return "missing", 0
        standing, word = self.states[schedule][1], "ok"
        if standing.status != "active" or standing.version != spec.version:
            return standing.status if standing.status != "active" else "changed", 0
        if standing.source == "code" and not any((schedule, worker) in self.keepers for worker in self.model.workers):
            if self.model.workers:
                self._stand(schedule, spec, replace(standing, status="orphaned"))
            return "orphaned" if self.model.workers else "alone", 0
        if expected >= 0 and standing.next != expected:
            word = "stale"
            if not standing.line:
                return word, 0
        elif expected >= 0 and standing.due > self.model.now:
            return "early", 0
        elif expected >= 0 and len(standing.line) >= 200:
            word = "full"
        elif expected >= 0:
            line = [*standing.line, *(value for nominal in ticks.run for value in (job_of(schedule, nominal), nominal))]
            standing = replace(standing, next=ticks.next, due=ticks.due, line=line)
            if ticks.missed:
                standing = _recall(standing, (ticks.missed, self.model.now, "", "missed"), missed=standing.missed + 1)
        standing, made = self._drain(schedule, spec, standing)
        self._stand(schedule, spec, standing)
        return word, made

    def _drain(self, schedule: str, spec: ScheduleSpec, standing: Standing) -> tuple[Standing, int]:
        rest, made, pairs = list[Any](), 0, zip(standing.line[::2], standing.line[1::2], strict=True)
        for job_id, nominal in [(str(job_id), int(nominal)) for job_id, nominal in pairs]:
            if standing.overlap == "queue" and self._unfinished(standing.last):
                rest += [job_id, nominal]
                continue
            busy = standing.overlap == "skip" and self._unfinished(standing.last)
            word = "skipped" if busy else self._make(schedule, spec, job_id)
            row = (nominal, self.model.now, job_id if word == "made" else "", word)
            if word == "made":
                made += 1
                standing = _recall(standing, row, last=job_id, made=standing.made + 1)
            else:
                standing = _recall(standing, row, skipped=standing.skipped + 1)
        return replace(standing, line=rest), made

    def _make(self, schedule: str, spec: ScheduleSpec, job_id: str) -> str:
        if job_id in self.model.jobs:
            return "made"
        header = read_new(spec.form)
        if self.model.holder(header.unique):
            return "unique"
        self.model.make(job_id, header, spec.payload, f"cron {schedule}")
        return "made"

    def _unfinished(self, job_id: str) -> bool:
        return job_id in self.model.unfinished()

    def _stand(self, schedule: str, spec: ScheduleSpec, standing: Standing) -> None:
        look = min(standing.due, self.model.now + 10_000) if standing.line else standing.due
        look = self.model.now + 10_000 if len(standing.line) >= 200 else look
        self.states[schedule] = (spec, replace(standing, look=look))

    def _tell_of(self, note: str, verb: str, schedule: str) -> None:
        queue = self.states[schedule][1].queue
        self.model.last_event.setdefault((verb, queue), []).append((schedule, 0, note))


def _recall(standing: Standing, row: tuple[int, int, str, str], **changes: Any) -> Standing:
    return replace(standing, history=[*standing.history, row][-10:], **changes)
