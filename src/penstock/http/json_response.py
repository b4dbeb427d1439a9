"""Values as JSON responses."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.responses import Response

#: A result may hold anything that msgpack can; what JSON cannot is shown as text.
encode_json = msgspec.json.Encoder(enc_hook=str).encode
_NO_STORE: Final = {"Cache-Control": "no-store"}


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode_json(value), status, {**_NO_STORE, **headers} if headers else _NO_STORE, "application/json")
