"""A handle on a schedule: ask about it, change it, run it."""

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from penstock.api.job import Job, any_job, moment
from penstock.api.task import Call
from penstock.client.client import Client
from penstock.engine.read.views import CronRecord
from penstock.engine.record.record import pack
from penstock.errors import BadArguments, BadOption, PenstockError, ScheduleNotFound
from penstock.model import schedule as rules
from penstock.model.durations import Duration
from penstock.model.schedule import CatchUp, Overlap, Rule, ScheduleSpec


@dataclass(frozen=True, slots=True)
class Tick:
    """The outcome of one tick."""

    nominal: datetime
    at: datetime
    job: str  #: id of the job that it made; empty if it made none
    outcome: str  #: made, skipped, missed (with the ticks after it) or unique


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """What is known of a schedule at one moment."""

    id: str
    state: str  #: active, paused, or orphaned: no live worker's code has it
    source: str  #: code, or set at run time
    task: str
    queue: str
    rule: str
    words: str  #: the rule in words
    tz: str
    jitter: float  #: seconds
    catch_up: CatchUp
    overlap: Overlap
    next: datetime | None  #: when the next tick is due
    upcoming: tuple[datetime, ...]  #: the next nominal times
    last_job: str
    made: int
    skipped: int
    missed: int
    waiting: int  #: ticks that wait for the one before them
    history: tuple[Tick, ...]  #: the last ten ticks


def make_spec(
    call: Call[Any],
    rule: Rule,
    *,
    jitter: Duration = 0,
    catch_up: CatchUp = "latest",
    overlap: Overlap = "skip",
) -> ScheduleSpec:
    """A checked schedule of this call."""
    if not isinstance(call, Call):
        raise BadArguments(f"a schedule needs a call, such as task.call(1), not {call!r}")
    if call.options.id or call.options.at:
        raise BadOption(f"{call.task.name}: a scheduled job cannot have id or at: they follow from its schedule")
    header = replace(call.job.header, nonce="")
    return ScheduleSpec(
        kind="cron" if isinstance(rule, rules.Cron) else "every",
        text=rule.text if isinstance(rule, rules.Cron) else str(rule.period),
        tz=rule.tz if isinstance(rule, rules.Cron) else "UTC",
        jitter=rules.jitter(jitter, rule),
        catch_up=rules.catch_up(catch_up),
        overlap=rules.overlap(overlap),
        task=header.task,
        queue=header.queue,
        form=pack(header),
        payload=call.job.payload,
    )


def make_rule(cron: str | None, every: Duration | None, tz: str) -> Rule:
    if (cron is None) == (every is None):
        raise BadOption('a schedule needs either cron="*/5 * * * *" or every="30s"')
    return rules.every(every) if every is not None else rules.cron(cron or "", tz)


class Schedule:
    """A handle on one schedule by its id, whether it exists or not."""

    __slots__ = ("_client", "id")

    def __init__(self, client: Client, schedule: str) -> None:
        self._client = client
        self.id = rules.schedule_id(schedule)

    def __repr__(self) -> str:
        return f"<Schedule {self.id}>"

    async def set(
        self,
        call: Call[Any],
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str = "UTC",
        jitter: Duration = 0,
        catch_up: CatchUp = "latest",
        overlap: Overlap = "skip",
    ) -> str:
        """Make or change it; returns `made`, `changed` or `same`. It wins over the code until it is removed."""
        spec = make_spec(call, make_rule(cron, every, tz), jitter=jitter, catch_up=catch_up, overlap=overlap)
        return await self._client.engine.set_cron(self.id, spec, await self._first(spec), source="set")

    async def remove(self) -> None:
        """Forget it; its jobs stay. A schedule in the code comes back when a worker starts: pause that one instead."""
        self._check(await self._client.engine.remove_cron(self.id))

    async def pause(self) -> bool:
        """Stop its ticks until `resume`; returns whether that changed anything."""
        return self._check(await self._client.engine.pause_cron(self.id)) == "ok"

    async def resume(self) -> bool:
        """Continue with the next tick from now; returns whether that changed anything."""
        while True:
            spec = (await self._record()).spec
            word = self._check(await self._client.engine.resume_cron(self.id, spec.version, await self._first(spec)))
            if word != "changed":
                return word == "ok"

    async def run(self) -> Job[Any]:
        """Make one of its jobs now, even while it is paused; `overlap` applies."""
        job_id = f"{self.id}@run-{secrets.token_hex(6)}"
        while True:
            record = await self._record()
            word = self._check(await self._client.engine.run_cron(self.id, record.spec, job_id))
            if word in {"made", "queued"}:
                return any_job(self._client, job_id, created=word == "made")
            if word == "busy":
                raise PenstockError(f"schedule {self.id}: job {record.standing.last} is unfinished (overlap)")
            if word == "unique":
                raise PenstockError(f"schedule {self.id}: an unfinished job has the unique key of its jobs")

    async def status(self) -> ScheduleStatus:
        """Its state and its ticks; ScheduleNotFound if there is none of this id."""
        return status_of(await self._record(), await self._client.views.now())

    async def _first(self, spec: ScheduleSpec) -> tuple[int, int]:
        return rules.first(self.id, spec, await self._client.views.now())

    async def _record(self) -> CronRecord:
        record = await self._client.views.cron(self.id)
        if record is None:
            raise _missing(self.id)
        return record

    def _check(self, word: str) -> str:
        if word == "missing":
            raise _missing(self.id)
        return word


def status_of(record: CronRecord, now: int) -> ScheduleStatus:
    spec, standing = record.spec, record.standing
    orphaned = standing.status == "orphaned" or record.orphaned
    state = "paused" if standing.status == "paused" else "orphaned" if orphaned else "active"
    begin = max(standing.next - 1, now) if standing.next > now else now
    return ScheduleStatus(
        id=record.id,
        state=state,
        source=standing.source,
        task=standing.task,
        queue=standing.queue,
        rule=spec.text if spec.kind == "cron" else spec.rule.explain(),
        words=spec.rule.explain(),
        tz=spec.tz,
        jitter=spec.jitter / 1000,
        catch_up=spec.catch_up,
        overlap=spec.overlap,
        next=moment(standing.due) if state == "active" else None,
        upcoming=tuple(map(moment, rules.upcoming(spec, begin, 3))),
        last_job=standing.last,
        made=standing.made,
        skipped=standing.skipped,
        missed=standing.missed,
        waiting=len(standing.line) // 2,
        history=tuple(Tick(moment(nominal), moment(at), job, word) for nominal, at, job, word in standing.history),
    )


def in_zone(at: datetime, tz: str) -> str:
    """An instant in the local time of a zone."""
    local = at.astimezone(UTC if tz == "UTC" else rules.zone_of(tz))
    return f"{local:%a %d %b %Y %H:%M:%S %Z}"


def _missing(schedule: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"no schedule {schedule!r} is known here; `penstock cron ls` lists them")
