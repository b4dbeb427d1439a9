"""The table of routes: what can be asked for, who may, what comes and goes. OpenAPI and all checks are made from it."""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import Response

from penstock.api.program import Program
from penstock.http.access import Principal, Role
from penstock.http.schemas.requests import NoQuery


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One request, checked: who asks, and what of the path, the query and the body was meant."""

    request: Request
    program: Program
    who: Principal | None
    path: Mapping[str, str]
    query: Any
    body: bytes


class Handler(Protocol):
    """Answers one request."""

    def __call__(self, ask: RequestContext, /) -> Awaitable[Response]: ...


@dataclass(frozen=True, slots=True)
class Route:
    """One thing that can be asked for."""

    method: str
    path: str
    handle: Handler
    summary: str
    role: Role | None = "viewer"  #: None: anybody, for probes
    answers: Mapping[int, Any] = field(default_factory=dict)  #: status → type of the answer; None: no JSON
    body: Any = None  #: type of the body, if it has one
    query: type[Any] = NoQuery
    headers: Mapping[str, str] = field(default_factory=dict)  #: of the request: name → what it is for
    media: str = "application/json"  #: of the answer

    @property
    def changes(self) -> bool:
        return self.method != "GET"

    @property
    def action(self) -> str:
        """As the audit log names it: `queues pause`."""
        words = [part for part in self.path.removeprefix("/api/v1").split("/") if part and not part.startswith("{")]
        return " ".join(words if self.method == "POST" else [*words, self.method.lower()])


@dataclass(frozen=True, slots=True)
class Match:
    """What a path leads to: routes by their methods, and the values in the path."""

    routes: Mapping[str, Route]
    values: Mapping[str, str]


class Table:
    """Finds routes by paths. It goes by the path as it was sent, so that a name may have a slash in it, as %2F."""

    def __init__(self, routes: list[Route]) -> None:
        self.routes = routes
        shapes: dict[tuple[str, ...], dict[str, Route]] = {}
        for route in routes:
            shapes.setdefault(tuple(route.path.split("/")), {})[route.method] = route
        self._fixed = {shape: Match(found, {}) for shape, found in shapes.items() if not any(map(_is_open, shape))}
        self._others = [(shape, found) for shape, found in shapes.items() if shape not in self._fixed]

    def find(self, segments: tuple[str, ...]) -> Match | None:
        return self._fixed.get(segments) or self._find_open(segments)

    def _find_open(self, segments: tuple[str, ...]) -> Match | None:
        for shape, routes in self._others:
            if len(shape) == len(segments):
                pairs = list(zip(shape, segments, strict=True))
                if all(part == segment or (_is_open(part) and segment) for part, segment in pairs):
                    return Match(routes, {part[1:-1]: unquote(one) for part, one in pairs if _is_open(part)})
        return None


def _is_open(part: str) -> bool:
    """Whether this part of a route's path stands for a value."""
    return part.startswith("{")


def segments_of(scope: Mapping[str, Any]) -> tuple[str, ...]:
    """The parts of the path as it was sent, below the place where this service is mounted."""
    raw = scope.get("raw_path")
    path = raw.partition(b"?")[0].decode("latin-1") if raw else quote(scope["path"])
    segments = path.split("/")
    prefix = scope.get("root_path", "").rstrip("/").split("/")
    if len(prefix) > 1 and [unquote(part) for part in segments[: len(prefix)]] == prefix:
        segments = ["", *segments[len(prefix) :]]
    return tuple(segments) if len(segments) > 1 else ("", "")
