"""Routes of jobs: store them, look at them, steer them."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any, Final, cast
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.backoff import Backoff
from penstock.codec import decode_any
from penstock.engine.answers import Placed as Stored
from penstock.engine.engine import NewJob
from penstock.engine.views import Record
from penstock.errors import BadArguments, JobNotFound, PenstockError, UnknownTask
from penstock.handle import Failure, Job, JobStatus, status_of
from penstock.http import bodies, problems
from penstock.http.problems import Refused
from penstock.http.replies import answer
from penstock.http.routes import Ask, Route
from penstock.http.shapes import (
    AttemptAnswer,
    BackoffRequest,
    ErrorAnswer,
    JobAnswer,
    JobRequest,
    LaneRequest,
    Placed,
    RescheduleRequest,
    StateAnswer,
    WaitQuery,
)
from penstock.job import FINISHED, State
from penstock.lanes import Lane
from penstock.options import Options, unknown
from penstock.program import Program
from penstock.task import Task

MOST: Final = 1_000  #: jobs in one array
_LONGEST_KEY: Final = 256  #: characters of an idempotency key
_OPTIONS: Final = tuple(name for name in JobRequest.__struct_fields__ if name in Options.__annotations__)


# Storing


async def post(ask: Ask) -> Response:
    key = ask.request.headers.get("idempotency-key", "")
    if len(key) > _LONGEST_KEY:
        raise Refused(422, f"Idempotency-Key: at most {_LONGEST_KEY} characters")
    if ask.body.lstrip()[:1] == b"[":
        return await _post_many(ask, key)
    job = _job(ask.program, ask.body, key, 0)
    stored = await ask.program.hub().producer.enqueue(job)
    _check_key(stored, key)
    created = stored.word == "created"
    headers = {"Location": f"{ask.request.scope.get('root_path', '')}/api/v1/jobs/{quote(stored.id, safe='')}"}
    return answer(JobAnswer(stored.id, cast("State", stored.state), created), 201 if created else 200, headers)


async def _post_many(ask: Ask, key: str) -> Response:
    """A result per item, in their order: what is wrong with one keeps none of the others back."""
    items = bodies.decode(ask.body, list[msgspec.Raw])
    if len(items) > MOST:
        raise Refused(413, f"{len(items):,} jobs in one array: send at most {MOST:,}")
    placed: list[Placed] = []
    jobs: list[tuple[int, NewJob]] = []
    for number, raw in enumerate(items):
        try:
            jobs.append((number, _job(ask.program, raw, key, number)))
            placed.append(Placed())
        except Refused as refused:
            placed.append(Placed(problem=problems.problem(refused)))
        except PenstockError as error:
            placed.append(Placed(problem=problems.problem(problems.refusal(error))))
        if number % 100 == 99:
            await asyncio.sleep(0)  # others are served meanwhile
    stored = ask.program.hub().producer.enqueue_many(job for _, job in jobs)
    await _fill(placed, [number for number, _ in jobs], stored, key)
    return answer(placed)


async def _fill(placed: list[Placed], numbers: list[int], stored: AsyncIterator[Stored], key: str) -> None:
    at = 0
    async for one in stored:
        try:
            _check_key(one, key)
            placed[numbers[at]] = Placed(one.id, one.state, one.word == "created")
        except Refused as refused:
            placed[numbers[at]] = Placed(problem=problems.problem(refused))
        at += 1


def _job(program: Program, raw: bytes | msgspec.Raw, key: str, number: int) -> NewJob:
    """The job that one request asks for, its arguments checked."""
    request: JobRequest = bodies.decode(raw, JobRequest)
    task = _find(program, request.task)
    options = {name: value for name in _OPTIONS if (value := getattr(request, name)) is not msgspec.UNSET}
    if options:
        task = task.using(**_converted(options))
    args, kwargs = task.signature.from_json(request.args, request.kwargs)
    job = task.call(*args, **kwargs).job
    return _keyed(job, bytes(raw), key, number, named=bool(task.options.id)) if key else job


def _find(program: Program, name: str) -> Task[..., Any, Any]:
    task = program.tasks.get(name)
    if task is None:
        known = unknown("task", name, program.tasks) if program.tasks else f"unknown task {name!r}; none are known here"
        raise UnknownTask(known)
    return task


def _converted(options: dict[str, Any]) -> dict[str, Any]:
    """As `.using(...)` takes them."""
    found = dict(options)
    if isinstance(found.get("backoff"), BackoffRequest):
        given: BackoffRequest = found["backoff"]
        found["backoff"] = Backoff(given.kind, base=given.base, cap=given.cap, jitter=given.jitter)
    if "lane" in found:
        given_lanes = found["lane"] if isinstance(found["lane"], list) else [found["lane"]]
        found["lane"] = [_lane(one) for one in given_lanes]
    return found


def _lane(given: LaneRequest) -> Lane:
    return Lane(
        given.name,
        limit=given.limit,
        rate=given.rate,
        burst=given.burst,
        ordered=given.ordered,
        on_dead=given.on_dead,
    )


def _keyed(job: NewJob, raw: bytes, key: str, number: int, *, named: bool) -> NewJob:
    """The id follows from the key, so that sending it again makes no second job; the nonce tells another body."""
    job_id = job.id if named else "key-" + hashlib.sha256(f"{number}\0{key}".encode()).hexdigest()[:32]
    nonce = hashlib.sha256(raw).hexdigest()[:16]
    return NewJob(job_id, msgspec.structs.replace(job.header, nonce=nonce), job.payload)


def _check_key(stored: Stored, key: str) -> None:
    if key and stored.word == "exists":
        raise Refused(422, f"Idempotency-Key {key[:60]!r} came before with another body; its job is {stored.id}")


# Looking


async def get(ask: Ask) -> Response:
    query: WaitQuery = ask.query
    job_id = ask.path["id"]
    record = await _record(ask, job_id)
    if query.wait and record.header.state not in FINISHED:
        await _end(ask, job_id, query.wait)
        record = await _record(ask, job_id)
    explain = await ask.program.hub().views.explain(job_id) if query.explain else ""
    return answer(shown(record, ask.program, explain))


async def _record(ask: Ask, job_id: str) -> Record:
    record = await ask.program.hub().views.job(job_id)
    if record is None:
        raise JobNotFound(f"no job {job_id!r} is known here: it was never enqueued, or was forgotten since")
    return record


async def _end(ask: Ask, job_id: str, seconds: float) -> None:
    """Until it has ended, the time is over, or nobody waits for the answer any more."""
    waits = [
        asyncio.ensure_future(ask.program.hub().waiter.wait(job_id)),
        asyncio.ensure_future(_hung_up(ask.request)),
    ]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def shown(record: Record, program: Program, explain: str = "") -> JobAnswer:
    """A job as it may be shown: which arguments are secret is known to its task; without it, none are shown."""
    task = program.tasks.get(record.header.task)
    status = status_of(record, record.id, task.options.redact if task else ("*",))
    found = JobAnswer(
        id=status.id,
        state=status.state,
        created=False,
        task=status.task,
        queue=status.queue,
        priority=status.priority,
        reason=status.reason,
        explain=explain,
        attempt=status.attempt,
        retries=status.retries,
        created_at=status.created,
        since=status.since,
        due=status.due or msgspec.UNSET,
        expires=status.expires or msgspec.UNSET,
        started=status.started or msgspec.UNSET,
        finished=status.finished or msgspec.UNSET,
        worker=status.worker or "",
        cancelling=status.cancelling,
        progress=status.progress or msgspec.UNSET,
        arguments=msgspec.UNSET if status.arguments is None else status.arguments,
        tags=status.tags,
        attempts=[_attempt(one) for one in status.attempts],
    )
    _add_outcome(found, record, status)
    return found


def _add_outcome(found: JobAnswer, record: Record, status: JobStatus) -> None:
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


async def cancel(ask: Ask) -> Response:
    job = _handle(ask)
    return answer(StateAnswer(job.id, await job.cancel()))


async def retry(ask: Ask) -> Response:
    job = _handle(ask)
    await job.retry()
    return answer(StateAnswer(job.id, (await _record(ask, job.id)).header.state))


async def reschedule(ask: Ask) -> Response:
    given: RescheduleRequest = bodies.decode(ask.body, RescheduleRequest)
    job = _handle(ask)
    if given.at is not msgspec.UNSET and given.delay is msgspec.UNSET:
        await job.reschedule(at=given.at)
    elif given.delay is not msgspec.UNSET and given.at is msgspec.UNSET:
        await job.reschedule(delay=given.delay)
    else:
        raise BadArguments("give either delay or at")
    return answer(StateAnswer(job.id, (await _record(ask, job.id)).header.state))


def _handle(ask: Ask) -> Job[Any]:
    return Job(ask.program.hub(), ask.path["id"], decode_any, created=False, redact=("*",))


_KEY: Final = {"Idempotency-Key": "The same key and body make one job, however often they are sent."}
ROUTES: Final = [
    Route(
        "POST",
        "/api/v1/jobs",
        post,
        "Store a job, or an array of them with a result per item",
        role="operator",
        answers={200: JobAnswer | list[Placed], 201: JobAnswer},
        body=JobRequest | list[JobRequest],
        headers=_KEY,
    ),
    Route(
        "GET",
        "/api/v1/jobs/{id}",
        get,
        "One job; with wait, once it has ended",
        answers={200: JobAnswer},
        query=WaitQuery,
    ),
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
