"""The jobs that were enqueued while a test ran, and how they compare with what it expects."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from penstock.api.task import Call, Task
from penstock.engine.answers import read_leased
from penstock.engine.record.record import read_new
from penstock.engine.transport.script_client import ScriptCall as EngineCall
from penstock.errors import BadArguments
from penstock.model.codec import Envelope, decode_any, open_envelope
from penstock.model.durations import show
from penstock.model.header import DELAY_BELOW, Header
from penstock.model.payload_codec import Codecs

#: An option of `.using(...)` → its field in the header; the other options are in the payload.
_IN_HEADER: Final = {
    "queue": "queue",
    "priority": "priority",
    "delay": "due",
    "at": "due",
    "expires": "expires",
    "retries": "retries",
    "keep_result": "keep",
    "lock": "lanes",
    "lane": "lanes",
    "unique": "unique",
}
_IN_PAYLOAD: Final = ("tags", "timeout", "backoff", "retry_on", "give_up_on", "redact")
_DURATIONS: Final = ("delay", "expires", "timeout", "keep_result")
MAX_LISTED: Final = 50  #: jobs in a message


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A job as it was enqueued, whatever its state is now."""

    id: str
    task: str
    arguments: dict[str, Any]  #: by name, as the task gets them
    queue: str
    priority: int
    delay: int  #: ms from when it was sent; 0 if it is to run now or at a time
    at: datetime | None  #: the time at which it is to run, if one was set
    tags: tuple[str, ...]
    batch: str  #: the id of its batch; empty if it has none
    header: Header = field(repr=False, compare=False)
    payload: bytes = field(repr=False, compare=False)

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.task}({arguments}){self._options()}"

    def _options(self) -> str:
        defaults = {"queue": "default", "priority": 50, "delay": 0, "at": None, "tags": ()}
        options = {name: getattr(self, name) for name in defaults}
        return _bracketed({name: value for name, value in options.items() if value != defaults[name]})


class Recorder:
    """Records every job that was sent, and each job of a schedule or batch once it has run."""

    def __init__(self, tasks: Mapping[str, Task[..., Any, Any]]) -> None:
        self._tasks = tasks
        self.codecs = Codecs("")  #: the sandbox's, once it is open
        self.jobs: dict[str, Enqueued] = {}

    def saw(self, call: EngineCall[Any], answer: Any) -> None:
        if call.script.name == "enqueue":
            sent: Sequence[Any] = call.args
            rows = zip(sent[::3], sent[1::3], sent[2::3], call.decode(answer), strict=True)
            header = b""
            for job_id, own_header, payload, stored in rows:
                header = own_header or header  # an empty one is that of the job before it
                if stored.word == "created":
                    self._add(job_id, read_new(header), payload)
        elif call.script.name == "lease":
            for lease in read_leased(answer).leases:
                self.add_stored(lease.id, lease.header, lease.payload)

    def add_stored(self, job_id: str, header: Header, payload: bytes) -> None:
        """Add a job that a schedule or a batch made, unless it is known."""
        if job_id not in self.jobs:
            self._add(job_id, msgspec.structs.replace(header, due=0), payload)

    def _add(self, job_id: str, header: Header, payload: bytes) -> None:
        payload = self.codecs.open_payload(payload, header.task, job_id)
        envelope = open_envelope(payload)
        due = header.due
        self.jobs[job_id] = Enqueued(
            id=job_id,
            task=header.task,
            arguments=_arguments(self._tasks.get(header.task), envelope),
            queue=header.queue,
            priority=header.priority,
            delay=due if due < DELAY_BELOW else 0,
            at=datetime.fromtimestamp(due / 1000, UTC) if due >= DELAY_BELOW else None,
            tags=tuple(envelope.tags),
            batch=header.batch,
            header=header,
            payload=payload,
        )


