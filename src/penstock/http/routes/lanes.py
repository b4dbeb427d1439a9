"""Routes of lanes and locks: who has their slots, pause, resume, limit."""

from typing import Final

from starlette.responses import Response

from penstock.api.lane import LaneControl
from penstock.engine.read.lane_views import LaneStatus, LaneViews
from penstock.http import parsing
from penstock.http.json_response import answer
from penstock.http.paging import behind
from penstock.http.route import RequestContext, Route
from penstock.http.schemas.requests import LaneQuery, LimitRequest, PageQuery
from penstock.http.schemas.responses import LaneAnswer, Page
from penstock.model.lanes import lane_name, lock_spec


async def every(ask: RequestContext) -> Response:
    """Only those of the page are looked at: there may be very many."""
    views = LaneViews(ask.program.client().engine.script_client)
    names, following = behind(await views.names(), ask.query)
    return answer({"items": [_row(await views.one(name)) for name in names], "next": following})


async def get(ask: RequestContext) -> Response:
    return answer(_row(await _control(ask).status()))


async def pause(ask: RequestContext) -> Response:
    await _control(ask).pause()
    return await get(ask)


async def resume(ask: RequestContext) -> Response:
    await _control(ask).resume()
    return await get(ask)


async def limit(ask: RequestContext) -> Response:
    wanted: LimitRequest = parsing.decode(ask.body, LimitRequest)
    control = _control(ask)
    if wanted.limit is None:
        await control.reset()
    else:
        await control.set(limit=wanted.limit)
    return await get(ask)


def _control(ask: RequestContext) -> LaneControl:
    query: LaneQuery = ask.query
    name = ask.path["name"]
    stored = lock_spec(name) if query.kind == "lock" else f"lane:{lane_name(name, 'lane')}"
    return LaneControl(ask.program.client, stored)


def _row(status: LaneStatus) -> LaneAnswer:
    found = status._asdict()
    return LaneAnswer(kind="lock" if found.pop("is_lock") else "lane", **found)


_ONE: Final = {200: LaneAnswer}
_PATH: Final = "/api/v1/lanes/{name}"
ROUTES: Final = [
    Route("GET", "/api/v1/lanes", every, "Lanes and locks in use", answers={200: Page[LaneAnswer]}, query=PageQuery),
    Route("GET", _PATH, get, "One lane or lock", answers=_ONE, query=LaneQuery),
    Route("PATCH", _PATH, limit, "Limit it by hand", role="admin", answers=_ONE, body=LimitRequest, query=LaneQuery),
    Route("POST", f"{_PATH}/pause", pause, "Start nothing of it", role="operator", answers=_ONE, query=LaneQuery),
    Route("POST", f"{_PATH}/resume", resume, "Let it go on", role="operator", answers=_ONE, query=LaneQuery),
]
