"""From a request's JSON to the job that is stored: finds the task, checks options and arguments."""

import hashlib
import re
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UnsetType

from penstock.api.program import Program
from penstock.api.task import Task
from penstock.engine.engine import NewJob
from penstock.errors import UnknownTask
from penstock.http import parsing, scope
from penstock.http.principal import Principal
from penstock.http.problems import HttpError
from penstock.http.request_lanes import lanes_as_declared
from penstock.http.route import RequestContext
from penstock.http.schemas.requests import BackoffRequest, JobRequest, LaneRequest
from penstock.model.backoff import Backoff
from penstock.model.lanes import Lane
from penstock.model.options import Options, meant, unknown

IDEMPOTENCY_HEADER: Final = {"Idempotency-Key": "The same key and body make one of it, however often they are sent."}
_MAX_KEY_LENGTH: Final = 256  #: characters
#: Ids that Penstock makes: from an idempotency key, for the end of a batch, for a tick or a run of a schedule, and the
#: 12 letters and digits of all others, which count up, so that the next one could be foreseen.
_OWN_IDS: Final = re.compile(
    r"key-[0-9a-f]{32}|.*@(then|on_failure)-\d+(-\d+)?|.*@run-[0-9a-f]{12}|.*@\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"
    r"|(?!\d{12})[0-9A-Za-z]{12}",
    re.DOTALL,
)
_OPTIONS: Final = tuple(name for name in JobRequest.__struct_fields__ if name in Options.__annotations__)


class Submission(NamedTuple):
    """What all jobs of one request share: its sender, its idempotency key and the batch that they join, if any."""

    principal: Principal
    key: str = ""
    batch: str = ""

    def job_id(self, index: int) -> str:
        """The id that follows from the sender and the key, so that a repeated request makes no second job."""
        parts = (str(index), self.key, self.batch, self.principal.name)
        return "key-" + _digest("\0".join(parts).encode("utf-8", "surrogateescape"), 32)


def idempotency_key(context: RequestContext) -> str:
    key = context.request.headers.get("idempotency-key", "")
    if len(key) > _MAX_KEY_LENGTH:
        raise HttpError(422, f"Idempotency-Key: at most {_MAX_KEY_LENGTH} characters")
    return key


def nonce_of(body: bytes) -> str:
    """A digest of the body, which tells a repeated request from another one with the same key."""
    return _digest(body, 16)


def check_id(value: str | UnsetType) -> None:
    """Refuse an id under which Penstock might itself store a job, which would then be lost."""
    if isinstance(value, str) and _OWN_IDS.fullmatch(value):
        raise HttpError(422, f"id={value!r}: Penstock makes such ids itself: add another character, as in {value}-x")


def key_reused(key: str, existing: str) -> HttpError:
    return HttpError(422, f"Idempotency-Key {key[:60]!r} came before with another body: it made {existing}")


def build_job(program: Program, raw: bytes | msgspec.Raw, submission: Submission, index: int = 0) -> NewJob:
    """The job of one JSON object; an error says what is wrong with it. `index`: its place in the request's array."""
    request: JobRequest = parsing.decode(raw, JobRequest)
    check_id(request.id)
    base = find_task(program, request.task, submission.principal)
    is_bound = not submission.principal.is_unbound
    if is_bound:
        scope.require_task(submission.principal, base.name)
        scope.require_options(submission.principal, request)
    options = _task_options(request)
    task = base.using(**options) if options else base
    args, kwargs = task.signature.from_json(request.args, request.kwargs)
    job = task.call(*args, **kwargs).job
    header, job_id = job.header, job.id
    if is_bound:
        scope.require_queue(submission.principal, header.queue)
    if not submission.principal.sets_limits and options.keys() & {"lock", "lane", "cost"}:
        own = base.call(*args, **kwargs).job.header.lanes
        lanes = lanes_as_declared(program, base, request, own, header.lanes)
        header = msgspec.structs.replace(header, lanes=lanes)
    if submission.batch:
        header = msgspec.structs.replace(header, batch=submission.batch)
    if submission.key:
        header = msgspec.structs.replace(header, nonce=nonce_of(bytes(raw)))
        job_id = job.id if task.options.id else submission.job_id(index)
    return NewJob(job_id, header, job.payload)


def find_task(program: Program, name: str, principal: Principal) -> Task[..., Any, Any]:
    """The task of this full name, or the only one whose name has this part after the colon.

    An error names no task that this principal may not use.
    """
    tasks = program.tasks
    matches = meant(name, tasks)
    if len(matches) == 1:
        return tasks[matches[0]]
    usable = [task for task in matches or tasks if principal.uses_task(task)]
    if matches and usable:
        raise UnknownTask(f"several tasks are called {name[:60]!r}; say which: {', '.join(sorted(usable))}")
    raise UnknownTask(unknown("task", name, usable) if usable else f"unknown task {name[:60]!r}; none are known here")


def _task_options(request: JobRequest) -> dict[str, Any]:
    """The options of the request, as `.using(...)` takes them."""
    options = {name: value for name in _OPTIONS if (value := getattr(request, name)) is not msgspec.UNSET}
    if isinstance(options.get("backoff"), BackoffRequest):
        options["backoff"] = Backoff(**msgspec.structs.asdict(options["backoff"]))
    if "lane" in options:
        lanes: list[LaneRequest] = options["lane"] if isinstance(options["lane"], list) else [options["lane"]]
        options["lane"] = [Lane(**msgspec.structs.asdict(lane)) for lane in lanes]
    return options


def _digest(raw: bytes, length: int) -> str:
    return hashlib.sha256(raw).hexdigest()[:length]
