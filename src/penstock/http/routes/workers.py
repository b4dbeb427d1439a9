"""`GET /api/v1/workers`: the live workers and what they run."""

import json
from typing import Any, Final

from starlette.responses import Response

from penstock.api.job import moment
from penstock.api.program import Program
from penstock.engine.read.views import Node, Run
from penstock.http.paging import page_response
from penstock.http.route import RequestContext, Route
from penstock.http.schemas.requests import PageQuery
from penstock.http.schemas.responses import Page, RunAnswer, WorkerAnswer


async def list_workers(context: RequestContext) -> Response:
    return page_response(await all_workers(context.program), context.query)


async def all_workers(program: Program) -> list[WorkerAnswer]:
    views = program.client().views
    runs = await views.runs()
    return [_answer(worker, runs.get(worker.worker, [])) for worker in await views.workers()]


def _answer(worker: Node, runs: list[Run]) -> WorkerAnswer:
    try:
        info: dict[str, Any] = json.loads(worker.info)
    except ValueError:
        info = {}
    return WorkerAnswer(
        name=worker.worker,
        host=str(info.get("host", "")),
        pid=int(info.get("pid", 0)),
        slots=int(info.get("slots", 0)),
        queues=worker.queues,
        since=moment(worker.since),
        alive_until=moment(worker.alive_until),
        version=str(info.get("version", "")),
        code=str(info.get("code", "")),
        stalled="stalled" in info,
        runs=[RunAnswer(run.id, run.task, run.attempt, moment(run.since)) for run in runs],
    )


ROUTES: Final = [
    Route(
        "GET",
        "/api/v1/workers",
        list_workers,
        "Live workers",
        whole_app=True,
        responses={200: Page[WorkerAnswer]},
        query=PageQuery,
    ),
]
