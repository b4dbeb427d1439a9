"""A job that runs again with other arguments."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.api.job import check_revived, missing
from penstock.api.task import Task
from penstock.client.client import Client
from penstock.engine.engine import Edit
from penstock.engine.read.views import JobRecord
from penstock.errors import BadArguments, PenstockError
from penstock.model.codec import check_size, encode, open_envelope


async def retry_edited(
    client: Client,
    tasks: Mapping[str, Task[..., Any, Any]],
    job_id: str,
    arguments: Mapping[str, Any] | Sequence[Any],
) -> None:
    """Run a dead or cancelled job again with these arguments, checked against its task where that is known."""
    record = await client.views.job(job_id)
    if record is None or record.payload is None:
        raise missing(job_id)
    edit = edit_of(tasks.get(record.header.task), record, arguments)
    check_revived((await client.engine.revive([job_id], {job_id: edit}))[0], job_id)


def edit_of(task: Task[..., Any, Any] | None, record: JobRecord, arguments: Mapping[str, Any] | Sequence[Any]) -> Edit:
    """The payload with other arguments, and the lanes and the unique key that follow if the task is known."""
    named = isinstance(arguments, Mapping)
    if task is not None:
        call = task.call(**dict(arguments)) if named else task.call(*arguments)
        packed = open_envelope(call.job.payload).args
        return Edit(_payload(record, packed), call.job.header.lanes, call.job.header.unique, task.name)
    if not named:
        raise BadArguments(f"{record.header.task} is not known here, so its arguments must be given by name")
    return Edit(_payload(record, msgspec.Raw(encode(dict(arguments)))), task=record.header.task)


def _payload(record: JobRecord, packed: msgspec.Raw) -> bytes:
    try:
        envelope = open_envelope(record.payload or b"")
    except msgspec.MsgspecError as error:
        raise PenstockError(f"what is stored of job {record.id!r} cannot be read: {error}") from None
    return check_size(encode(msgspec.structs.replace(envelope, args=packed)), record.header.task)
