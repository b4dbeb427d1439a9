"""Penstock: a job queue for Python on Redis and Valkey."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.app import Penstock
    from penstock.backoff import Backoff
    from penstock.batch import Batch
    from penstock.batch_state import BatchStatus
    from penstock.context import JobContext, current_job
    from penstock.cron import Schedule, ScheduleStatus, Tick
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
        UnknownTask,
        UnsuitableServer,
    )
    from penstock.events import Event
    from penstock.handle import Failure, Job, JobStatus
    from penstock.lanes import Lane
    from penstock.steer import Bury, Retry, Snooze
    from penstock.task import Call, Task
    from penstock.worker.worker import Worker

__all__ = [
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
    "PayloadTooLarge",
    "Penstock",
    "PenstockError",
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
    "UnknownTask",
    "UnsuitableServer",
    "Worker",
    "current_job",
]

#: name → module: imported with the first use, so that `penstock --help` costs no event loop and no Redis client
_HOMES = {
    "Backoff": "penstock.backoff",
    "BadArguments": "penstock.errors",
    "BadOption": "penstock.errors",
    "Batch": "penstock.batch",
    "BatchNotFound": "penstock.errors",
    "BatchSealed": "penstock.errors",
    "BatchStatus": "penstock.batch_state",
    "Bury": "penstock.steer",
    "Call": "penstock.task",
    "CannotConnect": "penstock.errors",
    "Event": "penstock.events",
    "Failure": "penstock.handle",
    "Job": "penstock.handle",
    "JobCancelled": "penstock.errors",
    "JobContext": "penstock.context",
    "JobFailed": "penstock.errors",
    "JobNotFound": "penstock.errors",
    "JobStatus": "penstock.handle",
    "Lane": "penstock.lanes",
    "PayloadTooLarge": "penstock.errors",
    "Penstock": "penstock.app",
    "PenstockError": "penstock.errors",
    "QueueFull": "penstock.errors",
    "ResultExpired": "penstock.errors",
    "Retry": "penstock.steer",
    "Schedule": "penstock.cron",
    "ScheduleNotFound": "penstock.errors",
    "ScheduleStatus": "penstock.cron",
    "SchemaMismatch": "penstock.errors",
    "Snooze": "penstock.steer",
    "StaleLease": "penstock.errors",
    "Task": "penstock.task",
    "Tick": "penstock.cron",
    "Unavailable": "penstock.errors",
    "UnknownTask": "penstock.errors",
    "UnsuitableServer": "penstock.errors",
    "Worker": "penstock.worker.worker",
    "current_job": "penstock.context",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value
