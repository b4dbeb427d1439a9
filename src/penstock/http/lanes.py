"""Routes of lanes and locks: who has their slots, pause, resume, limit."""

from typing import Final

from starlette.responses import Response

from penstock.control import LaneControl
from penstock.engine.lane_views import LaneStatus, LaneViews
from penstock.http import bodies
from penstock.http.answers import LaneAnswer, Page
from penstock.http.pages import behind
from penstock.http.replies import answer
from penstock.http.requests import LaneQuery, LimitRequest, PageQuery
from penstock.http.routes import Ask, Route
from penstock.lanes import lane_name, lock_spec


async def every(ask: Ask) -> Response:
    """Only those of the page are looked at: there may be very many."""
    views = LaneViews(ask.program.hub().engine.link)
    names, following = behind(await views.names(), ask.query)
    return answer({"items": [_row(await views.one(name)) for name in names], "next": following})


async def get(ask: Ask) -> Response:
    return answer(_row(await _control(ask).status()))


async def pause(ask: Ask) -> Response:
    await _control(ask).pause()
    return await get(ask)


async def resume(ask: Ask) -> Response:
    await _control(ask).resume()
    return await get(ask)


async def limit(ask: Ask) -> Response:
    wanted: LimitRequest = bodies.decode(ask.body, LimitRequest)
    control = _control(ask)
    if wanted.limit is None:
        await control.reset()
    else:
        await control.set(limit=wanted.limit)
    return await get(ask)


def _control(ask: Ask) -> LaneControl:
    query: LaneQuery = ask.query
    name = ask.path["name"]
    stored = lock_spec(name) if query.kind == "lock" else f"lane:{lane_name(name, 'lane')}"
    return LaneControl(ask.program.hub, stored)


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
