"""Routes of queues: how many jobs are where, pause, resume, bound, purge."""

from typing import Final

from msgspec import UNSET, UnsetType
from starlette.responses import Response

from penstock.api.program import Program
from penstock.api.queue import QueueControl
from penstock.engine.read.views import QueueSettings
from penstock.errors import BadArguments
from penstock.http import parsing
from penstock.http.bulk_actions import bounded
from penstock.http.json_response import answer
from penstock.http.paging import page
from penstock.http.problems import HttpError
from penstock.http.route import RequestContext, Route
from penstock.http.schemas.requests import PageQuery, QueueRequest
from penstock.http.schemas.responses import ChangedAnswer, Page, QueueAnswer
from penstock.model.header import STATES
from penstock.model.options import queue_name, unknown


async def every(ask: RequestContext) -> Response:
    return page(await rows(ask.program), ask.query)


async def get(ask: RequestContext) -> Response:
    return answer(await _one(ask))


async def pause(ask: RequestContext) -> Response:
    await ask.program.client().engine.pause((await _one(ask)).name)
    return answer(await _one(ask))


async def resume(ask: RequestContext) -> Response:
    await ask.program.client().engine.resume((await _one(ask)).name)
    return answer(await _one(ask))


async def bound(ask: RequestContext) -> Response:
    wanted: QueueRequest = parsing.decode(ask.body, QueueRequest)
    if wanted.limit is UNSET and wanted.max_size is UNSET:
        raise BadArguments("nothing to set: give limit or max_size")
    await ask.program.client().engine.cap((await _one(ask)).name, _cap(wanted.limit), _cap(wanted.max_size))
    return answer(await _one(ask))


def _cap(wanted: int | UnsetType | None) -> int | None:
    """As the engine takes it: -1 lifts a bound, None leaves it."""
    return None if isinstance(wanted, UnsetType) else -1 if wanted is None else wanted


async def purge(ask: RequestContext) -> Response:
    return await bounded(QueueControl(ask.program, (await _one(ask)).name).purge)


async def rows(program: Program) -> list[QueueAnswer]:
    """All queues: those that had a job, and those of tasks."""
    views = program.client().views
    counts, settings, nodes = await views.counts(), await views.queue_settings(), await views.workers()
    names = counts.keys() | settings.keys() | {task.options.queue for task in program.tasks.values()}
    found = []
    for name in sorted(names):
        setting = settings.get(name, QueueSettings())
        serving = sum("*" in node.queues or name in node.queues for node in nodes)
        by_state: dict[str, int] = {state: counts.get(name, {}).get(state, 0) for state in STATES}
        found.append(QueueAnswer(name, setting.paused, setting.limit, setting.max_size, serving, by_state))
    return found


async def _one(ask: RequestContext) -> QueueAnswer:
    name = queue_name(ask.path["name"])
    found = {row.name: row for row in await rows(ask.program)}
    if name not in found:
        raise HttpError(
            404, unknown("queue", name, list(found)[:20]) if found else f"no queue {name!r}: there are none"
        )
    return found[name]


_ONE: Final = {200: QueueAnswer}
ROUTES: Final = [
    Route("GET", "/api/v1/queues", every, "All queues", answers={200: Page[QueueAnswer]}, query=PageQuery),
    Route("GET", "/api/v1/queues/{name}", get, "One queue", answers=_ONE),
    Route("PATCH", "/api/v1/queues/{name}", bound, "Bound a queue", role="admin", answers=_ONE, body=QueueRequest),
    Route("POST", "/api/v1/queues/{name}/pause", pause, "Start no more jobs of it", role="operator", answers=_ONE),
    Route("POST", "/api/v1/queues/{name}/resume", resume, "Let it go on", role="operator", answers=_ONE),
    Route(
        "POST",
        "/api/v1/queues/{name}/purge",
        purge,
        "Cancel all that wait in it",
        role="admin",
        answers={200: ChangedAnswer},
    ),
]
