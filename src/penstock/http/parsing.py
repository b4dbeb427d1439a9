"""Reading a request's body, bounded in bytes, time and depth, as the type that its route expects."""

import asyncio
import re
from functools import cache
from typing import Any, Final

import msgspec
from starlette.requests import Request

from penstock.http.enum_hints import choices
from penstock.http.problems import HttpError
from penstock.model.options import unknown

SECONDS: Final = 10.0  #: in which a body must have come
_UNKNOWN = re.compile(r"unknown field `(.+?)`")
_ENUM = re.compile(r"Invalid enum value ['\"](.*)['\"] - at `(\$[^`]*)`\Z")


async def read(request: Request, most: int) -> bytes:
    """All of it, or a refusal before more than `most` bytes are in memory."""
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > most:
        raise _too_large(most)
    body, more = b"", True
    try:
        async with asyncio.timeout(SECONDS):
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise HttpError(400, "the body ended too soon")
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > most:
                    raise _too_large(most)
    except TimeoutError:
        raise HttpError(408, f"the body did not come within {SECONDS:g} s", {"Connection": "close"}) from None
    return body


def check_type(request: Request) -> None:
    """Only what a plain form of another site cannot send."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HttpError(415, "send JSON, with Content-Type: application/json")


def decode(raw: bytes | msgspec.Raw, kind: Any) -> Any:
    """The body as this type; what is no JSON is 400, what does not fit is 422."""
    try:
        return _decoder(kind).decode(raw)
    except msgspec.ValidationError as error:
        raise HttpError(422, _hint(str(error), kind)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HttpError(400, f"this is no JSON: {error}") from None
    except RecursionError:
        raise HttpError(400, "nested too deeply") from None


@cache
def _decoder(kind: Any) -> "msgspec.json.Decoder[Any]":
    return msgspec.json.Decoder(kind)


def query(request: Request, kind: type[Any]) -> Any:
    """What follows the question mark, as this type."""
    if not request.scope["query_string"]:
        return kind()
    pairs = request.query_params.multi_items()
    given = dict(pairs)
    if len(given) < len(pairs):
        raise HttpError(422, "a query parameter is given twice")
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise HttpError(422, f"query: {_hint(str(error), kind)}") from None


def _hint(text: str, kind: Any) -> str:
    """With a guess and what is valid, if a name or a value is not known."""
    if (odd := _ENUM.match(text)) and (valid := choices(kind, odd[2])):
        return f"{unknown(odd[2].rpartition('.')[2], odd[1], valid)} - at `{odd[2]}`"
    found = _UNKNOWN.search(text)
    if found is None or not isinstance(kind, type) or not issubclass(kind, msgspec.Struct):
        return text
    names = kind.__struct_encode_fields__
    return f"{text}: {unknown('name', found[1], names)}" if names else text


def _too_large(most: int) -> HttpError:
    return HttpError(413, f"the body has more than {most:,} bytes: send less, or a reference", {"Connection": "close"})
