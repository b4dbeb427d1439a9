"""All routes of the service. A new resource adds its ROUTES here."""

from starlette.responses import Response

from penstock.api.program import Program
from penstock.http import openapi
from penstock.http.access import Access
from penstock.http.json_response import json_response
from penstock.http.request_metrics import RequestMetrics
from penstock.http.route import RequestContext, Route, RouteTable
from penstock.http.routes import (
    batches,
    create_jobs,
    dead,
    jobs,
    lanes,
    metrics,
    probes,
    queues,
    schedules,
    tasks,
    workers,
)
from penstock.http.routes.events import EventFeed
from penstock.http.routes.session import SessionRoutes
from penstock.http.service import Service

ROUTES: list[Route] = [
    *create_jobs.ROUTES,
    *jobs.ROUTES,
    *dead.ROUTES,
    *batches.ROUTES,
    *queues.ROUTES,
    *lanes.ROUTES,
    *schedules.ROUTES,
    *workers.ROUTES,
    *tasks.ROUTES,
]


def make_service(program: Program, access: Access) -> Service:
    request_metrics = RequestMetrics()
    return Service(program, access, RouteTable(all_routes(program, access, request_metrics)), request_metrics)


def all_routes(program: Program, access: Access, request_metrics: RequestMetrics) -> list[Route]:
    """ROUTES, and the routes that keep state of one service."""
    routes = [
        *ROUTES,
        EventFeed().route,
        *SessionRoutes(access).routes,
        *probes.routes(),
        metrics.route(program, request_metrics),
    ]
    return [*routes, _openapi_route(routes, program.name)]


def _openapi_route(routes: list[Route], name: str) -> Route:
    document = openapi.document(routes, name)

    async def get_openapi(_: RequestContext) -> Response:
        return json_response(document)

    return Route("GET", "/openapi.json", get_openapi, "This description", responses={200: None})
