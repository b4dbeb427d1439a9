"""Checks the options and members of batches, and makes the errors of refusals."""

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

from penstock.api.lane import check_limit
from penstock.api.task import Call, Task
from penstock.engine.engine import MAX_BATCH_DEPTH, NewBatch
from penstock.engine.record.record import pack
from penstock.errors import BadArguments, BadOption, BatchNotFound, BatchSealed, PenstockError
from penstock.model.batch_state import BatchSpec, BatchStatus, Ending
from penstock.model.durations import Duration, milliseconds
from penstock.model.header import new_id
from penstock.model.options import free_text, job_id, priority_of

OnError = Literal["keep", "cancel"]
AnyTask = Task[..., Any, Any]

_ENDINGS: Final = ("then", "on_failure")


def new_batch(
    name: str,
    *,
    parent: str = "",
    limit: int | None,
    priority: int | None,
    then: AnyTask | None,
    on_failure: AnyTask | None,
    abandon_after: Duration,
    keep: Duration,
    id: str | None = None,  # noqa: A002  (options are named as everywhere)
) -> NewBatch:
    """A batch to open, with all options checked."""
    if name:
        free_text(name, "name")
    wait = milliseconds(abandon_after, "abandon_after")
    if wait < 1:
        raise BadOption(f"abandon_after={abandon_after!r}: use a time above 0")
    batch_id = new_id() if id is None else batch_name(id)
    sample = _sample(batch_id, name, parent)
    tasks = {"then": then, "on_failure": on_failure}
    return NewBatch(
        batch_id,
        name,
        nonce=secrets.token_hex(8),
        parent=parent,
        priority=-1 if priority is None else priority_of(priority),
        limit=-1 if limit is None else _check_limit(limit),
        abandon_after=wait,
        keep=milliseconds(keep, "keep"),
        spec=BatchSpec(*(_ending(what, tasks[what], sample) for what in _ENDINGS)),
    )


def check_opened(new: NewBatch, word: str) -> None:
    """Raise an error if the engine's answer says that a batch could not be opened."""
    if word == "exists":
        raise BadOption(
            f"batch {new.id} exists already: use get_batch to go on with it, or another id; an ended batch has its id"
            " until it is forgotten (keep)"
        )
    if word == "deep":
        raise BadOption(f"batch {new.name!r}: not more than {MAX_BATCH_DEPTH} batches are inside each other")
    if word != "created":
        raise refusal(new.parent, word)


def batch_name(value: str) -> str:
    """A batch's id, checked: the ids of jobs that the batch makes contain it."""
    if len(job_id(value)) > 100 or "@" in value:
        raise BadOption(f"id={value!r}: a batch's id has up to 100 characters and no @")
    return value


def check_on_error(value: object) -> OnError:
    if value not in {"keep", "cancel"}:
        raise BadOption(f'on_error={value!r}: use "keep" (the batch stays open) or "cancel"')
    return value


def check_call(call: object, tasks: Mapping[str, AnyTask], where: str = "a batch") -> None:
    if not isinstance(call, Call):
        raise BadArguments(f"{where} takes calls, such as task.call(1), not {call!r}")
    known = tasks.get(call.task.name)
    if known is None or known.function is not call.task.function:
        raise BadArguments(f"{call!r} is a call of another app's task: send it with that app")


def _ending(what: str, task: AnyTask | None, sample: BatchStatus) -> Ending:
    """The job that a batch makes at its end; the scripts put the status into a gap in its payload."""
    if task is None:
        return Ending()
    if not isinstance(task, Task):
        raise BadOption(f"{what}={task!r}: use a task of the app that takes a BatchStatus")
    try:
        bound = task.signature.bind((sample,), {})
        header = task.call(sample).job.header
    except BadArguments as error:
        raise BadOption(f"{what}={task.name}: it cannot take a BatchStatus as its only argument: {error}") from None
    if len(bound) != 1 or next(iter(bound.values())) is not sample:
        raise BadOption(f"{what}={task.name}: its first parameter must take the BatchStatus")
    header = msgspec.structs.replace(header, unique="", nonce="")
    return Ending(pack(header), *task.payload_around(next(iter(bound))))


def _sample(batch_id: str, name: str, parent: str) -> BatchStatus:
    counts = {"total": 0, "done": 0, "dead": 0, "cancelled": 0, "pending": 0}
    now = datetime.now(UTC)
    return BatchStatus(
        id=batch_id,
        name=name,
        state="ended",
        open=False,
        reason="",
        generation=1,
        parent=parent,
        priority=None,
        created=now,
        ended=now,
        **counts,
    )


def _check_limit(value: int) -> int:
    if check_limit(value) < 1:
        raise BadOption(f"limit={value!r}: use a number above 0, or none at all")
    return value


def settings(priority: int | None, limit: int | None) -> dict[str, int | None]:
    if priority is None and limit is None:
        raise BadOption("nothing to set: use priority= or limit=")
    return {
        "priority": None if priority is None else priority_of(priority),
        "limit": None if limit is None else check_limit(limit),
    }


def refusal(batch_id: str, word: str) -> PenstockError:
    """The error for a word with which the engine refuses a member of a batch."""
    if word == "unknown":
        return BatchNotFound(f"no batch {batch_id!r} is known here; one is forgotten some time after its end (keep)")
    return BatchSealed(f"batch {batch_id} is {word} and takes no more members: open another one")
