"""What was enqueued while a test ran, and whether it is what was expected."""

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

#: An option of `.using(...)` → what it is in a header; the others travel in the payload.
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
SHOWN: Final = 50  #: jobs in a message


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A job that was enqueued: as it was sent, whatever has become of it since."""

    id: str
    task: str
    arguments: dict[str, Any]  #: by name, as the task gets them
    queue: str
    priority: int
    delay: int  #: ms from the moment at which it was sent; 0 for one that is to run now, or at a given time
    at: datetime | None  #: the time that was given
    tags: tuple[str, ...]
    batch: str  #: the id of its batch, or nothing
    header: Header = field(repr=False, compare=False)
    payload: bytes = field(repr=False, compare=False)

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.task}({given}){self._options()}"

    def _options(self) -> str:
        usual = {"queue": "default", "priority": 50, "delay": 0, "at": None, "tags": ()}
        found = {name: getattr(self, name) for name in usual}
        return _bracketed({name: value for name, value in found.items() if value != usual[name]})


class Recorder:
    """Every job that was sent, and those that the engine made itself once they ran, in that order."""

    def __init__(self, tasks: Mapping[str, Task[..., Any, Any]]) -> None:
        self._tasks = tasks
        self.jobs: dict[str, Enqueued] = {}

    def saw(self, call: EngineCall[Any], answer: Any) -> None:
        if call.script.name == "enqueue":
            sent: Sequence[Any] = call.args
            rows = zip(sent[::3], sent[1::3], sent[2::3], call.decode(answer), strict=True)
            header = b""
            for job_id, given, payload, placed in rows:
                header = given or header  # empty: that of the one before it
                if placed.word == "created":
                    self._add(job_id, read_new(header), payload)
        elif call.script.name == "lease":
            for lease in read_leased(answer).leases:
                self.add_stored(lease.id, lease.header, lease.payload)

    def add_stored(self, job_id: str, header: Header, payload: bytes) -> None:
        """One that a schedule or a batch made, unless it is known."""
        if job_id not in self.jobs:
            self._add(job_id, msgspec.structs.replace(header, due=0), payload)

    def _add(self, job_id: str, header: Header, payload: bytes) -> None:
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
    """What a test expects: a task, perhaps with all of its arguments or some of them, and options."""

    task: Task[..., Any, Any]
    call: Call[Any] | None
    where: Mapping[str, Any]

    def __str__(self) -> str:
        if self.call is not None:
            given: Mapping[str, Any] = self._arguments(self.call)
            said = {name: getattr(self.task.options, name) for name in sorted(self.task.changed)}
        else:
            given, said = self.where, {}
        shown = ", ".join(f"{name}={value!r}" for name, value in given.items())
        return f"{self.task.name}({shown if given or self.call else '…'}){_bracketed(said)}"

    def matches(self, job: Enqueued) -> bool:
        if job.task != self.task.name:
            return False
        if self.call is None:
            return all(name in job.arguments and job.arguments[name] == value for name, value in self.where.items())
        return self._arguments(self.call) == job.arguments and self._has_options(self.call, job)

    def _arguments(self, call: Call[Any]) -> dict[str, Any]:
        return _arguments(self.task, open_envelope(call.job.payload))

    def _has_options(self, call: Call[Any], job: Enqueued) -> bool:
        """Those that were given by `.using(...)`; what is not said does not count."""
        changed = self.task.changed
        if "id" in changed and job.id != call.job.id:
            return False
        fields = {_IN_HEADER[name] for name in changed if name in _IN_HEADER}
        if any(getattr(job.header, name) != getattr(call.job.header, name) for name in fields):
            return False
        own, other = open_envelope(call.job.payload), open_envelope(job.payload)
        return all(getattr(own, name) == getattr(other, name) for name in changed & set(_IN_PAYLOAD))


def expect(what: Task[..., Any, Any] | Call[Any], where: Mapping[str, Any] | None) -> Expected:
    """`task`, `task` with some arguments, or `task.using(…).call(…)`."""
    if isinstance(what, Call):
        if where is not None:
            raise TypeError("where= is for a task; a call has its arguments already")
        return Expected(what.task, what, {})
    if not isinstance(what, Task):
        raise TypeError(f"expected a task, or a call such as task.call(1, 2), not {what!r}")
    strange = (where or {}).keys() - what.signature.parameters.keys()
    if strange:
        names = ", ".join(what.signature.parameters)
        raise TypeError(f"{what.name} has no argument {', '.join(sorted(strange))}; it has {names}")
    return Expected(what, None, where or {})


def missed(expected: Expected, jobs: list[Enqueued], times: int | None, found: int) -> str:
    """What was expected, and what there was instead: jobs of the same task, or if there is none, all."""
    asked = "to be enqueued" if times is None else f"{times} times, but {found} of them were enqueued"
    alike = [job for job in jobs if job.task == expected.task.name]
    others = f"\n  and {len(jobs) - len(alike)} of other tasks" if 0 < len(alike) < len(jobs) else ""
    return f"expected {asked}: {expected}\n{listed(alike or jobs)}{others}"


def listed(jobs: list[Enqueued]) -> str:
    """What there is, a line each."""
    if not jobs:
        return "nothing was enqueued"
    lines = [f"  {job}" for job in jobs[:SHOWN]]
    more = [f"  … and {len(jobs) - SHOWN} more"] if len(jobs) > SHOWN else []
    return "\n".join(["what was enqueued:", *lines, *more])


def _bracketed(options: Mapping[str, Any]) -> str:
    """Options as a person writes them."""
    shown = " ".join(f"{name}={_plainly(name, value)}" for name, value in options.items())
    return f"  [{shown}]" if shown else ""


def _plainly(name: str, value: Any) -> str:
    if name in _DURATIONS:
        return show(value)
    if name == "at":
        return (datetime.fromtimestamp(value / 1000, UTC) if isinstance(value, int) else value).isoformat()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _arguments(task: Task[..., Any, Any] | None, envelope: Envelope) -> dict[str, Any]:
    """By name, converted as for a run, with the defaults of those that were left out; plain data if that fails."""
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
