"""The job that a request asks for: its task found, its options and arguments checked."""

import hashlib
from typing import Any, Final, NamedTuple

import msgspec

from penstock.api.program import Program
from penstock.api.task import Task
from penstock.engine.engine import NewJob
from penstock.errors import UnknownTask
from penstock.http import parsing
from penstock.http.problems import HttpError
from penstock.http.route import RequestContext
from penstock.http.schemas.requests import BackoffRequest, JobRequest, LaneRequest
from penstock.model.backoff import Backoff
from penstock.model.lanes import Lane
from penstock.model.options import Options, meant, unknown

KEY: Final = {"Idempotency-Key": "The same key and body make one of it, however often they are sent."}
_LONGEST_KEY: Final = 256  #: characters
_OPTIONS: Final = tuple(name for name in JobRequest.__struct_fields__ if name in Options.__annotations__)


class Frame(NamedTuple):
    """What all jobs of one request have in common: its idempotency key and the batch that they are for, if any."""

    key: str = ""
    batch: str = ""

    def id_of(self, number: int) -> str:
        """The id that follows from the key, so that sending it again makes no second job. A batch has its own keys."""
        parts = (str(number), self.key, self.batch) if self.batch else (str(number), self.key)
        return "key-" + _digest("\0".join(parts).encode(), 32)


def key_of(ask: RequestContext) -> str:
    key = ask.request.headers.get("idempotency-key", "")
    if len(key) > _LONGEST_KEY:
        raise HttpError(422, f"Idempotency-Key: at most {_LONGEST_KEY} characters")
    return key


def nonce_of(raw: bytes) -> str:
    """Tells a request that is sent again from another one with the same key."""
    return _digest(raw, 16)


def other_body(key: str, found: str) -> HttpError:
    return HttpError(422, f"Idempotency-Key {key[:60]!r} came before with another body: it made {found}")


def make(program: Program, raw: bytes | msgspec.Raw, frame: Frame, number: int = 0) -> NewJob:
    request: JobRequest = parsing.decode(raw, JobRequest)
    task = find_task(program, request.task)
    options = {name: value for name in _OPTIONS if (value := getattr(request, name)) is not msgspec.UNSET}
    if options:
        task = task.using(**_converted(options))
    args, kwargs = task.signature.from_json(request.args, request.kwargs)
    job = task.call(*args, **kwargs).job
    if frame.batch:
        job = NewJob(job.id, msgspec.structs.replace(job.header, batch=frame.batch), job.payload)
    return _keyed(job, bytes(raw), frame, number, named=bool(task.options.id)) if frame.key else job


def find_task(program: Program, name: str) -> Task[..., Any, Any]:
    """By its full name, or by the part after the colon if only one task has it."""
    tasks = program.tasks
    found = meant(name, tasks)
    if len(found) == 1:
        return tasks[found[0]]
    if found:
        raise UnknownTask(f"several tasks are called {name[:60]!r}; say which: {', '.join(sorted(found))}")
    raise UnknownTask(unknown("task", name, tasks) if tasks else f"unknown task {name[:60]!r}; none are known here")


def _converted(options: dict[str, Any]) -> dict[str, Any]:
    """As `.using(...)` takes them."""
    found = dict(options)
    if isinstance(found.get("backoff"), BackoffRequest):
        found["backoff"] = Backoff(**_fields(found["backoff"]))
    if "lane" in found:
        given: list[LaneRequest] = found["lane"] if isinstance(found["lane"], list) else [found["lane"]]
        found["lane"] = [Lane(**_fields(one)) for one in given]
    return found


def _fields(given: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(given, name) for name in given.__struct_fields__}


def _keyed(job: NewJob, raw: bytes, frame: Frame, number: int, *, named: bool) -> NewJob:
    header = msgspec.structs.replace(job.header, nonce=nonce_of(raw))
    return NewJob(job.id if named else frame.id_of(number), header, job.payload)


def _digest(raw: bytes, length: int) -> str:
    return hashlib.sha256(raw).hexdigest()[:length]
