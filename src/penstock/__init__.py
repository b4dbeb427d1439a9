"""Penstock: a job queue for Python on Redis and Valkey."""

from penstock.app import Penstock
from penstock.backoff import Backoff
from penstock.context import JobContext, current_job
from penstock.errors import (
    BadArguments,
    BadOption,
    BatchSealed,
    JobCancelled,
    JobFailed,
    JobNotFound,
    PayloadTooLarge,
    PenstockError,
    QueueFull,
    ResultExpired,
    SchemaMismatch,
    StaleLease,
    Unavailable,
    UnknownTask,
    UnsuitableServer,
)
from penstock.handle import Failure, Job, JobStatus
from penstock.steer import Bury, Retry, Snooze
from penstock.task import Call, Task
from penstock.worker.worker import Worker

__all__ = [
    "Backoff",
    "BadArguments",
    "BadOption",
    "BatchSealed",
    "Bury",
    "Call",
    "Failure",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobFailed",
    "JobNotFound",
    "JobStatus",
    "PayloadTooLarge",
    "Penstock",
    "PenstockError",
    "QueueFull",
    "ResultExpired",
    "Retry",
    "SchemaMismatch",
    "Snooze",
    "StaleLease",
    "Task",
    "Unavailable",
    "UnknownTask",
    "UnsuitableServer",
    "Worker",
    "current_job",
]
