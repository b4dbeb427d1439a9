"""Errors as problem details (RFC 9457): the status of each, and its body."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, Literal, get_args

from starlette.responses import Response

from penstock.errors import (
    BadArguments,
    BadOption,
    BatchNotFound,
    JobNotFound,
    PayloadTooLarge,
    PenstockError,
    QueueFull,
    ScheduleNotFound,
    Unavailable,
    UnknownTask,
    UnsuitableServer,
)
from penstock.http.json_response import encode_json
from penstock.http.schemas.responses import Problem

_DEFAULT_STATUS: Final = 409  #: any other error is about a job's state: it has ended, or its batch is sealed
_STATUS: Final[dict[type[PenstockError], int]] = {
    BadArguments: 422,
    BadOption: 422,
    UnknownTask: 422,
    PayloadTooLarge: 413,
    JobNotFound: 404,
    BatchNotFound: 404,
    ScheduleNotFound: 404,
    QueueFull: 429,
    Unavailable: 503,
    UnsuitableServer: 503,
}
#: Why a request was refused: no credentials, wrong or expired ones, too many wrong ones before; a role, a right or a
#: scope that is missing; too many requests at once; another site or another host name; a proxy where none may be.
Cause = Literal["none", "wrong", "expired", "guesses", "role", "right", "scope", "busy", "site", "host", "proxy"]
CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)
_RETRY_AFTER: Final = {"Retry-After": "1"}


class HttpError(Exception):
    """A request is answered with this status and a problem."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers


class Refused(HttpError):
    """The sender may not do this. `cause` is its label in the metrics; what lacks a role or a right is 403."""

    def __init__(self, cause: Cause, detail: str, status: int = 403, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, detail, headers)
        self.cause = cause


def http_error(error: PenstockError) -> HttpError:
    """The response to an error of Penstock."""
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), _DEFAULT_STATUS)
    return HttpError(status, str(error), _RETRY_AFTER if status in {429, 503} else None)


def problem_of(error: HttpError | PenstockError) -> Problem:
    if not isinstance(error, HttpError):
        error = http_error(error)
    return Problem(title=HTTPStatus(error.status).phrase, status=error.status, detail=error.detail)


def problem_response(error: HttpError) -> Response:
    headers = {"Cache-Control": "no-store", **(error.headers or {})}
    return Response(encode_json(problem_of(error)), error.status, headers, "application/problem+json")
