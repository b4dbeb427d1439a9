"""All routes of the service, put together."""

from starlette.responses import Response

from penstock.http import jobs, lanes, openapi, probes, queues, schedules, workers
from penstock.http.access import Access
from penstock.http.replies import answer
from penstock.http.routes import Ask, Route, Table
from penstock.http.service import Service
from penstock.program import Program

ROUTES: list[Route] = [
    *jobs.ROUTES,
    *queues.ROUTES,
    *lanes.ROUTES,
    *schedules.ROUTES,
    *workers.ROUTES,
    *probes.ROUTES,
]


def make_service(program: Program, access: Access) -> Service:
    described = openapi.document(ROUTES, program.name)

    async def description(_: Ask) -> Response:
        return answer(described)

    page = Route("GET", "/openapi.json", description, "This description", answers={200: None})
    return Service(program, access, Table([*ROUTES, page]))
