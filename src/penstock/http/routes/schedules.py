"""Routes of schedules: list and read them, run, pause, resume and remove one."""

from typing import Final

from starlette.responses import Response

from penstock.api.schedule import Schedule, ScheduleStatus, status_of
from penstock.http import scope
from penstock.http.json_response import json_response
from penstock.http.paging import page_response
from penstock.http.route import RequestContext, Route
from penstock.http.schemas.requests import PageQuery
from penstock.http.schemas.responses import JobAnswer, Page


async def list_schedules(context: RequestContext) -> Response:
    views = context.program.client().views
    now = await views.now()
    rows = [status_of(schedule, now) async for schedule in views.crons()]
    seen = [row for row in rows if context.principal.uses(row.queue, row.task)]
    return page_response(seen, context.query, key="id")


async def get_schedule(context: RequestContext) -> Response:
    return json_response(await (await _schedule(context)).status())


async def run(context: RequestContext) -> Response:
    schedule = await _schedule(context)
    task = (await schedule.status()).task
    job = await schedule.run()
    context.details.append(f"{task} {job.id}")
    record = await context.program.client().views.job(job.id)  # None if it waits for the job before it
    state = (record.header.state if record else "") or "scheduled"
    return json_response(JobAnswer(job.id, state, job.created), 201)


async def pause(context: RequestContext) -> Response:
    await (await _schedule(context)).pause()
    return await get_schedule(context)


async def resume(context: RequestContext) -> Response:
    await (await _schedule(context)).resume()
    return await get_schedule(context)


async def remove(context: RequestContext) -> Response:
    await (await _schedule(context)).remove()
    return Response(status_code=204)


async def _schedule(context: RequestContext) -> Schedule:
    """The schedule of the path, if the sender may use its jobs."""
    schedule = Schedule(context.program.client(), context.path["id"])
    if not context.principal.sees_whole_app:
        status = await schedule.status()
        scope.require_queue(context.principal, status.queue)
        scope.require_task(context.principal, status.task)
    return schedule


_PATH: Final = "/api/v1/schedules/{id}"
_SCHEDULE: Final = {200: ScheduleStatus}
ROUTES: Final = [
    Route(
        "GET",
        "/api/v1/schedules",
        list_schedules,
        "All schedules",
        responses={200: Page[ScheduleStatus]},
        query=PageQuery,
    ),
    Route("GET", _PATH, get_schedule, "One schedule", responses=_SCHEDULE),
    Route(
        "DELETE",
        _PATH,
        remove,
        "Forget a schedule; one of the code comes back",
        role="admin",
        responses={204: None},
    ),
    Route("POST", f"{_PATH}/run", run, "A job of it now", role="operator", responses={201: JobAnswer}),
    Route("POST", f"{_PATH}/pause", pause, "No ticks until it is resumed", role="operator", responses=_SCHEDULE),
    Route("POST", f"{_PATH}/resume", resume, "Go on with the next tick from now", role="operator", responses=_SCHEDULE),
]
