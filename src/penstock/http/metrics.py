"""`GET /metrics`: the app as a whole, and the service itself."""

from starlette.responses import Response

from penstock.exposition import MEDIA, text_of
from penstock.http.meters import Meters
from penstock.http.routes import Ask, Route
from penstock.metrics import Metrics
from penstock.program import Program


def route(program: Program, meters: Meters) -> Route:
    metrics = Metrics(program.hub, lambda: (task.options.queue for task in program.tasks.values()))

    async def get(_: Ask) -> Response:
        return Response(text_of([*await metrics.families(), *meters.families()]), media_type=MEDIA)

    return Route("GET", "/metrics", get, "For Prometheus", answers={200: None}, media=MEDIA)
