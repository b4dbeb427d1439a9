"""Every error of Penstock.

PenstockError
├── JobFailed, JobCancelled, ResultExpired      the answer of an awaited job
├── JobNotFound, BatchNotFound, ScheduleNotFound
├── StaleLease                                  this attempt no longer owns its job
├── QueueFull, PayloadTooLarge                  refused before anything was stored
├── UnknownTask, BadArguments, BadOption        wrong where it was written
├── BatchSealed
├── UnknownKey                                  what is stored is sealed with a key that this program does not have
├── UnsuitableServer                            reached, but nothing should be stored there
│   └── SchemaMismatch
└── Unavailable                                 not reached within the deadline; sending again with the same id is safe
    └── CannotConnect                           password, permission or certificate: waiting does not help
"""


class PenstockError(Exception):
    """The root of all errors that Penstock raises on purpose."""


class JobFailed(PenstockError):
    """The awaited job is dead: its tries are used up or it was buried."""


class JobCancelled(PenstockError):
    """The awaited job was cancelled, or expired before it could start."""


class ResultExpired(PenstockError):
    """The job is done, but its result is no longer kept."""


class JobNotFound(PenstockError):
    """No job of this id is known here, or it has been forgotten since."""


class BatchNotFound(PenstockError):
    """No batch of this id is known here, or it has been forgotten since its end."""


class ScheduleNotFound(PenstockError):
    """There is no schedule of this id."""


class StaleLease(PenstockError):
    """The attempt no longer owns its job; nothing was changed."""


class QueueFull(PenstockError):
    """The queue, or the whole server, has no room for another job; nothing was stored."""


class PayloadTooLarge(PenstockError):
    """Arguments or a result exceed the limit; nothing was stored."""


class UnknownTask(PenstockError):
    """No task of this name is registered."""


class BadArguments(PenstockError):
    """The arguments do not fit the task's signature or cannot be stored."""


class BadOption(PenstockError, ValueError):
    """An option, name or setting that cannot be used."""


class BatchSealed(PenstockError):
    """The batch takes no more members."""


class UnknownKey(PenstockError):
    """What is stored of a job is sealed with a key that this program does not have."""

    def __init__(self, key: str, what: str = "it") -> None:
        super().__init__(f"{what} is sealed with key {key!r}, which this program does not have")
        self.key = key


class UnsuitableServer(PenstockError):
    """The server answers, but jobs would not be safe there."""


class SchemaMismatch(UnsuitableServer):
    """The data under this namespace was written by a version with another layout."""


class Unavailable(PenstockError):
    """The engine could not be reached within the deadline; enqueueing again with the same id is safe."""


class CannotConnect(Unavailable):
    """Connecting fails for a reason that does not pass by itself: a password, a permission, a certificate."""


def may_pass(error: BaseException) -> bool:
    """Whether the error may pass by itself: then a caller that waits for a job waits on, else it gets the error."""
    if isinstance(error, PenstockError):
        return isinstance(error, Unavailable | QueueFull) and not isinstance(error, CannotConnect)
    return True
