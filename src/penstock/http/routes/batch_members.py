"""Routes of the members of a batch: all of them, and in the order in which they finish."""

from typing import Final

from starlette.responses import Response

from penstock.api.batch_options import refusal
from penstock.client.waiter import Signal
from penstock.engine.answers import Member, WatchedBatch
from penstock.engine.read.views import JobRecord
from penstock.http.json_response import answer
from penstock.http.long_poll import patiently
from penstock.http.problems import HttpError
from penstock.http.route import RequestContext, Route
from penstock.http.routes.job_selections import listed
from penstock.http.routes.jobs import shown
from penstock.http.schemas.requests import FinishedQuery, MembersQuery
from penstock.http.schemas.responses import JobAnswer, Page


async def every(ask: RequestContext) -> Response:
    query: MembersQuery = ask.query
    if await ask.program.client().views.batch(ask.path["id"]) is None:
        raise refusal(ask.path["id"], "unknown")
    which = {"batch": ask.path["id"]} | ({"state": query.state} if query.state else {})
    return await listed(ask, query.cursor, query.limit, which)


async def finished(ask: RequestContext) -> Response:
    """With their results. There is a `next` until the batch has ended and all of them were told."""
    query: FinishedQuery = ask.query
    after = _opened(query.cursor)
    async with ask.program.client().waiter.signal(f"{{more}}{ask.path['id']}") as news:
        page = await _look(ask, news, after)
        if query.wait and not page.last and not _is_over(page):
            await patiently(ask.request, _more(ask, news, after), query.wait)
            page = await _look(ask, news, after)
    rows = [row for member in page.members if (row := _shown(ask, member)) is not None]
    return answer({"items": rows, "next": None if _is_over(page) else str(page.last or after)})


async def _look(ask: RequestContext, news: Signal, after: int) -> WatchedBatch:
    query: FinishedQuery = ask.query
    engine = ask.program.client().engine
    page = await engine.watch_batch(news.client, ask.path["id"], finished=query.limit, after=after)
    if page.status is None:
        raise refusal(ask.path["id"], "unknown")
    return page


async def _more(ask: RequestContext, news: Signal, after: int) -> None:
    """Until another member has finished, or the batch has ended."""
    page = None
    while page is None or not (page.last or _is_over(page)):
        await news.wait()
        page = await _look(ask, news, after)


def _is_over(page: WatchedBatch) -> bool:
    return not page.last and page.status is not None and page.status.state == "ended"


def _shown(ask: RequestContext, member: Member) -> JobAnswer | None:
    """Nothing, if it was forgotten since."""
    header = member.watched.header
    if header is None:
        return None
    record = JobRecord(member.id, header, None, member.watched.result, member.watched.attempts)
    return shown(record, ask.program)


def _opened(cursor: str) -> int:
    if not cursor:
        return 0
    if not cursor.isdecimal() or not cursor.isascii() or len(cursor) > 15:
        raise HttpError(422, "cursor: use the `next` of the page before, as it is")
    return int(cursor)


_PATH: Final = "/api/v1/batches/{id}"
_LIST: Final = {200: Page[JobAnswer]}
ROUTES: Final = [
    Route("GET", f"{_PATH}/jobs", every, "Its members, those that finished first", answers=_LIST, query=MembersQuery),
    Route(
        "GET",
        f"{_PATH}/finished",
        finished,
        "Its members with their results, as they finish",
        answers=_LIST,
        query=FinishedQuery,
    ),
]
