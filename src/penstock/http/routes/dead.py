"""Routes of jobs by filter: listed, and the dead steered together."""

from dataclasses import asdict
from typing import Any, Final

import msgspec
from starlette.responses import Response

from penstock.api.job import moment
from penstock.api.selection import Selection, choose
from penstock.engine.read.dead_groups import DeadGroups
from penstock.http import parsing
from penstock.http.bulk_actions import bounded
from penstock.http.json_response import answer
from penstock.http.route import RequestContext, Route
from penstock.http.routes.jobs import from_status
from penstock.http.schemas.requests import DeadQuery, DeadRequest, JobsQuery, NoQuery
from penstock.http.schemas.responses import ChangedAnswer, GroupAnswer, JobAnswer, Page

_PAGES: Final = 20  #: that are looked at for one answer, if few jobs fit


async def every(ask: RequestContext) -> Response:
    query: JobsQuery = ask.query
    return await listed(ask, query.cursor, query.limit, _chosen(query))


async def dead(ask: RequestContext) -> Response:
    query: DeadQuery = ask.query
    return await listed(ask, query.cursor, query.limit, {**_chosen(query), "state": "dead"})


async def groups(ask: RequestContext) -> Response:
    found = await DeadGroups(ask.program.client().engine).groups()
    rows = [GroupAnswer(**asdict(one) | {"first": moment(one.first), "last": moment(one.last)}) for one in found]
    return answer({"items": rows, "next": None})


async def retry(ask: RequestContext) -> Response:
    return await bounded(_wanted(ask).retry)


async def discard(ask: RequestContext) -> Response:
    return await bounded(_wanted(ask).discard)


async def listed(ask: RequestContext, cursor: str, limit: int, which: dict[str, Any]) -> Response:
    """A page is a bounded look at an index, so that it may have few jobs, or none, and still be followed by another."""
    selection = Selection(ask.program.client, choose(**which))
    found: list[JobAnswer] = []
    for _ in range(_PAGES):
        statuses, cursor = await selection.page(cursor, limit - len(found))
        found += [from_status(one) for one in statuses]
        if not cursor or len(found) >= limit:
            break
    return answer({"items": found, "next": cursor or None})


def _wanted(ask: RequestContext) -> Selection:
    given: DeadRequest = parsing.decode(ask.body, DeadRequest)
    return Selection(ask.program.client, choose(**_chosen(given), state="dead"))


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
