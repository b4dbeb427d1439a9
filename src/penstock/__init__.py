"""Penstock: a job queue for Python on Redis and Valkey."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.api.batch import Batch
    from penstock.api.context import JobContext, current_job
    from penstock.api.events import Event
    from penstock.api.job import Failure, Job, JobStatus
    from penstock.api.schedule import Schedule, ScheduleStatus, Tick
    from penstock.api.task import Call, Task
    from penstock.app import Penstock
    from penstock.errors import (
        BadArguments,
        BadOption,
        BatchNotFound,
        BatchSealed,
        CannotConnect,
        JobCancelled,
        JobFailed,
        JobNotFound,
        PayloadTooLarge,
        PenstockError,
        QueueFull,
        ResultExpired,
        ScheduleNotFound,
        SchemaMismatch,
        StaleLease,
        Unavailable,
        UnknownKey,
        UnknownTask,
        UnsuitableServer,
    )
    from penstock.http.principal import Principal
    from penstock.model.backoff import Backoff
    from penstock.model.batch_state import BatchStatus
    from penstock.model.control_flow import Bury, Retry, Snooze
    from penstock.model.lanes import Lane
    from penstock.model.payload_codec import About, PayloadCodec
    from penstock.worker.worker import Worker

__all__ = [
    "About",
    "Backoff",
    "BadArguments",
    "BadOption",
    "Batch",
    "BatchNotFound",
    "BatchSealed",
    "BatchStatus",
    "Bury",
    "Call",
    "CannotConnect",
    "Event",
    "Failure",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobFailed",
    "JobNotFound",
    "JobStatus",
    "Lane",
    "PayloadCodec",
    "PayloadTooLarge",
    "Penstock",
    "PenstockError",
    "Principal",
    "QueueFull",
    "ResultExpired",
    "Retry",
    "Schedule",
    "ScheduleNotFound",
    "ScheduleStatus",
    "SchemaMismatch",
    "Snooze",
    "StaleLease",
    "Task",
    "Tick",
    "Unavailable",
    "UnknownKey",
    "UnknownTask",
    "UnsuitableServer",
    "Worker",
    "current_job",
]

#: name → module: imported with the first use, so that `penstock --help` costs no event loop and no Redis client
_HOMES = {
    "About": "penstock.model.payload_codec",
    "Backoff": "penstock.model.backoff",
    "BadArguments": "penstock.errors",
    "BadOption": "penstock.errors",
    "Batch": "penstock.api.batch",
    "BatchNotFound": "penstock.errors",
    "BatchSealed": "penstock.errors",
    "BatchStatus": "penstock.model.batch_state",
    "Bury": "penstock.model.control_flow",
    "Call": "penstock.api.task",
    "CannotConnect": "penstock.errors",
    "Event": "penstock.api.events",
    "Failure": "penstock.api.job",
    "Job": "penstock.api.job",
    "JobCancelled": "penstock.errors",
    "JobContext": "penstock.api.context",
    "JobFailed": "penstock.errors",
    "JobNotFound": "penstock.errors",
    "JobStatus": "penstock.api.job",
    "Lane": "penstock.model.lanes",
    "PayloadCodec": "penstock.model.payload_codec",
    "PayloadTooLarge": "penstock.errors",
    "Penstock": "penstock.app",
    "PenstockError": "penstock.errors",
    "Principal": "penstock.http.principal",
    "QueueFull": "penstock.errors",
    "ResultExpired": "penstock.errors",
    "Retry": "penstock.model.control_flow",
    "Schedule": "penstock.api.schedule",
    "ScheduleNotFound": "penstock.errors",
    "ScheduleStatus": "penstock.api.schedule",
    "SchemaMismatch": "penstock.errors",
    "Snooze": "penstock.model.control_flow",
    "StaleLease": "penstock.errors",
    "Task": "penstock.api.task",
    "Tick": "penstock.api.schedule",
    "Unavailable": "penstock.errors",
    "UnknownKey": "penstock.errors",
    "UnknownTask": "penstock.errors",
    "UnsuitableServer": "penstock.errors",
    "Worker": "penstock.worker.worker",
    "current_job": "penstock.api.context",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value
