"""`POST /api/v1/jobs`: store a job, or an array of them with a result per item."""

import asyncio
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import quote

import msgspec
from starlette.responses import Response

from penstock.api.batch_options import refusal as batch_refusal
from penstock.api.program import Program
from penstock.engine.answers import EnqueueAnswer as Stored
from penstock.engine.answers import checked
from penstock.engine.engine import NewJob
from penstock.errors import PenstockError
from penstock.http import parsing, problems
from penstock.http.build_job import KEY, Frame, key_of, make, other_body
from penstock.http.json_response import answer
from penstock.http.problems import HttpError
from penstock.http.route import RequestContext, Route
from penstock.http.schemas.requests import JobRequest
from penstock.http.schemas.responses import EnqueueResult, JobAnswer

if TYPE_CHECKING:
    from penstock.model.header import State

MOST: Final = 1_000  #: jobs in one array
ANSWERS: Final = {200: JobAnswer | list[EnqueueResult], 201: JobAnswer}
BODY: Final = JobRequest | list[JobRequest]
_STORED: Final = frozenset({"created", "exists", "unique"})


async def post(ask: RequestContext) -> Response:
    return await store(ask, Frame(key_of(ask)))


async def store(ask: RequestContext, frame: Frame) -> Response:
    """Store the job or the jobs of this body."""
    if ask.body.lstrip()[:1] == b"[":
        return await _store_many(ask, frame)
    job = make(ask.program, ask.body, frame)
    stored = _checked(await ask.program.client().producer.enqueue(job), job, frame)
    created = stored.word == "created"
    headers = {"Location": location(ask, "jobs", stored.id)}
    return answer(JobAnswer(stored.id, cast("State", stored.state), created), 201 if created else 200, headers)


def location(ask: RequestContext, kind: str, name: str) -> str:
    return f"{ask.request.scope.get('root_path', '')}/api/v1/{kind}/{quote(name, safe='')}"


async def _store_many(ask: RequestContext, frame: Frame) -> Response:
    """A result per item, in their order: what is wrong with one keeps none of the others back."""
    items = parsing.decode(ask.body, list[msgspec.Raw])
    if len(items) > MOST:
        raise HttpError(413, f"{len(items):,} jobs in one array: send at most {MOST:,}")
    placed: list[EnqueueResult] = []
    jobs: list[tuple[int, NewJob]] = []
    for number, raw in enumerate(items):
        try:
            jobs.append((number, make(ask.program, raw, frame, number)))
            placed.append(EnqueueResult())
        except (HttpError, PenstockError) as error:
            placed.append(EnqueueResult(problem=problems.problem(error)))
        if number % 100 == 99:
            await asyncio.sleep(0)  # others are served meanwhile
    stored = await _send(ask.program, [job for _, job in jobs])
    _check_batch(stored, frame)
    for (number, job), one in zip(jobs, stored, strict=True):
        placed[number] = _placed(one, job, frame)
    return answer(placed)


async def _send(program: Program, jobs: list[NewJob]) -> list[Stored]:
    """In their order; a job that a full queue refuses keeps none of the others back."""
    producer = program.client().producer
    return [answer async for page in producer.enqueue_many(jobs, raises=False) for answer in page]


def _check_batch(stored: list[Stored], frame: Frame) -> None:
    """A batch that takes none of them is a problem of the whole request."""
    words = {one.word for one in stored}
    if frame.batch and words and not words & {*_STORED, "full"}:
        raise batch_refusal(frame.batch, stored[0].word)


def _placed(stored: Stored, job: NewJob, frame: Frame) -> EnqueueResult:
    try:
        _checked(stored, job, frame)
    except (HttpError, PenstockError) as error:
        return EnqueueResult(problem=problems.problem(error))
    return EnqueueResult(stored.id, stored.state, stored.word == "created")


def _checked(stored: Stored, job: NewJob, frame: Frame) -> Stored:
    """The same; an error if it was not stored."""
    checked(stored, job.header.queue)
    if stored.word not in _STORED:
        raise batch_refusal(frame.batch, stored.word)
    if frame.key and stored.word == "exists":
        raise other_body(frame.key, f"the job {stored.id}")
    return stored


ROUTES: Final = [
    Route(
        "POST",
        "/api/v1/jobs",
        post,
        "Store a job, or an array of them with a result per item",
        role="operator",
        answers=ANSWERS,
        body=BODY,
        headers=KEY,
    ),
]
