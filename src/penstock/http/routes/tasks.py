"""`GET /api/v1/tasks`: the tasks that can be enqueued here."""

from typing import Any, Final

from starlette.responses import Response

from penstock.api.task import Task
from penstock.http.paging import page_response
from penstock.http.route import RequestContext, Route
from penstock.http.schemas.requests import PageQuery
from penstock.http.schemas.responses import Page, TaskAnswer


async def list_tasks(context: RequestContext) -> Response:
    tasks = [task for task in context.program.tasks.values() if context.principal.uses_task(task.name)]
    return page_response([_answer(task) for task in tasks], context.query)


def _answer(task: Task[..., Any, Any]) -> TaskAnswer:
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
    Route(
        "GET",
        "/api/v1/tasks",
        list_tasks,
        "Tasks that can be enqueued here",
        responses={200: Page[TaskAnswer]},
        query=PageQuery,
    ),
]
