"""All routes of the service, put together."""

from starlette.responses import Response

from penstock.http import (
    batches,
    jobs,
    lanes,
    members,
    metrics,
    openapi,
    posting,
    probes,
    queues,
    schedules,
    selections,
    start,
    workers,
)
from penstock.http.access import Access
from penstock.http.events import Feed
from penstock.http.meters import Meters
from penstock.http.replies import answer
from penstock.http.routes import Ask, Route, Table
from penstock.http.service import Service
from penstock.program import Program

ROUTES: list[Route] = [
    *posting.ROUTES,
    *jobs.ROUTES,
    *selections.ROUTES,
    *batches.ROUTES,
    *members.ROUTES,
    *queues.ROUTES,
    *lanes.ROUTES,
    *schedules.ROUTES,
    *workers.ROUTES,
    *start.ROUTES,
    *probes.ROUTES,
]


def make_service(program: Program, access: Access) -> Service:
    meters = Meters()
    return Service(program, access, Table(all_routes(program, meters)), meters)


def all_routes(program: Program, meters: Meters) -> list[Route]:
    """Those, and the ones that each service has for itself."""
    routes = [*ROUTES, Feed().route, metrics.route(program, meters)]
    return [*routes, _description(routes, program.name)]


def _description(routes: list[Route], name: str) -> Route:
    document = openapi.document(routes, name)

    async def get(_: Ask) -> Response:
        return answer(document)

    return Route("GET", "/openapi.json", get, "This description", answers={200: None})
