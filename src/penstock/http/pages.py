"""Lists in pages: a cursor is the name after which the next page begins."""

import base64
import binascii
from collections.abc import Iterable
from typing import Any

from starlette.responses import Response

from penstock.http.problems import Refused
from penstock.http.replies import answer
from penstock.http.shapes import PageQuery


def page(rows: Iterable[Any], query: PageQuery, key: str = "name") -> Response:
    """The rows behind the cursor, in the order of their names, and a cursor if there are more."""
    after = _opened(query.cursor)
    found = sorted((row for row in rows if getattr(row, key) > after), key=lambda row: str(getattr(row, key)))
    more = len(found) > query.limit
    shown = found[: query.limit]
    return answer({"items": shown, "next": _closed(getattr(shown[-1], key)) if more else None})


def _closed(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


def _opened(cursor: str) -> str:
    try:
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise Refused(422, "cursor: use the `next` of the page before, as it is") from None
