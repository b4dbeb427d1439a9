"""Routes of batches: open, fill and seal one; list and read them and their members; cancel, retry and change one."""

import asyncio
import hashlib
from contextlib import suppress
from typing import Any, Final, Literal

import msgspec
from starlette.responses import Response

from penstock.api.batch import Batch
from penstock.api.batch_options import check_opened, new_batch, refusal
from penstock.api.task import Task
from penstock.client.waiter import Signal
from penstock.engine.answers import Member, WatchedBatch
from penstock.engine.engine import NewBatch
from penstock.engine.read.views import JobRecord
from penstock.errors import BatchNotFound
from penstock.http import bulk_actions, parsing, scope
from penstock.http.build_job import (
    IDEMPOTENCY_HEADER,
    Submission,
    check_id,
    find_task,
    idempotency_key,
    key_reused,
    nonce_of,
)
from penstock.http.json_response import json_response
from penstock.http.long_poll import wait_while_connected
from penstock.http.paging import newest_batches
from penstock.http.principal import Principal
from penstock.http.problems import HttpError, Refused
from penstock.http.route import RequestContext, Route
from penstock.http.routes import create_jobs
from penstock.http.routes.jobs import job_answer, page_of_jobs, shown_to
from penstock.http.schemas.requests import (
    BatchChange,
    BatchesQuery,
    BatchQuery,
    BatchRequest,
    CancelQuery,
    FinishedQuery,
    MembersQuery,
)
from penstock.http.schemas.responses import BatchAnswer, JobAnswer, Page
from penstock.model.batch_state import BatchStatus
from penstock.model.options import free_text

# Open, fill, seal


async def post_batch(context: RequestContext) -> Response:
    """Open a batch, once for the same body with the same key or id."""
    key = idempotency_key(context)
    new = await _new_batch(context, parsing.decode(context.body, BatchRequest), key)
    word = await context.program.client().engine.open_batch(new)
    if word == "exists":
        raise key_reused(key, f"the batch {new.id}") if key else HttpError(409, f"there is another batch {new.id}")
    try:
        check_opened(new, word)
    except BatchNotFound as error:
        raise HttpError(422, f"parent: {error}") from None
    headers = {"Location": create_jobs.location(context, "batches", new.id)}
    return json_response(await _answer_with_running(_batch(context, new.id)), 201, headers)


async def _new_batch(context: RequestContext, request: BatchRequest, key: str) -> NewBatch:
    check_id(request.id)
    scope.require_priority(context.principal, request.priority)
    if request.parent:
        await _check_opener(context, request.parent)
    has_id = request.id is not msgspec.UNSET
    new = new_batch(
        request.name,
        parent=request.parent,
        limit=request.limit,
        priority=request.priority,
        then=_end_task(context, request.then),
        on_failure=_end_task(context, request.on_failure),
        abandon_after=request.abandon_after,
        keep=request.keep,
        id=request.id if isinstance(request.id, str) else _submission(context).job_id(0) if key else None,
    )
    nonce = nonce_of(context.body) if has_id or key else new.nonce
    return new._replace(nonce=_opener_mark(context.principal) + nonce)


def _end_task(context: RequestContext, name: str | None) -> Task[..., Any, Any] | None:
    """The task of this name, which is enqueued at the end of the batch."""
    if not name:
        return None
    task = find_task(context.program, name, context.principal)
    scope.require_task(context.principal, task.name)
    scope.require_queue(context.principal, task.options.queue)
    return task


async def post_members(context: RequestContext) -> Response:
    await _check_opener(context, context.path["id"])
    return await create_jobs.create_jobs(context, _submission(context, context.path["id"]))


def _submission(context: RequestContext, batch: str = "") -> Submission:
    return Submission(context.principal, idempotency_key(context), batch)


async def seal(context: RequestContext) -> Response:
    batch = await _checked_batch(context)
    await batch.seal()
    return json_response(await _answer_with_running(batch))


# Whose it is


