"""Routes of jobs: list and read them, cancel, retry and reschedule one."""

from dataclasses import fields
from typing import Any, Final

import msgspec
from starlette.responses import Response

from penstock.api.job import Failure, Job, JobStatus, any_job, missing, moment, status_of
from penstock.api.program import Program
from penstock.api.selection import Selection, choose
from penstock.engine.read.views import JobRecord
from penstock.errors import BadArguments
from penstock.http import parsing, scope
from penstock.http.contents import hide_contents
from penstock.http.json_response import json_response
from penstock.http.long_poll import wait_while_connected
from penstock.http.principal import Principal
from penstock.http.route import RequestContext, Route
from penstock.http.schemas.requests import JobsQuery, RescheduleRequest, WaitQuery
from penstock.http.schemas.responses import (
    AttemptAnswer,
    ErrorAnswer,
    JobAnswer,
    LineAnswer,
    LogAnswer,
    Page,
    StateAnswer,
)
from penstock.model.codec import decode_any
from penstock.model.header import FINISHED

_MAX_INDEX_PAGES: Final = 20  #: read for one response, if few jobs match
#: Fields that JobStatus and JobAnswer share.
_COMMON_FIELDS: Final = tuple(
    {field.name for field in fields(JobStatus)} & set(JobAnswer.__struct_fields__) - {"created", "attempts"}
)

# Lists


async def list_jobs(context: RequestContext) -> Response:
    query: JobsQuery = context.query
    return await page_of_jobs(context, query.cursor, query.limit, criteria_of(query))


async def page_of_jobs(context: RequestContext, cursor: str, limit: int, criteria: dict[str, Any]) -> Response:
    """Read a bounded part of an index: a page may have few jobs, or none, and still be followed by another."""
    _check_criteria(context.principal, criteria)
    selection = Selection(context.program.client, choose(**criteria))
    rows: list[JobAnswer] = []
    for _ in range(_MAX_INDEX_PAGES):
        statuses, cursor = await selection.page(cursor, limit - len(rows))
        rows += [shown_to(context.principal, _row(status)) for status in statuses if _is_seen_by(context, status)]
        if not cursor or len(rows) >= limit:
            break
    return json_response({"items": rows, "next": cursor or None})


def _check_criteria(principal: Principal, criteria: dict[str, Any]) -> None:
    if "queue" in criteria:
        scope.require_queue(principal, criteria["queue"])
    if ":" in criteria.get("task", ""):  # without its module it may be any: others are left out below
        scope.require_task(principal, criteria["task"])
    if "error" in criteria:  # whoever may ask whether an error has these letters can find out all of it
        scope.require_contents(principal, "the filter error")


def _is_seen_by(context: RequestContext, status: JobStatus) -> bool:
    return context.principal.uses(status.queue, status.task)


def shown_to(principal: Principal, row: JobAnswer) -> JobAnswer:
    return row if principal.reads_contents else hide_contents(row)


def criteria_of(request: msgspec.Struct) -> dict[str, Any]:
    """The filters that are set in a query or a body, as `choose` takes them."""
    values = {name: getattr(request, name) for name in request.__struct_fields__ if name not in {"cursor", "limit"}}
    return {name: value for name, value in values.items() if value not in {"", msgspec.UNSET}}


# One job


async def get_job(context: RequestContext) -> Response:
    query: WaitQuery = context.query
    job_id = context.path["id"]
    record = await _record(context, job_id)
    scope.require_job(context.principal, record)
    if query.wait and record.header.state not in FINISHED:
        end = context.program.client().waiter.wait(job_id)
        await wait_while_connected(context.request.receive, end, query.wait)
        record = await _record(context, job_id)
    explain = await context.program.client().views.explain(job_id) if query.explain else ""
    return json_response(shown_to(context.principal, job_answer(record, context.program, explain)))


async def get_log(context: RequestContext) -> Response:
    scope.require_job(context.principal, await _record(context, context.path["id"]))
    log = await context.program.client().views.log(context.path["id"])
    lines = [LineAnswer(moment(line.at), line.attempt, line.level, line.text) for line in log.lines]
    return json_response(LogAnswer(log.gone, lines))


