"""Routes of batches: opened, filled by any number of posts, sealed, looked at, steered."""

import asyncio
from contextlib import suppress
from typing import Final, Literal

import msgspec
from starlette.responses import Response

from penstock.api.batch import Batch
from penstock.api.batch_options import check_opened, new_batch
from penstock.engine.engine import NewBatch
from penstock.errors import BatchNotFound
from penstock.http import bulk_actions, parsing
from penstock.http.build_job import KEY, Frame, find_task, key_of, nonce_of, other_body
from penstock.http.json_response import answer
from penstock.http.long_poll import patiently
from penstock.http.paging import latest
from penstock.http.problems import HttpError
from penstock.http.route import RequestContext, Route
from penstock.http.routes.create_jobs import ANSWERS, BODY, location, store
from penstock.http.schemas.requests import BatchChange, BatchesQuery, BatchQuery, BatchRequest, CancelQuery
from penstock.http.schemas.responses import BatchAnswer, Page
from penstock.model.batch_state import BatchStatus
from penstock.model.options import free_text

# Opening and filling


async def post(ask: RequestContext) -> Response:
    """Open one. The same key and body, or the same id and body, open it once."""
    key = key_of(ask)
    new = _new(ask, parsing.decode(ask.body, BatchRequest), key)
    word = await ask.program.client().engine.open_batch(new)
    if word == "exists":
        raise other_body(key, f"the batch {new.id}") if key else HttpError(409, f"there is another batch {new.id}")
    try:
        check_opened(new, word)
    except BatchNotFound as error:
        raise HttpError(422, f"parent: {error}") from None
    headers = {"Location": location(ask, "batches", new.id)}
    return answer(await _row(_batch(ask, new.id)), 201, headers)


def _new(ask: RequestContext, given: BatchRequest, key: str) -> NewBatch:
    named = given.id is not msgspec.UNSET
    new = new_batch(
        given.name,
        parent=given.parent,
        limit=given.limit,
        priority=given.priority,
        then=find_task(ask.program, given.then) if given.then else None,
        on_failure=find_task(ask.program, given.on_failure) if given.on_failure else None,
        abandon_after=given.abandon_after,
        keep=given.keep,
        id=given.id if isinstance(given.id, str) else Frame(key).id_of(0) if key else None,
    )
    return new._replace(nonce=nonce_of(ask.body)) if named or key else new


async def post_jobs(ask: RequestContext) -> Response:
    return await store(ask, Frame(key_of(ask), ask.path["id"]))


async def seal(ask: RequestContext) -> Response:
    batch = _batch(ask)
    await batch.seal()
    return answer(await _row(batch))


# Looking


async def every(ask: RequestContext) -> Response:
    """The youngest first. All are gone through for each page, but no more than a page of them is in memory."""
    query: BatchesQuery = ask.query
    found = (one async for one in ask.program.client().views.batches() if _fits(one, query))
    rows, following = await latest(found, query.cursor, query.limit)
    return answer({"items": [_answer(one) for one in rows], "next": following})


def _fits(status: BatchStatus, query: BatchesQuery) -> bool:
    return query.state in {"", status.state} and query.name in {"", status.name}


async def get(ask: RequestContext) -> Response:
    query: BatchQuery = ask.query
    batch = _batch(ask)
    if query.wait and (await batch.status()).state != "ended":
        await patiently(ask.request, batch.wait(), query.wait)
    return answer(await _row(batch))


# Steering


async def cancel(ask: RequestContext) -> Response:
    query: CancelQuery = ask.query
    batch = _batch(ask)
    await batch.begin_cancel(free_text(query.reason, "reason"))
    return await _worked_off(batch, "cancel")


async def retry(ask: RequestContext) -> Response:
    batch = _batch(ask)
    await batch.begin_retry()
    return await _worked_off(batch, "retry")


async def _worked_off(batch: Batch, what: Literal["cancel", "retry"]) -> Response:
    """How it stands when all members were seen to, or when the time is over; workers do the rest."""
    with suppress(TimeoutError):
        async with asyncio.timeout(bulk_actions.SECONDS):
            await batch.work_off(what)
    return answer(await _row(batch))


async def change(ask: RequestContext) -> Response:
    given: BatchChange = parsing.decode(ask.body, BatchChange)
    batch = _batch(ask)
    await batch.set(priority=given.priority, limit=given.limit)
    return answer(await _row(batch))


def _batch(ask: RequestContext, batch_id: str = "") -> Batch:
    return Batch(ask.program.client, ask.program.tasks, NewBatch(batch_id or ask.path["id"]), is_open=True)


async def _row(batch: Batch) -> BatchAnswer:
    found = _answer(await batch.status())
    found.running = await batch.running()
    return found


def _answer(status: BatchStatus) -> BatchAnswer:
    return msgspec.convert(status, BatchAnswer, from_attributes=True)


_ONE: Final = {200: BatchAnswer}
_PATH: Final = "/api/v1/batches/{id}"
ROUTES: Final = [
    Route(
        "POST",
        "/api/v1/batches",
        post,
        "Open a batch",
        role="operator",
        answers={201: BatchAnswer},
        body=BatchRequest,
        headers=KEY,
    ),
    Route(
        "GET",
        "/api/v1/batches",
        every,
        "Batches, the youngest first",
        answers={200: Page[BatchAnswer]},
        query=BatchesQuery,
    ),
    Route("GET", _PATH, get, "One batch; with wait, once it has ended", answers=_ONE, query=BatchQuery),
    Route("PATCH", _PATH, change, "Another priority or limit", role="admin", answers=_ONE, body=BatchChange),
    Route(
        "POST",
        f"{_PATH}/jobs",
        post_jobs,
        "Add a member, or an array of them with a result per item",
        role="operator",
        answers=ANSWERS,
        body=BODY,
        headers=KEY,
    ),
    Route("POST", f"{_PATH}/seal", seal, "Take no more members", role="operator", answers=_ONE),
    Route("POST", f"{_PATH}/cancel", cancel, "Cancel it", role="operator", answers=_ONE, query=CancelQuery),
    Route("POST", f"{_PATH}/retry", retry, "Run its dead members again", role="operator", answers=_ONE),
]
