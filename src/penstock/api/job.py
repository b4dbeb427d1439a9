"""A job that you can ask about: its data and the engine that has it."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import msgspec

from penstock.api.context import running_on_loop
from penstock.api.events import JobEvents, Since
from penstock.client.client import Client
from penstock.engine.answers import Watched
from penstock.engine.read.views import JobRecord, LogLine
from penstock.errors import BadOption, JobCancelled, JobFailed, JobNotFound, PenstockError, ResultExpired
from penstock.model.codec import decode_any, shown_arguments, tags_of
from penstock.model.durations import Duration, instant, milliseconds, patience
from penstock.model.header import FINISHED, Attempt, Header, State

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed try."""

    number: int
    outcome: str
    worker: str
    started: datetime
    ended: datetime
    type: str
    message: str
    traceback: str


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What is known of a job at one moment."""

    id: str
    state: State
    reason: str
    task: str
    queue: str
    priority: int
    attempt: int  #: of the running or the last try; 0 before the first
    retries: int
    created: datetime
    since: datetime  #: when it entered this state
    due: datetime | None
    expires: datetime | None
    started: datetime | None
    finished: datetime | None
    worker: str | None
    cancelling: bool
    progress: tuple[float, float | None, str] | None  #: done, total, message
    arguments: dict[str, Any] | None  #: by name, secrets hidden (`redact`); None once it is done
    tags: tuple[str, ...]
    attempts: tuple[Failure, ...]  #: tries that failed or were cancelled, the last ten


class Job(msgspec.Struct, Generic[R_co], frozen=True, eq=False, gc=False):
    """A handle on one job. `created` is False when `id` or `unique` found an earlier one.

    Programs that enqueue a lot keep many: as a Struct it is made in a third of the time, and the garbage collector
    leaves it alone.
    """

    _client: Client
    id: str
    _decode: Callable[[bytes], R_co]
    created: bool = True
    _redact: tuple[str, ...] = ()
    _watched: Watched | None = None  #: how it ended, if that came along

    def __repr__(self) -> str:
        return f"<Job {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id and other._client is self._client

    def __hash__(self) -> int:
        return hash(self.id)

    async def status(self) -> JobStatus:
        """Where it is and what happened to it; JobNotFound if nothing is known of it any more."""
        return status_of(await self._client.views.job(self.id), self.id, self._redact)

    def status_sync(self) -> JobStatus:
        return status_of(self._client.views.job_sync(self.id), self.id, self._redact)

    async def result(self, timeout: Duration | None = None) -> R_co:
        """The task's return value, once it is there.

        JobFailed, JobCancelled, ResultExpired or JobNotFound if it will never be; TimeoutError if it is not yet.
        """
        if self._watched is not None:
            return self._outcome(self._watched)
        seconds = patience(timeout)
        if seconds is not None and seconds <= 0:
            return self._outcome(self._ended(await self._client.views.job(self.id)))
        try:
            async with asyncio.timeout(seconds):
                return self._outcome(await self._client.waiter.wait(self.id))
        except TimeoutError:
            raise TimeoutError(f"job {self.id} has not ended within {seconds} s") from None

    def result_sync(self, timeout: Duration | None = None) -> R_co:
        """The same from blocking code."""
        if self._watched is not None:
            return self._outcome(self._watched)
        if running_on_loop():
            raise PenstockError("result_sync() would block the event loop that may have to run the job: await result()")
        seconds = patience(timeout)
        if seconds is not None and seconds <= 0:
            return self._outcome(self._ended(self._client.views.job_sync(self.id)))
        return self._outcome(self._client.wait_sync(self.id, seconds))

    def _ended(self, record: JobRecord | None) -> Watched:
        """How it has ended, for those who do not wait."""
        if record is None:
            return Watched("missing", None, b"", [])
        if record.header.state not in FINISHED:
            raise TimeoutError(f"job {self.id} has not ended yet: it is {record.header.state}")
        return Watched(record.header.state, record.header, record.result or b"", record.attempts)

    async def cancel(self) -> str:
        """The state it ended in, or `cancelling` for one that runs."""
        return self._cancelled((await self._client.engine.cancel([self.id]))[0])

    def cancel_sync(self) -> str:
        return self._cancelled(self._client.engine.cancel([self.id]).sync()[0])

    async def retry(self) -> None:
        """Run a dead or cancelled job again, with a fresh budget."""
        revived((await self._client.engine.revive([self.id]))[0], self.id)

    def retry_sync(self) -> None:
        revived(self._client.engine.revive([self.id]).sync()[0], self.id)

    async def reschedule(self, *, delay: Duration | None = None, at: datetime | None = None) -> None:
        """Another time for a job that is scheduled or waits in line; in the past, it is ready now."""
        self._rescheduled((await self._client.engine.reschedule([self.id], _due(delay, at)))[0])

    def reschedule_sync(self, *, delay: Duration | None = None, at: datetime | None = None) -> None:
        self._rescheduled(self._client.engine.reschedule([self.id], _due(delay, at)).sync()[0])

    async def run_now(self) -> None:
        """Have a scheduled job run now; one that waits in line stays where it is."""
        await self.reschedule(delay=0)

    def run_now_sync(self) -> None:
        self.reschedule_sync(delay=0)

    async def explain(self) -> str:
        """Why it is not running, in a sentence."""
        return await self._client.views.explain(self.id)

    def explain_sync(self) -> str:
        if running_on_loop():
            raise PenstockError("explain_sync() would block this event loop: await explain()")
        return self._client.run(self._client.views.explain(self.id))

    async def log(self) -> list[LogLine]:
        """The last lines that its attempts wrote: by `current_job().log(text)`, or logged while they ran."""
        return (await self._client.views.log(self.id)).lines

    def log_sync(self) -> list[LogLine]:
        return self._client.run(self.log())

    def events(self, since: Since = None) -> JobEvents:
        """What happened to it and happens, as it happens, until it has ended: an async iterator."""
        return JobEvents(self._client.engine, self.id, since)

    def _cancelled(self, word: str) -> str:
        if word == "missing":
            raise missing(self.id)
        return word

    def _rescheduled(self, word: str) -> None:
        if word == "missing":
            raise missing(self.id)
        if word != "ok":
            raise PenstockError(f"job {self.id} is {word}: only one that is scheduled or ready can be rescheduled")

    def _outcome(self, watched: Watched) -> R_co:
        header = watched.header
        if header is None:
            raise missing(self.id)
        match header.state:
            case "done" if header.result == 2 or (header.compact and header.result):
                raise ResultExpired(f"job {self.id} is done, but its result is no longer kept (keep_result)")
            case "done":
                return self._decode(watched.result)
            case "cancelled":
                raise JobCancelled(f"job {self.id} was cancelled: {header.reason}")
            case _:
                raise JobFailed(_failed(self.id, header, watched.attempts))


def any_job(client: Client, job_id: str, *, created: bool = False, watched: Watched | None = None) -> Job[Any]:
    """A handle on a job of a task that is not at hand: its result is plain data, its arguments are hidden."""
    return Job(client, job_id, decode_any, created, ("*",), watched)


def _due(delay: Duration | None, at: datetime | None) -> int:
    if (delay is None) == (at is None):
        raise BadOption("reschedule needs one of delay and at")
    return instant(at) if at is not None else milliseconds(delay or 0, "delay")


def revived(word: str, job_id: str) -> None:
    """What the engine said to running a job again, as an error if it could not be."""
    if word == "missing":
        raise missing(job_id)
    if word == "taken":
        raise PenstockError(f"job {job_id} cannot run again: another unfinished job has its unique key")
    if word != "ok":
        raise PenstockError(f"job {job_id} is {word}: only a dead or cancelled job can be run again")


def discarded(word: str, job_id: str) -> None:
    """What the engine said to forgetting a job, as an error if it could not be."""
    if word == "missing":
        raise missing(job_id)
    if word == "needed":
        raise PenstockError(
            f"job {job_id} is a member of a batch that has not ended, which counts it: seal or cancel the batch, and"
            " discard the job after its end"
        )
    if word != "ok":
        raise PenstockError(f"job {job_id} is {word}: only a finished job can be discarded")


def missing(job_id: str) -> JobNotFound:
    return JobNotFound(
        f"no job {job_id!r} is known here: it was never enqueued, or finished long ago and was forgotten"
    )


def _failed(job_id: str, header: Header, attempts: list[Attempt]) -> str:
    number = "one attempt" if header.attempt == 1 else f"{header.attempt} attempts"
    text = f"job {job_id} of {header.task} is dead ({header.reason}) after {number}"
    if not attempts:
        return text
    error = failure(attempts[-1])
    return f"{text}: {error.type}: {error.message}\n\n{error.traceback}".rstrip()


def status_of(record: JobRecord | None, job_id: str, redact: tuple[str, ...]) -> JobStatus:
    """What a record says; JobNotFound if there is none."""
    if record is None:
        raise missing(job_id)
    header = record.header
    return JobStatus(
        id=record.id,
        state=header.state or "ready",
        reason=header.reason,
        task=header.task,
        queue=header.queue,
        priority=header.priority,
        attempt=header.attempt,
        retries=header.retries,
        created=moment(header.created),
        since=moment(header.since),
        due=moment(header.due) if header.due else None,
        expires=moment(header.expires) if header.expires else None,
        started=moment(header.started) if header.started else None,
        finished=moment(header.since) if header.state in FINISHED else None,
        worker=(header.last if header.state in FINISHED else header.claim).split("\x1f")[0] or None,
        cancelling=bool(header.cancelling),
        progress=_progress(header.progress),
        arguments=shown_arguments(record.payload, redact),
        tags=tags_of(record.payload),
        attempts=tuple(failure(attempt) for attempt in record.attempts),
    )


def failure(attempt: Attempt) -> Failure:
    """A failed try with its error unpacked; an unreadable error is shown as it is."""
    try:
        error: dict[str, Any] = json.loads(attempt.error)
        kind, message, trace = (str(error.get(name, "")) for name in ("type", "message", "traceback"))
    except (ValueError, AttributeError):
        kind, message, trace = "", attempt.error, ""
    return Failure(
        attempt.number,
        attempt.outcome,
        attempt.worker,
        moment(attempt.started),
        moment(attempt.ended),
        kind,
        message,
        trace,
    )


def _progress(text: str) -> tuple[float, float | None, str] | None:
    if not text:
        return None
    done, total, message = json.loads(text)
    return done, total, message


def moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
