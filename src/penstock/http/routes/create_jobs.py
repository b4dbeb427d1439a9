"""`POST /api/v1/jobs`: store a job, or an array of them with a result per item."""

import asyncio
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import quote

import msgspec
from starlette.responses import Response

from penstock.api.batch_options import refusal as batch_refusal
from penstock.api.program import Program
from penstock.engine.answers import EnqueueAnswer, checked
from penstock.engine.engine import NewJob
from penstock.errors import PenstockError
from penstock.http import parsing
from penstock.http.build_job import IDEMPOTENCY_HEADER, Submission, build_job, idempotency_key, key_reused
from penstock.http.json_response import json_response
from penstock.http.problems import HttpError, Refused, problem_of
from penstock.http.request_lanes import keep_declared_lanes
from penstock.http.route import RequestContext, Route
from penstock.http.schemas.requests import JobRequest
from penstock.http.schemas.responses import EnqueueResult, JobAnswer

if TYPE_CHECKING:
    from penstock.model.header import State

MAX_JOBS: Final = 1_000  #: in one array
RESPONSES: Final = {200: JobAnswer | list[EnqueueResult], 201: JobAnswer}
BODY: Final = JobRequest | list[JobRequest]
_STORED: Final = frozenset({"created", "exists", "unique"})


async def post_jobs(context: RequestContext) -> Response:
    return await create_jobs(context, Submission(context.principal, idempotency_key(context)))


async def create_jobs(context: RequestContext, submission: Submission) -> Response:
    """Store the job or the jobs of this request's body."""
    if context.body.lstrip()[:1] == b"[":
        return await _create_many(context, submission)
    (job,) = await _with_lanes(context, [build_job(context.program, context.body, submission)])
    answer = _check(await context.program.client().producer.enqueue(job), job, submission)
    created = answer.word == "created"
    context.details.append(f"{job.header.task} {answer.id}")
    headers = {"Location": location(context, "jobs", answer.id)}
    row = JobAnswer(answer.id, cast("State", answer.state), created)
    return json_response(row, 201 if created else 200, headers)


def location(context: RequestContext, resource: str, name: str) -> str:
    return f"{context.request.scope.get('root_path', '')}/api/v1/{resource}/{quote(name, safe='')}"


async def _create_many(context: RequestContext, submission: Submission) -> Response:
    """Store the valid jobs, and answer with a result per item in the same order: a bad item stops no other."""
    items = parsing.decode(context.body, list[msgspec.Raw])
    if len(items) > MAX_JOBS:
        raise HttpError(413, f"{len(items):,} jobs in one array: send at most {MAX_JOBS:,}")
    results = [EnqueueResult() for _ in items]
    jobs: dict[int, NewJob] = {}
    for index, raw in enumerate(items):
        try:
            jobs[index] = build_job(context.program, raw, submission, index)
        except (HttpError, PenstockError) as error:
            results[index] = EnqueueResult(problem=problem_of(error))
            if isinstance(error, Refused):
                context.details.append(f"item {index} refused: {error}")
        if index % 100 == 99:
            await asyncio.sleep(0)  # let other requests run
    new = await _with_lanes(context, list(jobs.values()))
    answers = await _enqueue_pages(context.program, new)
    _check_batch(answers, submission)
    for index, job, answer in zip(jobs, new, answers, strict=True):
        results[index] = _result(answer, job, submission)
        if results[index].id:
            context.details.append(f"{job.header.task} {answer.id}")
    return json_response(results)


async def _with_lanes(context: RequestContext, jobs: list[NewJob]) -> list[NewJob]:
    return jobs if context.principal.sets_limits else await keep_declared_lanes(context.program, jobs)


async def _enqueue_pages(program: Program, jobs: list[NewJob]) -> list[EnqueueAnswer]:
    """Store them in their order; a full queue refuses single jobs, not pages."""
    producer = program.client().producer
    return [answer async for page in producer.enqueue_many(jobs, raises=False) for answer in page]


def _check_batch(answers: list[EnqueueAnswer], submission: Submission) -> None:
    """If the batch takes none of the jobs, the whole request fails."""
    words = {answer.word for answer in answers}
    if submission.batch and words and not words & {*_STORED, "full"}:
        raise batch_refusal(submission.batch, answers[0].word)


def _result(answer: EnqueueAnswer, job: NewJob, submission: Submission) -> EnqueueResult:
    try:
        _check(answer, job, submission)
    except (HttpError, PenstockError) as error:
        return EnqueueResult(problem=problem_of(error))
    return EnqueueResult(answer.id, answer.state, answer.word == "created")


def _check(answer: EnqueueAnswer, job: NewJob, submission: Submission) -> EnqueueAnswer:
    """The same answer; an error if the job was not stored."""
    checked(answer, job.header.queue)
    if answer.word not in _STORED:
        raise batch_refusal(submission.batch, answer.word)
    if submission.key and answer.word == "exists":
        raise key_reused(submission.key, f"the job {answer.id}")
    return answer


ROUTES: Final = [
    Route(
        "POST",
        "/api/v1/jobs",
        post_jobs,
        "Store a job, or an array of them with a result per item",
        role="operator",
        enqueuer=True,
        responses=RESPONSES,
        body=BODY,
        headers=IDEMPOTENCY_HEADER,
    ),
]