@dataclass(frozen=True, slots=True)
class Expected:
    """What a test expects: a task, with all or some of its arguments and with options if the test names them."""

    task: Task[..., Any, Any]
    call: Call[Any] | None
    where: Mapping[str, Any]

    def __str__(self) -> str:
        if self.call is not None:
            arguments: Mapping[str, Any] = self._arguments(self.call)
            options = {name: getattr(self.task.options, name) for name in sorted(self.task.changed)}
        else:
            arguments, options = self.where, {}
        text = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        return f"{self.task.name}({text if arguments or self.call else '…'}){_bracketed(options)}"

    def matches(self, job: Enqueued) -> bool:
        if job.task != self.task.name:
            return False
        if self.call is None:
            return all(name in job.arguments and job.arguments[name] == value for name, value in self.where.items())
        return self._arguments(self.call) == job.arguments and self._has_options(self.call, job)

    def _arguments(self, call: Call[Any]) -> dict[str, Any]:
        return _arguments(self.task, open_envelope(call.job.payload))

    def _has_options(self, call: Call[Any], job: Enqueued) -> bool:
        """Whether the options set by `.using(...)` are the job's; the others do not count."""
        changed = self.task.changed
        if "id" in changed and job.id != call.job.id:
            return False
        fields = {_IN_HEADER[name] for name in changed if name in _IN_HEADER}
        if any(getattr(job.header, name) != getattr(call.job.header, name) for name in fields):
            return False
        own, other = open_envelope(call.job.payload), open_envelope(job.payload)
        return all(getattr(own, name) == getattr(other, name) for name in changed & set(_IN_PAYLOAD))


def expect(task: Task[..., Any, Any] | Call[Any], where: Mapping[str, Any] | None) -> Expected:
    """What a test expects by `task`, `task` with `where`, or `task.using(…).call(…)`."""
    if isinstance(task, Call):
        if where is not None:
            raise TypeError("where= is for a task; a call has its arguments already")
        return Expected(task.task, task, {})
    if not isinstance(task, Task):
        raise TypeError(f"expected a task, or a call such as task.call(1, 2), not {task!r}")
    unknown = (where or {}).keys() - task.signature.parameters.keys()
    if unknown:
        names = ", ".join(task.signature.parameters)
        raise TypeError(f"{task.name} has no argument {', '.join(sorted(unknown))}; it has {names}")
    return Expected(task, None, where or {})


def mismatch_text(expected: Expected, jobs: list[Enqueued], times: int | None, count: int) -> str:
    """What was expected, and what was enqueued instead: jobs of the same task, or all if there are none."""
    wanted = "to be enqueued" if times is None else f"{times} times, but {count} of them were enqueued"
    same_task = [job for job in jobs if job.task == expected.task.name]
    others = f"\n  and {len(jobs) - len(same_task)} of other tasks" if 0 < len(same_task) < len(jobs) else ""
    return f"expected {wanted}: {expected}\n{list_text(same_task or jobs)}{others}"


def list_text(jobs: list[Enqueued]) -> str:
    """The jobs that were enqueued, a line each."""
    if not jobs:
        return "nothing was enqueued"
    lines = [f"  {job}" for job in jobs[:MAX_LISTED]]
    more = [f"  … and {len(jobs) - MAX_LISTED} more"] if len(jobs) > MAX_LISTED else []
    return "\n".join(["what was enqueued:", *lines, *more])


def _bracketed(options: Mapping[str, Any]) -> str:
    """Options as people write them, in brackets."""
    text = " ".join(f"{name}={_option_text(name, value)}" for name, value in options.items())
    return f"  [{text}]" if text else ""


def _option_text(name: str, value: Any) -> str:
    if name in _DURATIONS:
        return show(value)
    if name == "at":
        return (datetime.fromtimestamp(value / 1000, UTC) if isinstance(value, int) else value).isoformat()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _arguments(task: Task[..., Any, Any] | None, envelope: Envelope) -> dict[str, Any]:
    """The arguments by name, converted as for a run, with defaults; plain data if they do not fit the task."""
    plain: dict[str, Any] = decode_any(bytes(envelope.args))
    if task is None:
        return plain
    try:
        args, kwargs = task.signature.decode(envelope.args, envelope.status)
        bound = inspect.Signature(list(task.signature.parameters.values())).bind(*args, **kwargs)
    except (BadArguments, TypeError):
        return plain
    bound.apply_defaults()
    return dict(bound.arguments)
