"""Routes of dead jobs: list and group them, retry or discard them."""

from dataclasses import asdict
from typing import Final

from starlette.responses import Response

from penstock.api.job import moment
from penstock.api.selection import Selection, choose
from penstock.engine.read.dead_groups import DeadGroup, DeadGroups
from penstock.http import parsing, scope
from penstock.http.bulk_actions import run_bulk_action
from penstock.http.contents import hide_reason
from penstock.http.json_response import json_response
from penstock.http.principal import Principal
from penstock.http.route import RequestContext, Route
from penstock.http.routes.jobs import criteria_of, page_of_jobs
from penstock.http.schemas.requests import DeadQuery, DeadRequest, NoQuery
from penstock.http.schemas.responses import ChangedAnswer, GroupAnswer, JobAnswer, Page


async def list_dead(context: RequestContext) -> Response:
    query: DeadQuery = context.query
    return await page_of_jobs(context, query.cursor, query.limit, {**criteria_of(query), "state": "dead"})


async def list_groups(context: RequestContext) -> Response:
    groups = await DeadGroups(context.program.client().engine).groups()
    return json_response({"items": [_answer(group, context.principal) for group in groups], "next": None})


def _answer(group: DeadGroup, principal: Principal) -> GroupAnswer:
    row = GroupAnswer(**asdict(group) | {"first": moment(group.first), "last": moment(group.last)})
    if not principal.reads_contents:
        row.reason, row.message = hide_reason(row.reason), ""
    return row


async def retry(context: RequestContext) -> Response:
    return await run_bulk_action(_selection(context).retry)


async def discard(context: RequestContext) -> Response:
    return await run_bulk_action(_selection(context).discard)


def _selection(context: RequestContext) -> Selection:
    request: DeadRequest = parsing.decode(context.body, DeadRequest)
    scope.require_filters(context.principal, request.queue, request.task)
    if request.error:
        scope.require_contents(context.principal, "the filter error")
    return Selection(context.program.client, choose(**criteria_of(request), state="dead"))


_CHANGED: Final = {200: ChangedAnswer}
ROUTES: Final = [
    Route(
        "GET",
        "/api/v1/dead",
        list_dead,
        "Dead jobs, the latest first",
        responses={200: Page[JobAnswer]},
        query=DeadQuery,
    ),
    Route(
        "GET",
        "/api/v1/dead/groups",
        list_groups,
        "Dead jobs by what they died of",
        whole_app=True,
        responses={200: Page[GroupAnswer]},
        query=NoQuery,
    ),
    Route("POST", "/api/v1/dead/retry", retry, "Run them again", role="operator", responses=_CHANGED, body=DeadRequest),
    Route("POST", "/api/v1/dead/discard", discard, "Forget them", role="admin", responses=_CHANGED, body=DeadRequest),
]
