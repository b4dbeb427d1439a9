"""Routes of queues: how many jobs are where, pause, resume, limit."""

from typing import Final

from starlette.responses import Response

from penstock.engine.views import QueueSettings
from penstock.http import bodies
from penstock.http.pages import page
from penstock.http.problems import Refused
from penstock.http.replies import answer
from penstock.http.routes import Ask, Route
from penstock.http.shapes import LimitRequest, Page, PageQuery, QueueAnswer
from penstock.job import STATES
from penstock.options import queue_name, unknown
from penstock.program import Program
from penstock.queue import QueueControl


async def every(ask: Ask) -> Response:
    return page(await rows(ask.program), ask.query)


async def get(ask: Ask) -> Response:
    return answer(await _one(ask))


async def pause(ask: Ask) -> Response:
    await (await _known(ask)).pause()
    return answer(await _one(ask))


async def resume(ask: Ask) -> Response:
    await (await _known(ask)).resume()
    return answer(await _one(ask))


async def limit(ask: Ask) -> Response:
    wanted: LimitRequest = bodies.decode(ask.body, LimitRequest)
    queue = await _known(ask)
    if wanted.limit is None:
        await queue.reset()
    else:
        await queue.set(limit=wanted.limit)
    return answer(await _one(ask))


async def rows(program: Program) -> list[QueueAnswer]:
    """All queues: those that had a job, and those of tasks."""
    views = program.hub().views
    counts, settings, nodes = await views.counts(), await views.queue_settings(), await views.workers()
    names = counts.keys() | settings.keys() | {task.options.queue for task in program.tasks.values()}
    found = []
    for name in sorted(names):
        setting = settings.get(name, QueueSettings())
        serving = sum("*" in node.queues or name in node.queues for node in nodes)
        by_state: dict[str, int] = {state: counts.get(name, {}).get(state, 0) for state in STATES}
        found.append(QueueAnswer(name, setting.paused, setting.limit, serving, by_state))
    return found


async def _known(ask: Ask) -> QueueControl:
    return QueueControl(ask.program, (await _one(ask)).name)


async def _one(ask: Ask) -> QueueAnswer:
    name = queue_name(ask.path["name"])
    found = {row.name: row for row in await rows(ask.program)}
    if name not in found:
        raise Refused(404, unknown("queue", name, list(found)[:20]) if found else f"no queue {name!r}: there are none")
    return found[name]


_ONE: Final = {200: QueueAnswer}
ROUTES: Final = [
    Route("GET", "/api/v1/queues", every, "All queues", answers={200: Page[QueueAnswer]}, query=PageQuery),
    Route("GET", "/api/v1/queues/{name}", get, "One queue", answers=_ONE),
    Route("PATCH", "/api/v1/queues/{name}", limit, "Limit a queue", role="admin", answers=_ONE, body=LimitRequest),
    Route("POST", "/api/v1/queues/{name}/pause", pause, "Start no more jobs of it", role="operator", answers=_ONE),
    Route("POST", "/api/v1/queues/{name}/resume", resume, "Let it go on", role="operator", answers=_ONE),
]
