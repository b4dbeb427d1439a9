"""OpenAPI 3.1, made from the routes and the types of their bodies, queries and responses."""

import re
from collections.abc import Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

import msgspec

from penstock.http.route import Route
from penstock.http.schemas.responses import Problem

_REF: Final = "#/components/schemas/{name}"
_PROBLEM: Final = {"application/problem+json": {"schema": {"$ref": _REF.format(name="Problem")}}}


def document(routes: Sequence[Route], title: str) -> dict[str, Any]:
    types = [kind for route in routes for kind in (route.body, *route.responses.values()) if kind is not None]
    schemas, components = msgspec.json.schema_components([*types, Problem], ref_template=_REF)
    next_schema = iter(schemas)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        body = next(next_schema) if route.body is not None else None
        responses = {status: None if kind is None else next(next_schema) for status, kind in route.responses.items()}
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, body, responses)
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Penstock: {title}", "version": version("penstock")},
        "servers": [{"url": "."}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "user": {"type": "http", "scheme": "basic"},
            },
        },
    }


def _operation(route: Route, body: Any, responses: dict[int, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.method.lower()} {route.path}",
        "tags": [route.path.removeprefix("/api/v1").strip("/").partition("/")[0] or "page"],
        "parameters": [*_path_parameters(route), *_query_parameters(route), *_header_parameters(route)],
        "responses": {str(status): _response(route, status, schema) for status, schema in responses.items()},
    }
    for status in _error_statuses(route):
        operation["responses"][str(status)] = {"description": HTTPStatus(status).phrase, "content": _PROBLEM}
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    if route.role is not None:
        operation["security"] = [{}, {"token": []}, {"user": []}]
        operation["x-role"] = route.role
        operation["x-needs"] = _needs(route)
    return operation


def _response(route: Route, status: int, schema: Any) -> dict[str, Any]:
    response: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if status not in {204, 303}:
        response["content"] = {route.media_type: {"schema": schema if schema is not None else {"type": "string"}}}
    return response


def _needs(route: Route) -> dict[str, Any]:
    """What a sender needs to use a route, as the route has it."""
    return {
        "role": route.role,
        "enqueuer": route.enqueuer,
        "contents": route.contents,
        "whole_queue": route.whole_queue,
        "whole_app": route.whole_app,
    }


def _error_statuses(route: Route) -> list[int]:
    """The statuses of the problems that such a route may answer with."""
    statuses = {503} if route.role is None else {401, 403, 422, 429, 503}
    if route.body is not None:
        statuses |= {401, 403, 422}  # a session is opened with a token
    if "{" in route.path:
        statuses |= {404, 414}
    if route.writes:
        statuses |= {400, 408, 409, 413, 429}
    if route.body is not None:
        statuses.add(415)
    return sorted(statuses)


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    schema = {"type": "string", "minLength": 1}
    names = re.findall(r"\{(\w+)\}", route.path)
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    query_schema = msgspec.json.schema(route.query)
    properties = query_schema["$defs"][route.query.__name__]["properties"]
    return [{"name": name, "in": "query", "schema": schema} for name, schema in properties.items()]


def _header_parameters(route: Route) -> list[dict[str, Any]]:
    schema = {"type": "string", "maxLength": 256}
    return [
        {"name": name, "in": "header", "description": text, "schema": schema} for name, text in route.headers.items()
    ]
