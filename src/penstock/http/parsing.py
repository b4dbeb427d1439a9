"""A request's body and query as the types of its route."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import inspect
from starlette.requests import Request

from penstock.http.problems import HttpError
from penstock.model.options import unknown

_UNKNOWN_FIELD: Final = re.compile(r"unknown field `(.+?)`")
_INVALID_ENUM: Final = re.compile(r"Invalid enum value ['\"](.*)['\"] - at `(\$[^`]*)`\Z")
_PATH_STEP: Final = re.compile(r"\.(\w+)|\[\d+\]")


def check_content_type(request: Request) -> None:
    """Accept JSON only, which a plain form of another site cannot send."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise HttpError(415, "send JSON, with Content-Type: application/json")


def decode(raw: bytes | msgspec.Raw, kind: Any) -> Any:
    """Decode JSON as this type: 400 if it is not JSON, 422 if it does not fit the type."""
    try:
        return _decoder(kind).decode(raw)
    except msgspec.ValidationError as error:
        raise HttpError(422, _with_hint(str(error), kind)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HttpError(400, f"this is no JSON: {error}") from None
    except RecursionError:
        raise HttpError(400, "nested too deeply") from None


@cache
def _decoder(kind: Any) -> "msgspec.json.Decoder[Any]":
    return msgspec.json.Decoder(kind)


def parse_query(request: Request, kind: type[Any]) -> Any:
    """The query parameters as this type."""
    if not request.scope["query_string"]:
        return kind()
    pairs = request.query_params.multi_items()
    parameters = dict(pairs)
    if len(parameters) < len(pairs):
        raise HttpError(422, "a query parameter is given twice")
    try:
        return msgspec.convert(parameters, kind, strict=False)
    except msgspec.ValidationError as error:
        raise HttpError(422, f"query: {_with_hint(str(error), kind)}") from None


# Hints: if a name or a value is not known, the error has a guess and what is valid


def _with_hint(text: str, kind: Any) -> str:
    if (match := _INVALID_ENUM.match(text)) and (valid := _valid_values(kind, match[2])):
        return f"{unknown(match[2].rpartition('.')[2], match[1], valid)} - at `{match[2]}`"
    field = _UNKNOWN_FIELD.search(text)
    if field is None or not isinstance(kind, type) or not issubclass(kind, msgspec.Struct):
        return text
    names = kind.__struct_encode_fields__
    return f"{text}: {unknown('name', field[1], names)}" if names else text


def _valid_values(kind: Any, path: str) -> list[str]:
    """The literals that this type allows at a path such as `$.lane[0].on_dead`; none if it has none there."""
    types = list(_alternatives(inspect.type_info(kind)))
    for step in _PATH_STEP.finditer(path):
        types = [inner for outer in types for inner in _inner_types(outer, step[1])]
    values = {value for literal in types if isinstance(literal, inspect.LiteralType) for value in literal.values}
    return sorted(str(value) for value in values if value != "")


def _inner_types(outer: inspect.Type, name: str | None) -> Iterator[inspect.Type]:
    """The types of the field of this name, or of an item if there is no name."""
    if isinstance(outer, inspect.ListType) and name is None:
        yield from _alternatives(outer.item_type)
    if isinstance(outer, inspect.StructType):
        for field in outer.fields:
            if field.encode_name == name:
                yield from _alternatives(field.type)


def _alternatives(kind: inspect.Type) -> Iterator[inspect.Type]:
    """Each type of a union, without metadata."""
    if isinstance(kind, inspect.Metadata):
        yield from _alternatives(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for alternative in kind.types:
            yield from _alternatives(alternative)
    else:
        yield kind