async def _record(context: RequestContext, job_id: str) -> JobRecord:
    record = await context.program.client().views.job(job_id)
    if record is None:
        raise missing(job_id)
    return record


def job_answer(record: JobRecord, program: Program, explain: str = "") -> JobAnswer:
    """A job with its result. Its task knows which arguments are secret; without the task all are hidden."""
    task = program.tasks.get(record.header.task)
    status = status_of(record, record.id, task.options.redact if task else ("*",))
    row = _row(status)
    row.explain = explain
    _add_outcome(row, record, status)
    return row


def _row(status: JobStatus) -> JobAnswer:
    """A job as lists show it: without its result."""
    values = {name: value for name in _COMMON_FIELDS if (value := getattr(status, name)) is not None}
    attempts = [_attempt(failure) for failure in status.attempts]
    return JobAnswer(created=False, created_at=status.created, attempts=attempts, **values)


def _add_outcome(row: JobAnswer, record: JobRecord, status: JobStatus) -> None:
    header = record.header
    match header.state:
        case "done" if header.result == 2 or (header.compact and header.result):
            row.error = ErrorAnswer("ResultExpired", "it is done, but its result is no longer kept (keep_result)")
        case "done":
            row.result = decode_any(record.result or b"")
        case "cancelled":
            row.error = ErrorAnswer("JobCancelled", header.reason)
        case "dead" if status.attempts:
            row.error = _attempt(status.attempts[-1]).error
        case "dead":
            row.error = ErrorAnswer("JobFailed", header.reason)


def _attempt(failure: Failure) -> AttemptAnswer:
    return AttemptAnswer(
        failure.number,
        failure.outcome,
        failure.worker,
        failure.started,
        failure.ended,
        ErrorAnswer(failure.type, failure.message, failure.traceback),
    )


# Actions


async def cancel(context: RequestContext) -> Response:
    job = await _job(context)
    return json_response(StateAnswer(job.id, await job.cancel()))


async def retry(context: RequestContext) -> Response:
    job = await _job(context)
    await job.retry()
    return json_response(StateAnswer(job.id, (await _record(context, job.id)).header.state))


async def reschedule(context: RequestContext) -> Response:
    request: RescheduleRequest = parsing.decode(context.body, RescheduleRequest)
    job = await _job(context)
    if request.at is not msgspec.UNSET and request.delay is msgspec.UNSET:
        await job.reschedule(at=request.at)
    elif request.delay is not msgspec.UNSET and request.at is msgspec.UNSET:
        await job.reschedule(delay=request.delay)
    else:
        raise BadArguments("give either delay or at")
    return json_response(StateAnswer(job.id, (await _record(context, job.id)).header.state))


async def _job(context: RequestContext) -> Job[Any]:
    """The job to act on."""
    await scope.check_job_in_path(context)
    return any_job(context.program.client(), context.path["id"])


_PATH: Final = "/api/v1/jobs/{id}"
_STATE: Final = {200: StateAnswer}
ROUTES: Final = [
    Route("GET", "/api/v1/jobs", list_jobs, "Jobs by filter", responses={200: Page[JobAnswer]}, query=JobsQuery),
    Route(
        "GET",
        _PATH,
        get_job,
        "One job; with wait, once it has ended",
        enqueuer=True,
        responses={200: JobAnswer},
        query=WaitQuery,
    ),
    Route("GET", f"{_PATH}/log", get_log, "The last lines that it wrote", contents=True, responses={200: LogAnswer}),
    Route("POST", f"{_PATH}/cancel", cancel, "Cancel a job", role="operator", responses=_STATE),
    Route("POST", f"{_PATH}/retry", retry, "Run a dead or cancelled job again", role="operator", responses=_STATE),
    Route(
        "POST",
        f"{_PATH}/reschedule",
        reschedule,
        "Give a waiting job another time",
        role="operator",
        responses=_STATE,
        body=RescheduleRequest,
    ),
]
