"""Values as JSON answers."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.responses import Response

#: What is no JSON by nature is shown as text: a result may hold anything that msgpack has.
encode = msgspec.json.Encoder(enc_hook=str).encode
_FRESH: Final = {"Cache-Control": "no-store"}


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode(value), status, {**_FRESH, **headers} if headers else _FRESH, "application/json")
