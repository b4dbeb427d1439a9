"""Errors as problem details: which status each has, and what the body says."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

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
from penstock.http.json_response import encode
from penstock.http.schemas.responses import Problem

#: What any other error of ours says of the job as it is: it has ended, it runs, its key is taken, its batch is sealed.
_OTHERWISE: Final = 409
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
_AGAIN: Final = {"Retry-After": "1"}


class HttpError(Exception):
    """A request that is answered with a problem."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers


def refusal(error: PenstockError) -> HttpError:
    """How an error of ours is told over HTTP."""
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), _OTHERWISE)
    return HttpError(status, str(error), _AGAIN if status in {429, 503} else None)


def problem(error: HttpError | PenstockError) -> Problem:
    refused = error if isinstance(error, HttpError) else refusal(error)
    return Problem(title=HTTPStatus(refused.status).phrase, status=refused.status, detail=refused.detail)


def reply(refused: HttpError) -> Response:
    headers = {"Cache-Control": "no-store", **(refused.headers or {})}
    return Response(encode(problem(refused)), refused.status, headers, "application/problem+json")
