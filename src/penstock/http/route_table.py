"""All routes of the service, put together."""

from starlette.responses import Response

from penstock.api.program import Program
from penstock.http import openapi
from penstock.http.access import Access
from penstock.http.json_response import answer
from penstock.http.request_metrics import RequestMetrics
from penstock.http.route import RequestContext, Route, Table
from penstock.http.routes import (
    batch_members,
    batches,
    create_jobs,
    home,
    job_selections,
    jobs,
    lanes,
    metrics,
    probes,
    queues,
    schedules,
    workers,
)
from penstock.http.routes.events import Feed
from penstock.http.service import Service

ROUTES: list[Route] = [
    *create_jobs.ROUTES,
    *jobs.ROUTES,
    *job_selections.ROUTES,
    *batches.ROUTES,
    *batch_members.ROUTES,
    *queues.ROUTES,
    *lanes.ROUTES,
    *schedules.ROUTES,
    *workers.ROUTES,
    *home.ROUTES,
    *probes.ROUTES,
]


def make_service(program: Program, access: Access) -> Service:
    meters = RequestMetrics()
    return Service(program, access, Table(all_routes(program, meters)), meters)


def all_routes(program: Program, meters: RequestMetrics) -> list[Route]:
    """Those, and the ones that each service has for itself."""
    routes = [*ROUTES, Feed().route, metrics.route(program, meters)]
    return [*routes, _description(routes, program.name)]


def _description(routes: list[Route], name: str) -> Route:
    document = openapi.document(routes, name)

    async def get(_: RequestContext) -> Response:
        return answer(document)

    return Route("GET", "/openapi.json", get, "This description", answers={200: None})
