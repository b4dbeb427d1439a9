"""`GET /metrics`: the app as a whole, and the service itself."""

from starlette.responses import Response

from penstock.api.program import Program
from penstock.http.request_metrics import RequestMetrics
from penstock.http.route import RequestContext, Route
from penstock.metrics.app_metrics import AppMetrics
from penstock.metrics.prometheus import MEDIA, text_of


def route(program: Program, meters: RequestMetrics) -> Route:
    metrics = AppMetrics(program.client, lambda: (task.options.queue for task in program.tasks.values()))

    async def get(_: RequestContext) -> Response:
        return Response(text_of([*await metrics.families(), *meters.families()]), media_type=MEDIA)

    return Route("GET", "/metrics", get, "For Prometheus", answers={200: None}, media=MEDIA)
