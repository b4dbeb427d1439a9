"""Events over HTTP: as they happen, resumable, with heartbeats, and with bounded memory for slow readers."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from penstock import Penstock
from penstock.http import request_limits
from penstock.http.routes import events
from tests.app_helpers import eventually
from tests.http.harness import client_at, listening, open_service, serving

PATH = "/api/v1/events"


@pytest.fixture(autouse=True)
def tasks(app: Penstock) -> None:
    @app.task(name="add", queue="sums")
    async def add(x: int) -> int:
        return x


@asynccontextmanager
async def following(
    client: httpx.AsyncClient, query: str = "", headers: dict[str, str] | None = None
) -> AsyncIterator[AsyncIterator[str]]:
    """The lines of the stream, once it has begun."""
    async with client.stream("GET", f"{PATH}?{query}", headers=headers, timeout=30) as answer:
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        lines = answer.aiter_lines()
        assert await anext(lines) == "retry: 3000"
        yield lines


async def take(lines: AsyncIterator[str], number: int) -> list[dict[str, Any]]:
    events_read: list[dict[str, Any]] = []
    last = ""
    async with asyncio.timeout(20):
        async for line in lines:
            if line.startswith("id: "):
                last = line.removeprefix("id: ")
            elif line.startswith("data: "):
                events_read.append(json.loads(line.removeprefix("data: ")))
                assert events_read[-1]["id"] == last
            if len(events_read) == number:
                break
    return events_read


async def test_events_are_sent_as_they_happen(app: Penstock, client: httpx.AsyncClient) -> None:
    async with following(client, "since=1h") as lines:
        job = await app.tasks["add"].enqueue(1)
        await app.run_until_idle()
        events = [event for event in await take(lines, 3) if event["job"] == job.id]
    assert [event["kind"] for event in events] == ["enqueue", "lease", "complete"]
    assert {(event["queue"], event["task"]) for event in events} == {("sums", "add")}


async def test_a_reader_goes_on_after_the_last_event_that_it_had(app: Penstock, client: httpx.AsyncClient) -> None:
    await app.enqueue_many(app.tasks["add"].call(number) for number in range(5))
    async with following(client, "since=1h") as lines:
        first = await take(lines, 2)
    await app.tasks["add"].enqueue(5)
    async with following(client, headers={"Last-Event-ID": first[-1]["id"]}) as lines:
        rest = await take(lines, 4)
    async with following(client, "since=1h") as lines:
        assert await take(lines, 6) == first + rest
    assert len({event["job"] for event in first + rest}) == 6


async def test_events_are_filtered_by_queue_and_kind(app: Penstock, client: httpx.AsyncClient) -> None:
    jobs = await app.enqueue_many(app.tasks["add"].using(queue=name).call(1) for name in ("a", "b"))
    await app.run_until_idle()
    for query, expected in (
        ("queue=a", [("enqueue", 0), ("lease", 0), ("complete", 0)]),
        ("kinds=complete", [("complete", 0), ("complete", 1)]),
        (f"job={jobs[1].id}&kinds=lease,complete", [("lease", 1), ("complete", 1)]),
    ):
        async with following(client, f"since=1h&{query}") as lines:
            events = await take(lines, len(expected))
        assert sorted((event["kind"], [job.id for job in jobs].index(event["job"])) for event in events) == sorted(
            expected
        )


@pytest.mark.parametrize("query", ["kinds=odd", "since=yesterday", "queue=a b", "other=1"])
async def test_what_cannot_be_asked_for_is_refused_before_it_begins(client: httpx.AsyncClient, query: str) -> None:
    assert (await client.get(f"{PATH}?{query}")).status_code == 422


async def test_a_silence_has_signs_of_life(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_INTERVAL", 0.05)
    async with following(client) as lines, asyncio.timeout(20):
        assert [line async for line in _first(lines, 4)] == ["", ": alive", "", ": alive"]


async def _first(lines: AsyncIterator[str], number: int) -> AsyncIterator[str]:
    for _ in range(number):
        yield await anext(lines)


async def test_a_reader_that_leaves_or_reads_too_slowly_is_disconnected(
    app: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "SEND_TIMEOUT", 0.3)
    monkeypatch.setattr(request_limits, "MAX_READERS", 1)  # so that a second one shows whether the first is still there
    async with listening(open_service(app), buffer=4096) as port, client_at(port) as client:
        place = socket.socket()
        place.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await asyncio.to_thread(place.connect, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=place, limit=1024)
        writer.write(f"GET {PATH}?since=1h HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert b"200 OK" in await reader.readline()  # and no more of it is read
        assert not await _is_free(client)
        await app.enqueue_many(app.tasks["add"].call(number) for number in range(2_000))
        await eventually(lambda: _is_free(client), within=60)
        writer.close()
        async with following(client):
            assert not await _is_free(client)
        await eventually(lambda: _is_free(client), within=30)


async def _is_free(client: httpx.AsyncClient) -> bool:
    async with client.stream("GET", PATH) as answer:
        return answer.status_code == 200


async def test_there_is_a_bounded_number_of_readers(app: Penstock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "MAX_READERS", 2)
    async with serving(app) as client, following(client), following(client):
        refused = await client.get(PATH)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
