"""Routes of queues: list and read them, pause, resume, bound and purge one."""

from typing import Final

from msgspec import UNSET, UnsetType
from starlette.responses import Response

from penstock.api.program import Program
from penstock.api.queue import QueueControl
from penstock.engine.read.views import QueueSettings
from penstock.errors import BadArguments
from penstock.http import parsing, scope
from penstock.http.bulk_actions import run_bulk_action
from penstock.http.json_response import json_response
from penstock.http.paging import page_response
from penstock.http.problems import HttpError
from penstock.http.route import RequestContext, Route
from penstock.http.schemas.requests import PageQuery, QueueRequest
from penstock.http.schemas.responses import ChangedAnswer, Page, QueueAnswer
from penstock.model.header import STATES
from penstock.model.options import queue_name, unknown


async def list_queues(context: RequestContext) -> Response:
    queues = await all_queues(context.program)
    return page_response([queue for queue in queues if context.principal.uses_queue(queue.name)], context.query)


async def get_queue(context: RequestContext) -> Response:
    return json_response(await _queue(context))


async def pause(context: RequestContext) -> Response:
    await context.program.client().engine.pause((await _queue(context)).name)
    return await get_queue(context)


async def resume(context: RequestContext) -> Response:
    await context.program.client().engine.resume((await _queue(context)).name)
    return await get_queue(context)


async def set_bounds(context: RequestContext) -> Response:
    request: QueueRequest = parsing.decode(context.body, QueueRequest)
    if request.limit is UNSET and request.max_size is UNSET:
        raise BadArguments("nothing to set: give limit or max_size")
    name = (await _queue(context)).name
    await context.program.client().engine.cap(name, _bound(request.limit), _bound(request.max_size))
    return await get_queue(context)


def _bound(value: int | UnsetType | None) -> int | None:
    """As the engine takes it: -1 lifts a bound, None leaves it as it is."""
    return None if isinstance(value, UnsetType) else -1 if value is None else value


async def purge(context: RequestContext) -> Response:
    return await run_bulk_action(QueueControl(context.program, (await _queue(context)).name).purge)


async def all_queues(program: Program) -> list[QueueAnswer]:
    """All queues that ever had a job or a setting, and those of tasks."""
    views = program.client().views
    counts, settings, workers = await views.counts(), await views.queue_settings(), await views.workers()
    names = counts.keys() | settings.keys() | {task.options.queue for task in program.tasks.values()}
    queues = []
    for name in sorted(names):
        setting = settings.get(name, QueueSettings())
        serving = sum("*" in worker.queues or name in worker.queues for worker in workers)
        by_state: dict[str, int] = {state: counts.get(name, {}).get(state, 0) for state in STATES}
        queues.append(QueueAnswer(name, setting.paused, setting.limit, setting.max_size, serving, by_state))
    return queues


async def _queue(context: RequestContext) -> QueueAnswer:
    name = queue_name(context.path["name"])
    scope.require_queue(context.principal, name)
    all_of_them = await all_queues(context.program)
    queues = {queue.name: queue for queue in all_of_them if context.principal.uses_queue(queue.name)}
    if name in queues:
        return queues[name]
    hint = unknown("queue", name, list(queues)[:20]) if queues else f"no queue {name!r}: there are none"
    raise HttpError(404, hint)


_PATH: Final = "/api/v1/queues/{name}"
_QUEUE: Final = {200: QueueAnswer}
_CHANGED: Final = {200: ChangedAnswer}
ROUTES: Final = [
    Route("GET", "/api/v1/queues", list_queues, "All queues", responses={200: Page[QueueAnswer]}, query=PageQuery),
    Route("GET", _PATH, get_queue, "One queue", responses=_QUEUE),
    Route(
        "PATCH",
        _PATH,
        set_bounds,
        "Bound a queue",
        role="admin",
        whole_queue=True,
        responses=_QUEUE,
        body=QueueRequest,
    ),
    Route(
        "POST",
        f"{_PATH}/pause",
        pause,
        "Start no more jobs of it",
        role="operator",
        whole_queue=True,
        responses=_QUEUE,
    ),
    Route("POST", f"{_PATH}/resume", resume, "Let it go on", role="operator", whole_queue=True, responses=_QUEUE),
    Route(
        "POST",
        f"{_PATH}/purge",
        purge,
        "Cancel all that wait in it",
        role="admin",
        whole_queue=True,
        responses=_CHANGED,
    ),
]
