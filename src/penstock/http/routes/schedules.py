"""Routes of schedules: what runs when, run now, pause, resume, remove."""

from typing import Final

from starlette.responses import Response

from penstock.api.schedule import Schedule, ScheduleStatus, status_of
from penstock.http.json_response import answer
from penstock.http.paging import page
from penstock.http.route import RequestContext, Route
from penstock.http.schemas.requests import PageQuery
from penstock.http.schemas.responses import JobAnswer, Page


async def every(ask: RequestContext) -> Response:
    views = ask.program.client().views
    now = await views.now()
    return page([status_of(one, now) async for one in views.crons()], ask.query, key="id")


async def get(ask: RequestContext) -> Response:
    return answer(await _schedule(ask).status())


async def run(ask: RequestContext) -> Response:
    schedule = _schedule(ask)
    await schedule.status()
    job = await schedule.run()
    record = await ask.program.client().views.job(job.id)  # none yet, if it waits for the one before it
    state = (record.header.state if record else "") or "scheduled"
    return answer(JobAnswer(job.id, state, job.created), 201)


async def pause(ask: RequestContext) -> Response:
    await _schedule(ask).pause()
    return await get(ask)


async def resume(ask: RequestContext) -> Response:
    await _schedule(ask).resume()
    return await get(ask)


async def remove(ask: RequestContext) -> Response:
    await _schedule(ask).remove()
    return Response(status_code=204)


def _schedule(ask: RequestContext) -> Schedule:
    return Schedule(ask.program.client(), ask.path["id"])


_ONE: Final = {200: ScheduleStatus}
_PATH: Final = "/api/v1/schedules/{id}"
ROUTES: Final = [
    Route("GET", "/api/v1/schedules", every, "All schedules", answers={200: Page[ScheduleStatus]}, query=PageQuery),
    Route("GET", _PATH, get, "One schedule", answers=_ONE),
    Route("DELETE", _PATH, remove, "Forget a schedule; one of the code comes back", role="admin", answers={204: None}),
    Route("POST", f"{_PATH}/run", run, "A job of it now", role="operator", answers={201: JobAnswer}),
    Route("POST", f"{_PATH}/pause", pause, "No ticks until it is resumed", role="operator", answers=_ONE),
    Route("POST", f"{_PATH}/resume", resume, "Go on with the next tick from now", role="operator", answers=_ONE),
]