async def _checked_batch(context: RequestContext) -> Batch:
    """The batch of the path, if the sender may use it."""
    await _check_opener(context, context.path["id"])
    return _batch(context)


async def _check_opener(context: RequestContext, batch_id: str) -> None:
    """A batch is of no queue: those who may use some, and enqueuers, use the batches that they have opened here."""
    principal = context.principal
    if principal.sees_whole_app and principal.role != "enqueuer":
        return
    nonce = await context.program.client().views.batch_nonce(batch_id)
    if nonce is not None and not nonce.startswith(_opener_mark(principal)):
        raise Refused("scope", f"the batch {batch_id} was not opened by {principal.name}, who may use no other")


def _opener_mark(principal: Principal) -> str:
    """What the nonce of a batch begins with, so that its opener is known."""
    return hashlib.sha256(principal.name.encode("utf-8", "surrogateescape")).hexdigest()[:16] + "-"


# Read


async def list_batches(context: RequestContext) -> Response:
    """The newest first. Each page reads all batches, but holds no more than two pages in memory."""
    query: BatchesQuery = context.query
    matching = (batch async for batch in context.program.client().views.batches() if _matches(batch, query))
    page, next_cursor = await newest_batches(matching, query.cursor, query.limit)
    return json_response({"items": [_answer(status) for status in page], "next": next_cursor})


def _matches(status: BatchStatus, query: BatchesQuery) -> bool:
    return query.state in {"", status.state} and query.name in {"", status.name}


async def get_batch(context: RequestContext) -> Response:
    query: BatchQuery = context.query
    batch = await _checked_batch(context)
    if query.wait and (await batch.status()).state != "ended":
        await wait_while_connected(context.request.receive, batch.wait(), query.wait)
    return json_response(await _answer_with_running(batch))


def _batch(context: RequestContext, batch_id: str = "") -> Batch:
    return Batch(context.program.client, context.program.tasks, NewBatch(batch_id or context.path["id"]), is_open=True)


async def _answer_with_running(batch: Batch) -> BatchAnswer:
    answer = _answer(await batch.status())
    answer.running = await batch.running()
    return answer


def _answer(status: BatchStatus) -> BatchAnswer:
    return msgspec.convert(status, BatchAnswer, from_attributes=True)


# Members


async def list_members(context: RequestContext) -> Response:
    query: MembersQuery = context.query
    await _check_opener(context, context.path["id"])
    if await context.program.client().views.batch(context.path["id"]) is None:
        raise refusal(context.path["id"], "unknown")
    criteria = {"batch": context.path["id"]} | ({"state": query.state} if query.state else {})
    return await page_of_jobs(context, query.cursor, query.limit, criteria)


async def list_finished(context: RequestContext) -> Response:
    """Members with their results, in the order in which they finished.

    There is a `next` until the batch has ended and its last member was listed.
    """
    query: FinishedQuery = context.query
    await _check_opener(context, context.path["id"])
    after = _finished_cursor(query.cursor)
    async with context.program.client().waiter.signal(f"{{more}}{context.path['id']}") as signal:
        page = await _read_finished(context, signal, after)
        if query.wait and not page.last and not _is_over(page):
            more = _until_more_finished(context, signal, after)
            await wait_while_connected(context.request.receive, more, query.wait)
            page = await _read_finished(context, signal, after)
    rows = [row for member in page.members if (row := _member_answer(context, member)) is not None]
    return json_response({"items": rows, "next": None if _is_over(page) else str(page.last or after)})


async def _read_finished(context: RequestContext, signal: Signal, after: int) -> WatchedBatch:
    query: FinishedQuery = context.query
    engine = context.program.client().engine
    page = await engine.watch_batch(signal.client, context.path["id"], finished=query.limit, after=after)
    if page.status is None:
        raise refusal(context.path["id"], "unknown")
    return page


async def _until_more_finished(context: RequestContext, signal: Signal, after: int) -> None:
    """Wait until another member has finished, or the batch has ended."""
    page = None
    while page is None or not (page.last or _is_over(page)):
        await signal.wait()
        page = await _read_finished(context, signal, after)


