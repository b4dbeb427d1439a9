"""Routes of jobs: look at them, steer them."""

from dataclasses import fields
from typing import Any, Final

import msgspec
from starlette.responses import Response

from penstock.api.job import Failure, Job, JobStatus, any_job, missing, moment, status_of
from penstock.api.program import Program
from penstock.engine.read.views import JobRecord
from penstock.errors import BadArguments
from penstock.http import parsing
from penstock.http.json_response import answer
from penstock.http.long_poll import patiently
from penstock.http.route import RequestContext, Route
from penstock.http.schemas.requests import RescheduleRequest, WaitQuery
from penstock.http.schemas.responses import AttemptAnswer, ErrorAnswer, JobAnswer, LineAnswer, LogAnswer, StateAnswer
from penstock.model.codec import decode_any
from penstock.model.header import FINISHED

#: what a status and an answer call by the same name
_TOLD: Final = tuple(
    {one.name for one in fields(JobStatus)} & set(JobAnswer.__struct_fields__) - {"created", "attempts"}
)

# Looking


async def get(ask: RequestContext) -> Response:
    query: WaitQuery = ask.query
    job_id = ask.path["id"]
    record = await _record(ask, job_id)
    if query.wait and record.header.state not in FINISHED:
        await patiently(ask.request, ask.program.client().waiter.wait(job_id), query.wait)
        record = await _record(ask, job_id)
    explain = await ask.program.client().views.explain(job_id) if query.explain else ""
    return answer(shown(record, ask.program, explain))


async def _record(ask: RequestContext, job_id: str) -> JobRecord:
    record = await ask.program.client().views.job(job_id)
    if record is None:
        raise missing(job_id)
    return record


def shown(record: JobRecord, program: Program, explain: str = "") -> JobAnswer:
    """A job as it may be shown: which arguments are secret is known to its task; without it, none are shown."""
    task = program.tasks.get(record.header.task)
    status = status_of(record, record.id, task.options.redact if task else ("*",))
    found = from_status(status)
    found.explain = explain
    _add_outcome(found, record, status)
    return found


def from_status(status: JobStatus) -> JobAnswer:
    """A job as lists have it: without its result."""
    told = {name: value for name in _TOLD if (value := getattr(status, name)) is not None}
    attempts = [_attempt(one) for one in status.attempts]
    return JobAnswer(created=False, created_at=status.created, attempts=attempts, **told)


async def log(ask: RequestContext) -> Response:
    await _record(ask, ask.path["id"])
    found = await ask.program.client().views.log(ask.path["id"])
    lines = [LineAnswer(moment(one.at), one.attempt, one.level, one.text) for one in found.lines]
    return answer(LogAnswer(found.gone, lines))


def _add_outcome(found: JobAnswer, record: JobRecord, status: JobStatus) -> None:
    header = record.header
    match header.state:
        case "done" if header.result == 2 or (header.compact and header.result):
            found.error = ErrorAnswer("ResultExpired", "it is done, but its result is no longer kept (keep_result)")
        case "done":
            found.result = decode_any(record.result or b"")
        case "cancelled":
            found.error = ErrorAnswer("JobCancelled", header.reason)
        case "dead" if status.attempts:
            found.error = _attempt(status.attempts[-1]).error
        case "dead":
            found.error = ErrorAnswer("JobFailed", header.reason)


def _attempt(failure: Failure) -> AttemptAnswer:
    return AttemptAnswer(
        failure.number,
        failure.outcome,
        failure.worker,
        failure.started,
        failure.ended,
        ErrorAnswer(failure.type, failure.message, failure.traceback),
    )


# Steering


async def cancel(ask: RequestContext) -> Response:
    job = _handle(ask)
    return answer(StateAnswer(job.id, await job.cancel()))


async def retry(ask: RequestContext) -> Response:
    job = _handle(ask)
    await job.retry()
    return answer(StateAnswer(job.id, (await _record(ask, job.id)).header.state))


async def reschedule(ask: RequestContext) -> Response:
    given: RescheduleRequest = parsing.decode(ask.body, RescheduleRequest)
    job = _handle(ask)
    if given.at is not msgspec.UNSET and given.delay is msgspec.UNSET:
        await job.reschedule(at=given.at)
    elif given.delay is not msgspec.UNSET and given.at is msgspec.UNSET:
        await job.reschedule(delay=given.delay)
    else:
        raise BadArguments("give either delay or at")
    return answer(StateAnswer(job.id, (await _record(ask, job.id)).header.state))


def _handle(ask: RequestContext) -> Job[Any]:
    return any_job(ask.program.client(), ask.path["id"])


ROUTES: Final = [
    Route(
        "GET",
        "/api/v1/jobs/{id}",
        get,
        "One job; with wait, once it has ended",
        answers={200: JobAnswer},
        query=WaitQuery,
    ),
    Route("GET", "/api/v1/jobs/{id}/log", log, "The last lines that it wrote", answers={200: LogAnswer}),
    Route("POST", "/api/v1/jobs/{id}/cancel", cancel, "Cancel a job", role="operator", answers={200: StateAnswer}),
    Route(
        "POST",
        "/api/v1/jobs/{id}/retry",
        retry,
        "Run a dead or cancelled job again",
        role="operator",
        answers={200: StateAnswer},
    ),
    Route(
        "POST",
        "/api/v1/jobs/{id}/reschedule",
        reschedule,
        "Give a waiting job another time",
        role="operator",
        answers={200: StateAnswer},
        body=RescheduleRequest,
    ),
]
