"""Routes of lanes and locks: list and read them, pause, resume and limit one."""

from typing import Final

from starlette.responses import Response

from penstock.api.lane import LaneControl
from penstock.engine.read.lane_views import LaneStatus, LaneViews
from penstock.http import parsing
from penstock.http.json_response import json_response
from penstock.http.paging import page_of_names
from penstock.http.route import RequestContext, Route
from penstock.http.schemas.requests import LaneQuery, LimitRequest, PageQuery
from penstock.http.schemas.responses import LaneAnswer, Page
from penstock.model.lanes import lane_name, lock_spec


async def list_lanes(context: RequestContext) -> Response:
    """Reads only the lanes of the page: there may be very many."""
    views = LaneViews(context.program.client().engine.script_client)
    names, next_cursor = page_of_names(await views.names(), context.query)
    return json_response({"items": [_answer(await views.lane(name)) for name in names], "next": next_cursor})


async def get_lane(context: RequestContext) -> Response:
    return json_response(_answer(await _control(context).status()))


async def pause(context: RequestContext) -> Response:
    await _control(context).pause()
    return await get_lane(context)


async def resume(context: RequestContext) -> Response:
    await _control(context).resume()
    return await get_lane(context)


async def set_limit(context: RequestContext) -> Response:
    request: LimitRequest = parsing.decode(context.body, LimitRequest)
    control = _control(context)
    if request.limit is None:
        await control.reset()
    else:
        await control.set(limit=request.limit)
    return await get_lane(context)


def _control(context: RequestContext) -> LaneControl:
    query: LaneQuery = context.query
    name = context.path["name"]
    stored_name = lock_spec(name) if query.kind == "lock" else f"lane:{lane_name(name, 'lane')}"
    return LaneControl(context.program.client, stored_name)


def _answer(status: LaneStatus) -> LaneAnswer:
    values = status._asdict()
    return LaneAnswer(kind="lock" if values.pop("is_lock") else "lane", **values)


_PATH: Final = "/api/v1/lanes/{name}"
_LANE: Final = {200: LaneAnswer}
ROUTES: Final = [
    Route(
        "GET",
        "/api/v1/lanes",
        list_lanes,
        "Lanes and locks in use",
        whole_app=True,
        responses={200: Page[LaneAnswer]},
        query=PageQuery,
    ),
    Route("GET", _PATH, get_lane, "One lane or lock", whole_app=True, responses=_LANE, query=LaneQuery),
    Route(
        "PATCH",
        _PATH,
        set_limit,
        "Limit it by hand",
        role="admin",
        whole_app=True,
        responses=_LANE,
        body=LimitRequest,
        query=LaneQuery,
    ),
    Route(
        "POST",
        f"{_PATH}/pause",
        pause,
        "Start nothing of it",
        role="operator",
        whole_app=True,
        responses=_LANE,
        query=LaneQuery,
    ),
    Route(
        "POST",
        f"{_PATH}/resume",
        resume,
        "Let it go on",
        role="operator",
        whole_app=True,
        responses=_LANE,
        query=LaneQuery,
    ),
]
