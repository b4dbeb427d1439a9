"""Lists in pages: a cursor is the name after which the next page begins, in base64."""

import base64
import binascii
import heapq
from collections.abc import AsyncIterator, Iterable
from typing import Any

from starlette.responses import Response

from penstock.http.json_response import json_response
from penstock.http.problems import HttpError
from penstock.http.schemas.requests import PageQuery
from penstock.model.batch_state import BatchStatus


def page_response(rows: Iterable[Any], query: PageQuery, key: str = "name") -> Response:
    """The page of these rows, sorted by `key`, and the cursor of the next page if there is one."""
    by_name = {str(getattr(row, key)): row for row in rows}
    names, next_cursor = page_of_names(by_name, query)
    return json_response({"items": [by_name[name] for name in names], "next": next_cursor})


def page_of_names(names: Iterable[str], query: PageQuery) -> tuple[list[str], str | None]:
    """The names of one page, and the cursor of the next page if there is one."""
    after = _decode_cursor(query.cursor)
    rest = sorted(name for name in names if name > after)
    page = rest[: query.limit]
    return page, _encode_cursor(page[-1]) if len(rest) > query.limit else None


async def newest_batches(
    batches: AsyncIterator[BatchStatus], cursor: str, limit: int
) -> tuple[list[BatchStatus], str | None]:
    """A page of batches that come in no order, the newest first; at most two pages are in memory."""
    before, candidates = _decode_cursor(cursor), dict[str, BatchStatus]()
    async for batch in batches:
        sort_key = f"{batch.created.isoformat(timespec='milliseconds')} {batch.id}"
        if not before or sort_key < before:
            candidates[sort_key] = batch
        if len(candidates) > 2 * limit:
            candidates = {key: candidates[key] for key in heapq.nlargest(limit + 1, candidates)}
    keys = heapq.nlargest(limit + 1, candidates)
    page = keys[:limit]
    return [candidates[key] for key in page], _encode_cursor(page[-1]) if len(keys) > limit else None


def _encode_cursor(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


def _decode_cursor(cursor: str) -> str:
    try:
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise HttpError(422, "cursor: use the `next` of the page before, as it is") from None
