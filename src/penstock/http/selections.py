"""Routes of jobs by filter: listed, and the dead steered together."""

from dataclasses import asdict
from typing import Any, Final

import msgspec
from starlette.responses import Response

from penstock.engine.deaths import Deaths
from penstock.handle import moment
from penstock.http import bodies
from penstock.http.answers import ChangedAnswer, GroupAnswer, JobAnswer, Page
from penstock.http.bulk import bounded
from penstock.http.jobs import from_status
from penstock.http.replies import answer
from penstock.http.requests import DeadQuery, DeadRequest, JobsQuery, NoQuery
from penstock.http.routes import Ask, Route
from penstock.selection import Selection, choose

_PAGES: Final = 20  #: that are looked at for one answer, if few jobs fit


async def every(ask: Ask) -> Response:
    query: JobsQuery = ask.query
    return await listed(ask, query.cursor, query.limit, _chosen(query))


async def dead(ask: Ask) -> Response:
    query: DeadQuery = ask.query
    return await listed(ask, query.cursor, query.limit, {**_chosen(query), "state": "dead"})


async def groups(ask: Ask) -> Response:
    found = await Deaths(ask.program.hub().engine).groups()
    rows = [GroupAnswer(**asdict(one) | {"first": moment(one.first), "last": moment(one.last)}) for one in found]
    return answer({"items": rows, "next": None})


async def retry(ask: Ask) -> Response:
    return await bounded(_wanted(ask).retry)


async def discard(ask: Ask) -> Response:
    return await bounded(_wanted(ask).discard)


async def listed(ask: Ask, cursor: str, limit: int, which: dict[str, Any]) -> Response:
    """A page is a bounded look at an index, so that it may have few jobs, or none, and still be followed by another."""
    selection = Selection(ask.program.hub, choose(**which))
    found: list[JobAnswer] = []
    for _ in range(_PAGES):
        statuses, cursor = await selection.page(cursor, limit - len(found))
        found += [from_status(one) for one in statuses]
        if not cursor or len(found) >= limit:
            break
    return answer({"items": found, "next": cursor or None})


def _wanted(ask: Ask) -> Selection:
    given: DeadRequest = bodies.decode(ask.body, DeadRequest)
    return Selection(ask.program.hub, choose(**_chosen(given), state="dead"))


def _chosen(given: msgspec.Struct) -> dict[str, Any]:
    """What was asked for, as `choose` takes it."""
    found = {name: getattr(given, name) for name in given.__struct_fields__ if name not in {"cursor", "limit"}}
    return {name: value for name, value in found.items() if value not in {"", msgspec.UNSET}}


_LIST: Final = {200: Page[JobAnswer]}
_DONE: Final = {200: ChangedAnswer}
ROUTES: Final = [
    Route("GET", "/api/v1/jobs", every, "Jobs by filter", answers=_LIST, query=JobsQuery),
    Route("GET", "/api/v1/dead", dead, "Dead jobs, the latest first", answers=_LIST, query=DeadQuery),
    Route(
        "GET",
        "/api/v1/dead/groups",
        groups,
        "Dead jobs by what they died of",
        answers={200: Page[GroupAnswer]},
        query=NoQuery,
    ),
    Route("POST", "/api/v1/dead/retry", retry, "Run them again", role="operator", answers=_DONE, body=DeadRequest),
    Route("POST", "/api/v1/dead/discard", discard, "Forget them", role="admin", answers=_DONE, body=DeadRequest),
]
