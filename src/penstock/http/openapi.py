"""OpenAPI 3.1, made from the table of routes and the types that check what comes."""

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
    types = [kind for route in routes for kind in (route.body, *route.answers.values()) if kind is not None]
    schemas, components = msgspec.json.schema_components([*types, Problem], ref_template=_REF)
    found = iter(schemas)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        body = next(found) if route.body is not None else None
        answers = {status: None if kind is None else next(found) for status, kind in route.answers.items()}
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, body, answers)
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


def _operation(route: Route, body: Any, answers: dict[int, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.method.lower()} {route.path}",
        "tags": [route.path.removeprefix("/api/v1").strip("/").partition("/")[0] or "page"],
        "parameters": [*_path(route), *_query(route), *_headers(route)],
        "responses": {str(status): _response(route, status, schema) for status, schema in answers.items()},
    }
    for status in _refusals(route):
        found["responses"][str(status)] = {"description": HTTPStatus(status).phrase, "content": _PROBLEM}
    if body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    if route.role is not None:
        found["security"] = [{}, {"token": []}, {"user": []}]
        found["x-role"] = route.role
    return found


def _response(route: Route, status: int, schema: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if status != 204:
        found["content"] = {route.media: {"schema": schema if schema is not None else {"type": "string"}}}
    return found


def _refusals(route: Route) -> list[int]:
    """The problems that any such route may answer with; those of its own are among them."""
    found = {503} if route.role is None else {401, 403, 422, 503}
    if "{" in route.path:
        found |= {404, 414}
    if route.changes:
        found |= {400, 408, 409, 413, 429}
    if route.body is not None:
        found.add(415)
    return sorted(found)


def _path(route: Route) -> list[dict[str, Any]]:
    schema = {"type": "string", "minLength": 1}
    names = re.findall(r"\{(\w+)\}", route.path)
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]


def _query(route: Route) -> list[dict[str, Any]]:
    described = msgspec.json.schema(route.query)
    properties = described["$defs"][route.query.__name__]["properties"]
    return [{"name": name, "in": "query", "schema": schema} for name, schema in properties.items()]


def _headers(route: Route) -> list[dict[str, Any]]:
    schema = {"type": "string", "maxLength": 256}
    return [
        {"name": name, "in": "header", "description": text, "schema": schema} for name, text in route.headers.items()
    ]
