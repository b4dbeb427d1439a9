"""Routes that show who works here, and on which tasks."""

import json
from typing import Any, Final

from starlette.responses import Response

from penstock.api.job import moment
from penstock.api.program import Program
from penstock.api.task import Task
from penstock.engine.read.views import Node, Run
from penstock.http.paging import page
from penstock.http.route import RequestContext, Route
from penstock.http.schemas.requests import PageQuery
from penstock.http.schemas.responses import Page, RunAnswer, TaskAnswer, WorkerAnswer


async def workers(ask: RequestContext) -> Response:
    return page(await rows(ask.program), ask.query)


async def tasks(ask: RequestContext) -> Response:
    return page([_task(one) for one in ask.program.tasks.values()], ask.query)


async def rows(program: Program) -> list[WorkerAnswer]:
    views = program.client().views
    runs = await views.runs()
    return [_worker(node, runs.get(node.worker, [])) for node in await views.workers()]


def _worker(node: Node, runs: list[Run]) -> WorkerAnswer:
    try:
        info: dict[str, Any] = json.loads(node.info)
    except ValueError:
        info = {}
    return WorkerAnswer(
        name=node.worker,
        host=str(info.get("host", "")),
        pid=int(info.get("pid", 0)),
        slots=int(info.get("slots", 0)),
        queues=node.queues,
        since=moment(node.since),
        alive_until=moment(node.alive_until),
        version=str(info.get("version", "")),
        code=str(info.get("code", "")),
        stalled="stalled" in info,
        runs=[RunAnswer(one.id, one.task, one.attempt, moment(one.since)) for one in runs],
    )


def _task(task: Task[..., Any, Any]) -> TaskAnswer:
    options = task.options
    return TaskAnswer(
        name=task.name,
        queue=options.queue,
        priority=options.priority,
        retries=options.retries,
        timeout=options.timeout / 1000 or None,
        doc=(task.function.__doc__ or "").strip(),
        arguments=task.signature.schema(),
    )


ROUTES: Final = [
    Route("GET", "/api/v1/workers", workers, "Live workers", answers={200: Page[WorkerAnswer]}, query=PageQuery),
    Route(
        "GET",
        "/api/v1/tasks",
        tasks,
        "Tasks that can be enqueued here",
        answers={200: Page[TaskAnswer]},
        query=PageQuery,
    ),
]