def _is_over(page: WatchedBatch) -> bool:
    return not page.last and page.status is not None and page.status.state == "ended"


def _member_answer(context: RequestContext, member: Member) -> JobAnswer | None:
    """The member; None if it was forgotten since, or the sender may not use it."""
    header = member.watched.header
    if header is None or not context.principal.uses(header.queue, header.task):
        return None
    record = JobRecord(member.id, header, None, member.watched.result, member.watched.attempts)
    return shown_to(context.principal, job_answer(record, context.program))


def _finished_cursor(cursor: str) -> int:
    if not cursor:
        return 0
    if not cursor.isdecimal() or not cursor.isascii() or len(cursor) > 15:
        raise HttpError(422, "cursor: use the `next` of the page before, as it is")
    return int(cursor)


# Cancel, retry, change


async def cancel(context: RequestContext) -> Response:
    query: CancelQuery = context.query
    batch = await _checked_batch(context)
    await batch.begin_cancel(free_text(query.reason, "reason"))
    return await _process_members(batch, "cancel")


async def retry(context: RequestContext) -> Response:
    batch = await _checked_batch(context)
    await batch.begin_retry()
    return await _process_members(batch, "retry")


async def _process_members(batch: Batch, action: Literal["cancel", "retry"]) -> Response:
    """Apply the action to all members until the time is over; workers do the rest."""
    with suppress(TimeoutError):
        async with asyncio.timeout(bulk_actions.BULK_TIMEOUT):
            await batch.work_off(action)
    return json_response(await _answer_with_running(batch))


async def change(context: RequestContext) -> Response:
    request: BatchChange = parsing.decode(context.body, BatchChange)
    scope.require_priority(context.principal, request.priority)
    batch = await _checked_batch(context)
    await batch.set(priority=request.priority, limit=request.limit)
    return json_response(await _answer_with_running(batch))


_PATH: Final = "/api/v1/batches/{id}"
_BATCH: Final = {200: BatchAnswer}
_JOBS: Final = {200: Page[JobAnswer]}
ROUTES: Final = [
    Route(
        "POST",
        "/api/v1/batches",
        post_batch,
        "Open a batch",
        role="operator",
        enqueuer=True,
        responses={201: BatchAnswer},
        body=BatchRequest,
        headers=IDEMPOTENCY_HEADER,
    ),
    Route(
        "GET",
        "/api/v1/batches",
        list_batches,
        "Batches, the youngest first",
        whole_app=True,
        responses={200: Page[BatchAnswer]},
        query=BatchesQuery,
    ),
    Route("GET", _PATH, get_batch, "One batch; with wait, once it has ended", responses=_BATCH, query=BatchQuery),
    Route("PATCH", _PATH, change, "Another priority or limit", role="admin", responses=_BATCH, body=BatchChange),
    Route(
        "POST",
        f"{_PATH}/jobs",
        post_members,
        "Add a member, or an array of them with a result per item",
        role="operator",
        enqueuer=True,
        responses=create_jobs.RESPONSES,
        body=create_jobs.BODY,
        headers=IDEMPOTENCY_HEADER,
    ),
    Route("POST", f"{_PATH}/seal", seal, "Take no more members", role="operator", enqueuer=True, responses=_BATCH),
    Route("POST", f"{_PATH}/cancel", cancel, "Cancel it", role="operator", responses=_BATCH, query=CancelQuery),
    Route("POST", f"{_PATH}/retry", retry, "Run its dead members again", role="operator", responses=_BATCH),
    Route(
        "GET",
        f"{_PATH}/jobs",
        list_members,
        "Its members, those that finished first",
        responses=_JOBS,
        query=MembersQuery,
    ),
    Route(
        "GET",
        f"{_PATH}/finished",
        list_finished,
        "Its members with their results, as they finish",
        responses=_JOBS,
        query=FinishedQuery,
    ),
]
