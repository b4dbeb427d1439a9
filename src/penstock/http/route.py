"""What a route is, and which one a path leads to. The checks of a request and OpenAPI are both made from routes."""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import Response

from penstock.api.program import Program
from penstock.http.principal import Principal, Role
from penstock.http.schemas.requests import NoQuery


@dataclass(frozen=True, slots=True)
class RequestContext:
    """A request that has passed all checks of its route."""

    request: Request
    program: Program
    principal: Principal
    path: Mapping[str, str]  #: the values in the path
    query: Any  #: an instance of the route's `query`
    body: bytes
    details: list[str] = field(default_factory=list)  #: for the audit log: task and id of each job that was stored


class Handler(Protocol):
    """Answers one request."""

    def __call__(self, context: RequestContext, /) -> Awaitable[Response]: ...


@dataclass(frozen=True, slots=True)
class Route:
    """A method and a path, who may use them, what is sent and what comes back."""

    method: str
    path: str
    handle: Handler
    summary: str
    role: Role | None = "viewer"  #: of the ladder, to be had at least; None: no credentials needed, for probes
    enqueuer: bool = False  #: whether enqueuers may, too
    contents: bool = False  #: whether it needs the right to read contents
    whole_queue: bool = False  #: whether it concerns all tasks of a queue, so that those bound to some may not
    whole_app: bool = False  #: whether it concerns more than queues and tasks, so that those bound to some may not
    responses: Mapping[int, Any] = field(default_factory=dict)  #: status → type of the JSON; None: not JSON
    body: Any = None  #: type of the request's body, if it has one
    query: type[Any] = NoQuery
    headers: Mapping[str, str] = field(default_factory=dict)  #: of the request: name → description
    media_type: str = "application/json"  #: of the response

    @property
    def writes(self) -> bool:
        """Whether it may change something, so that it is in the audit log."""
        return self.method != "GET"

    @property
    def action(self) -> str:
        """Its name in the audit log, such as `queues pause`."""
        words = [part for part in self.path.removeprefix("/api/v1").split("/") if part and not _is_parameter(part)]
        return " ".join(words if self.method == "POST" else [*words, self.method.lower()])


@dataclass(frozen=True, slots=True)
class Match:
    """The routes of a path by their methods, and the values in the path."""

    routes: Mapping[str, Route]
    parameters: Mapping[str, str]


class RouteTable:
    """Finds routes by the path as it was sent, so that a name may contain a slash, written as %2F."""

    def __init__(self, routes: list[Route]) -> None:
        self.routes = routes
        patterns: dict[tuple[str, ...], dict[str, Route]] = {}
        for route in routes:
            patterns.setdefault(tuple(route.path.split("/")), {})[route.method] = route
        self._literal: dict[tuple[str, ...], Match] = {}
        self._parametrized: list[tuple[tuple[str, ...], dict[str, Route]]] = []
        for pattern, by_method in patterns.items():
            if any(map(_is_parameter, pattern)):
                self._parametrized.append((pattern, by_method))
            else:
                self._literal[pattern] = Match(by_method, {})

    def find(self, segments: tuple[str, ...]) -> Match | None:
        return self._literal.get(segments) or self._find_parametrized(segments)

    def _find_parametrized(self, segments: tuple[str, ...]) -> Match | None:
        for pattern, by_method in self._parametrized:
            if len(pattern) == len(segments):
                pairs = list(zip(pattern, segments, strict=True))
                if all(part == segment or (_is_parameter(part) and segment) for part, segment in pairs):
                    values = {part[1:-1]: unquote(segment) for part, segment in pairs if _is_parameter(part)}
                    return Match(by_method, values)
        return None


def _is_parameter(part: str) -> bool:
    return part.startswith("{")


def path_segments(scope: Mapping[str, Any]) -> tuple[str, ...]:
    """The parts of the path as it was sent, below the path under which the service is mounted."""
    raw = scope.get("raw_path")
    path = raw.partition(b"?")[0].decode("latin-1") if raw else quote(scope["path"])
    segments = path.split("/")
    prefix = scope.get("root_path", "").rstrip("/").split("/")
    if len(prefix) > 1 and [unquote(part) for part in segments[: len(prefix)]] == prefix:
        segments = ["", *segments[len(prefix) :]]
    return tuple(segments) if len(segments) > 1 else ("", "")
