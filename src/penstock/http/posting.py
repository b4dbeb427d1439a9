"""`POST /api/v1/jobs`: store a job, or an array of them with a result per item."""

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote

import msgspec
from starlette.responses import Response

from penstock.backoff import Backoff
from penstock.engine.answers import Placed as Stored
from penstock.engine.answers import checked
from penstock.engine.engine import NewJob
from penstock.errors import PenstockError, QueueFull, UnknownTask
from penstock.http import bodies, problems
from penstock.http.problems import Refused
from penstock.http.replies import answer
from penstock.http.routes import Ask, Route
from penstock.http.shapes import BackoffRequest, JobAnswer, JobRequest, LaneRequest, Placed
from penstock.lanes import Lane
from penstock.options import Options, unknown
from penstock.producer import pages_sync
from penstock.program import Program
from penstock.task import Task

if TYPE_CHECKING:
    from penstock.job import State

MOST: Final = 1_000  #: jobs in one array
_LONGEST_KEY: Final = 256  #: characters of an idempotency key
_OPTIONS: Final = tuple(name for name in JobRequest.__struct_fields__ if name in Options.__annotations__)


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
    stored = await _store(ask.program, [job for _, job in jobs])
    for (number, job), one in zip(jobs, stored, strict=True):
        placed[number] = _placed(one, job, key)
    return answer(placed)


async def _store(program: Program, jobs: list[NewJob]) -> list[Stored]:
    """Pages travel side by side; one that is refused for want of room keeps none of the others back."""
    engine = program.hub().engine

    async def store(page: list[NewJob]) -> list[Stored]:
        return await engine.enqueue(page)

    return [one for page in await asyncio.gather(*map(store, pages_sync(jobs))) for one in page]


def _placed(stored: Stored, job: NewJob, key: str) -> Placed:
    try:
        checked(stored, job.header.queue)
        _check_key(stored, key)
    except QueueFull as error:
        return Placed(problem=problems.problem(problems.refusal(error)))
    except Refused as refused:
        return Placed(problem=problems.problem(refused))
    return Placed(stored.id, stored.state, stored.word == "created")


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
]
