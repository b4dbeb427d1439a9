"""A handle on a job: its id and the client that asks about it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import msgspec

from penstock.api.events import JobEvents, Since
from penstock.client.client import Client
from penstock.engine.answers import Watched
from penstock.engine.read.views import JobRecord, LogLine
from penstock.engine.transport.blocking import blocking
from penstock.errors import BadOption, JobCancelled, JobFailed, JobNotFound, PenstockError, ResultExpired, UnknownKey
from penstock.model.codec import decode_any, shown_arguments, tags_of
from penstock.model.durations import Duration, instant, milliseconds, timeout_seconds
from penstock.model.header import FINISHED, Attempt, Header, State

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt."""

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
    attempt: int  #: number of the running or the last attempt; 0 before the first
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
    attempts: tuple[Failure, ...]  #: the last ten attempts that failed or were cancelled


class Job(msgspec.Struct, Generic[R_co], frozen=True, eq=False, gc=False):
    """A handle on one job. `created` is False when `id` or `unique` found an earlier one.

    It is a Struct because programs keep many: it is created three times as fast, and not tracked by the garbage
    collector.
    """

    _client: Client
    id: str
    _decode: Callable[[bytes], R_co]
    created: bool = True
    _redact: tuple[str, ...] = ()
    _watched: Watched | None = None  #: how it ended, if that is known already

    def __repr__(self) -> str:
        return f"<Job {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id and other._client is self._client

    def __hash__(self) -> int:
        return hash(self.id)

    async def status(self) -> JobStatus:
        """Its state and what happened to it; JobNotFound if nothing is known of it any more."""
        return status_of(await self._client.views.job(self.id), self.id, self._redact)

    status_sync = blocking(status)

    async def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the task's return value.

        JobFailed, JobCancelled, ResultExpired or JobNotFound if there will be none; TimeoutError if there is none yet.
        """
        if self._watched is not None:
            return self._outcome(self._watched)
        seconds = timeout_seconds(timeout)
        if seconds is not None and seconds <= 0:
            return self._outcome(self._ended(await self._client.views.job(self.id)))
        return self._outcome(await self._client.waiter.wait(self.id, seconds))

    result_sync = blocking(result)

    def _ended(self, record: JobRecord | None) -> Watched:
        """How the job ended, for a caller that does not wait."""
        if record is None:
            return Watched("missing", None, b"", [])
        if record.header.state not in FINISHED:
            raise TimeoutError(f"job {self.id} has not ended yet: it is {record.header.state}")
        return Watched(record.header.state, record.header, record.result or b"", record.attempts, record.closed)

    async def cancel(self) -> str:
        """The state it ended in, or `cancelling` for one that runs."""
        (word,) = await self._client.engine.cancel([self.id])
        if word == "missing":
            raise missing(self.id)
        return word

    cancel_sync = blocking(cancel)

    async def retry(self) -> None:
        """Run a dead or cancelled job again, with a fresh budget."""
        check_revived((await self._client.engine.revive([self.id]))[0], self.id)

    retry_sync = blocking(retry)

    async def reschedule(self, *, delay: Duration | None = None, at: datetime | None = None) -> None:
        """Set another time for a job that is scheduled or ready; with a time in the past it is ready now."""
        (word,) = await self._client.engine.reschedule([self.id], _due(delay, at))
        if word == "missing":
            raise missing(self.id)
        if word != "ok":
            raise PenstockError(f"job {self.id} is {word}: only one that is scheduled or ready can be rescheduled")

    reschedule_sync = blocking(reschedule)

    async def run_now(self) -> None:
        """Have a scheduled job run now; a ready one keeps its place in the queue."""
        await self.reschedule(delay=0)

    run_now_sync = blocking(run_now)

    async def explain(self) -> str:
        """Why it is not running, in a sentence."""
        return await self._client.views.explain(self.id)

    explain_sync = blocking(explain)

    async def log(self) -> list[LogLine]:
        """The last lines that its attempts wrote by `current_job().log(text)`, or logged while they ran."""
        return (await self._client.views.log(self.id)).lines

    log_sync = blocking(log)

    def events(self, since: Since = None) -> JobEvents:
        """Its events from the beginning, or from `since` on, until it has ended: an async iterator."""
        return JobEvents(self._client.engine, self.id, since)

    def _outcome(self, watched: Watched) -> R_co:
        header = watched.header
        if header is None:
            raise missing(self.id)
        match header.state:
            case "done" if header.result == 2 or (header.compact and header.result):
                raise ResultExpired(f"job {self.id} is done, but its result is no longer kept (keep_result)")
            case "done":
                if watched.closed is not None:
                    raise _closed(self.id, watched.closed)
                return self._decode(watched.result)
            case "cancelled":
                raise JobCancelled(f"job {self.id} was cancelled: {header.reason}")
            case _:
                raise JobFailed(_failed(self.id, header, watched.attempts))


def _closed(job_id: str, error: PenstockError) -> PenstockError:
    what = f"the result of job {job_id}"
    return UnknownKey(error.key, what) if isinstance(error, UnknownKey) else PenstockError(f"{what}: {error}")


def any_job(client: Client, job_id: str, *, created: bool = False, watched: Watched | None = None) -> Job[Any]:
    """A handle on a job whose task is not known here: its result is plain data, its arguments are hidden."""
    return Job(client, job_id, decode_any, created, ("*",), watched)


def _due(delay: Duration | None, at: datetime | None) -> int:
    if (delay is None) == (at is None):
        raise BadOption("reschedule needs one of delay and at")
    return instant(at) if at is not None else milliseconds(delay or 0, "delay")


def check_revived(word: str, job_id: str) -> None:
    """Raise an error if the engine's answer says that a job could not be run again."""
    if word == "missing":
        raise missing(job_id)
    if word == "taken":
        raise PenstockError(f"job {job_id} cannot run again: another unfinished job has its unique key")
    if word != "ok":
        raise PenstockError(f"job {job_id} is {word}: only a dead or cancelled job can be run again")


def check_discarded(word: str, job_id: str) -> None:
    """Raise an error if the engine's answer says that a job could not be discarded."""
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
    attempts_text = "one attempt" if header.attempt == 1 else f"{header.attempt} attempts"
    text = f"job {job_id} of {header.task} is dead ({header.reason}) after {attempts_text}"
    if not attempts:
        return text
    error = failure(attempts[-1])
    return f"{text}: {error.type}: {error.message}\n\n{error.traceback}".rstrip()


def status_of(record: JobRecord | None, job_id: str, redact: tuple[str, ...]) -> JobStatus:
    """The status in a stored record; JobNotFound if there is none."""
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
    """A failed attempt with its error decoded; an unreadable error is shown as it is stored."""
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
