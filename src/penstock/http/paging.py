"""Lists in pages: a cursor is the name, or the place, after which the next page begins."""

import base64
import binascii
import heapq
from collections.abc import AsyncIterator, Iterable
from typing import Any

from starlette.responses import Response

from penstock.http.json_response import answer
from penstock.http.problems import HttpError
from penstock.http.schemas.requests import PageQuery
from penstock.model.batch_state import BatchStatus


def page(rows: Iterable[Any], query: PageQuery, key: str = "name") -> Response:
    """The rows behind the cursor, in the order of their names, and a cursor if there are more."""
    by_name = {str(getattr(row, key)): row for row in rows}
    names, following = behind(by_name, query)
    return answer({"items": [by_name[name] for name in names], "next": following})


def behind(names: Iterable[str], query: PageQuery) -> tuple[list[str], str | None]:
    """The names of one page, and the cursor of the page that follows, if one does."""
    after = _opened(query.cursor)
    found = sorted(name for name in names if name > after)
    shown = found[: query.limit]
    return shown, _closed(shown[-1]) if len(found) > query.limit else None


async def latest(rows: AsyncIterator[BatchStatus], cursor: str, limit: int) -> tuple[list[BatchStatus], str | None]:
    """A page of those that come in no order, the youngest first; never much more than a page is in memory."""
    before, found = _opened(cursor), dict[str, BatchStatus]()
    async for row in rows:
        place = f"{row.created.isoformat(timespec='milliseconds')} {row.id}"
        if not before or place < before:
            found[place] = row
        if len(found) > 2 * limit:
            found = {one: found[one] for one in heapq.nlargest(limit + 1, found)}
    places = heapq.nlargest(limit + 1, found)
    shown = places[:limit]
    return [found[place] for place in shown], _closed(shown[-1]) if len(places) > limit else None


def _closed(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


def _opened(cursor: str) -> str:
    try:
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise HttpError(422, "cursor: use the `next` of the page before, as it is") from None
