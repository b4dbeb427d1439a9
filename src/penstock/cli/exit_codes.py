"""The exit codes, and the code of each error."""

import errno
from enum import IntEnum

from penstock.errors import (
    BadArguments,
    BadOption,
    BatchNotFound,
    JobCancelled,
    JobFailed,
    JobNotFound,
    PayloadTooLarge,
    PenstockError,
    ScheduleNotFound,
    Unavailable,
    UnknownTask,
    UnsuitableServer,
)


class Exit(IntEnum):
    """Every exit code; 1 is every failure without a code of its own."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NO_CONNECTION = 3
    NO_APP = 4
    JOB_FAILED = 5
    TIMED_OUT = 6
    NOT_FOUND = 7
    UNHEALTHY = 8
    INTERRUPTED = 130  #: as shells have it: 128 + the number of SIGINT


_CODES: dict[type[PenstockError], Exit] = {
    BadArguments: Exit.USAGE,
    BadOption: Exit.USAGE,
    PayloadTooLarge: Exit.USAGE,
    Unavailable: Exit.NO_CONNECTION,
    UnsuitableServer: Exit.NO_CONNECTION,
    JobFailed: Exit.JOB_FAILED,
    JobCancelled: Exit.JOB_FAILED,
    JobNotFound: Exit.NOT_FOUND,
    BatchNotFound: Exit.NOT_FOUND,
    ScheduleNotFound: Exit.NOT_FOUND,
    UnknownTask: Exit.NOT_FOUND,
}


class CliError(Exception):
    """A message for stderr and the code to exit with."""

    def __init__(self, message: str, code: Exit) -> None:
        super().__init__(message)
        self.code = code


def code_of(error: PenstockError | CliError) -> Exit:
    """The exit code of an error."""
    if isinstance(error, CliError):
        return error.code
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), Exit.FAILED)


def cannot_listen(host: str, port: int, error: OSError, option: str) -> CliError:
    """The error if a port cannot be listened on; it names the option that chooses another."""
    if error.errno == errno.EADDRINUSE:
        return CliError(f"port {port} of {host} is in use: choose another with {option}", Exit.FAILED)
    why = error.strerror or str(error)
    return CliError(f"port {port} of {host} cannot be listened on ({why}): choose another with {option}", Exit.FAILED)
