"""`GET /metrics`: metrics of the app as a whole, and of the service itself."""

from starlette.responses import Response

from penstock.api.program import Program
from penstock.http.request_metrics import RequestMetrics
from penstock.http.route import RequestContext, Route
from penstock.metrics.app_metrics import AppMetrics
from penstock.metrics.prometheus import MEDIA, text_of


def route(program: Program, request_metrics: RequestMetrics) -> Route:
    app_metrics = AppMetrics(program.client, lambda: (task.options.queue for task in program.tasks.values()))

    async def get_metrics(_: RequestContext) -> Response:
        return Response(text_of([*await app_metrics.families(), *request_metrics.families()]), media_type=MEDIA)

    return Route(
        "GET", "/metrics", get_metrics, "For Prometheus", whole_app=True, responses={200: None}, media_type=MEDIA
    )
