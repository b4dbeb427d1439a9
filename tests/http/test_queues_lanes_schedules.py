"""Queues, lanes, schedules, workers and tasks over HTTP."""

import asyncio
from typing import Any

import httpx
import pytest

from penstock import Lane, Penstock
from penstock.api.program import Program
from penstock.app import Penstock as App
from penstock.http.access import Access
from penstock.http.route_table import make_service
from penstock.http.this_machine import OPEN
from penstock.worker.queue_stream import QueueStream
from tests.app_helpers import eventually
from tests.http.harness import client_at, listening

API = "/api/v1"


@pytest.fixture(autouse=True)
def tasks(app: Penstock) -> None:
    @app.every("1h", id="hourly/x")
    @app.task(name="add", queue="sums", timeout="5s")
    async def add(x: int = 1, y: list[str] | None = None) -> int:
        """The sum."""
        return x

    @app.task(name="locked", lock="k", lane=Lane("tenant/7", limit=2))
    async def locked() -> None:
        await asyncio.sleep(60)


async def test_queues_are_listed_paused_resumed_and_limited(app: Penstock, client: httpx.AsyncClient) -> None:
    await app.tasks["add"].using(queue="a/b").enqueue()
    rows = (await client.get(f"{API}/queues")).json()
    assert ([row["name"] for row in rows["items"]], rows["next"]) == (["a/b", "default", "sums"], None)
    assert rows["items"][0]["counts"]["ready"] == 1
    path = f"{API}/queues/a%2Fb"
    assert (await client.post(f"{path}/pause")).json()["paused"] is True
    await app.run_until_idle()
    assert (await client.get(path)).json()["counts"]["ready"] == 1
    assert (await client.patch(path, json={"limit": 3})).json()["limit"] == 3
    assert (await client.patch(path, json={"limit": None})).json()["limit"] is None
    assert (await client.patch(path, json={"limit": -1})).status_code == 422
    assert (await client.post(f"{path}/resume")).json()["paused"] is False
    await app.run_until_idle()
    assert (await client.get(path)).json()["counts"]["done"] == 1
    response = await client.post(f"{API}/queues/sum/pause")
    assert (response.status_code, "did you mean 'sums'" in response.json()["detail"]) == (404, True)


async def test_lists_come_in_pages(app: Penstock, client: httpx.AsyncClient) -> None:
    names = [f"q{n:03d}" for n in range(25)]
    await app.enqueue_many(app.tasks["add"].using(queue=name).call() for name in names)
    listed: list[str] = []
    cursor: Any = ""
    while cursor is not None:
        page = (await client.get(f"{API}/queues", params={"limit": 10, "cursor": cursor})).json()
        listed += [row["name"] for row in page["items"]]
        cursor = page["next"]
    assert listed == sorted([*names, "default", "sums"])


async def test_lanes_come_in_pages(app: Penstock, client: httpx.AsyncClient) -> None:
    for number in range(7):
        await app.lane(f"lane {number}").set(limit=number)
    first = (await client.get(f"{API}/lanes", params={"limit": 5})).json()
    second = (await client.get(f"{API}/lanes", params={"limit": 5, "cursor": first["next"]})).json()
    assert [row["limit"] for row in first["items"] + second["items"]] == list(range(7))
    assert second["next"] is None


async def test_lanes_and_locks_are_shown_and_steered(app: Penstock, client: httpx.AsyncClient) -> None:
    await app.tasks["locked"].enqueue()
    await app.tasks["locked"].enqueue()
    async with app.worker(grace=0):
        await eventually(lambda: _lane_in_use(client))
        rows = (await client.get(f"{API}/lanes")).json()["items"]
        assert {(row["name"], row["kind"]) for row in rows} == {("k", "lock"), ("tenant/7", "lane")}
        lock = (await client.get(f"{API}/lanes/k", params={"kind": "lock"})).json()
        assert (lock["in_use"], lock["limit"], lock["waiting"], len(lock["holders"])) == (1, 1, 1, 1)
        path = f"{API}/lanes/tenant%2F7"
        assert (await client.patch(path, json={"limit": 9})).json()["limit"] == 9
        assert (await client.patch(path, json={"limit": None})).json()["limit"] == 2
        assert (await client.post(f"{path}/pause")).json()["paused"] is True
        assert (await client.post(f"{path}/resume")).json()["paused"] is False
        (worker,) = (await client.get(f"{API}/workers")).json()["items"]
        assert [run["task"] for run in worker["runs"]] == ["locked"]


async def _lane_in_use(client: httpx.AsyncClient) -> bool:
    body = (await client.get(f"{API}/lanes/k", params={"kind": "lock"})).json()
    return bool(body["in_use"] == 1)


async def test_schedules_are_shown_run_paused_and_removed(app: Penstock, client: httpx.AsyncClient) -> None:
    await app.run_until_idle()  # a worker makes those of the code known
    (row,) = (await client.get(f"{API}/schedules")).json()["items"]
    assert (row["id"], row["task"], row["words"]) == ("hourly/x", "add", "every 1h")
    path = f"{API}/schedules/hourly%2Fx"
    assert (await client.post(f"{path}/pause")).json()["state"] == "paused"
    assert (await client.post(f"{path}/resume")).json()["state"] in {"active", "orphaned"}
    made = await client.post(f"{path}/run")
    assert (made.status_code, made.json()["created"]) == (201, True)
    busy = await client.post(f"{path}/run")
    assert (busy.status_code, "unfinished" in busy.json()["detail"]) == (409, True)
    assert (await client.delete(path)).status_code == 204
    for method, end in (("GET", ""), ("DELETE", ""), ("POST", "/run"), ("POST", "/pause"), ("POST", "/resume")):
        assert (await client.request(method, path + end)).status_code == 404


async def test_tasks_are_shown_with_the_schema_of_their_arguments(app: Penstock, client: httpx.AsyncClient) -> None:
    @app.task(name="loose")
    async def loose(values: dict[str, object]) -> None: ...

    rows = {row["name"]: row for row in (await client.get(f"{API}/tasks")).json()["items"]}
    assert (rows["add"]["queue"], rows["add"]["timeout"], rows["add"]["doc"]) == ("sums", 5.0, "The sum.")
    schema = rows["add"]["arguments"]
    (arguments,) = schema["$defs"].values()
    assert arguments["properties"]["x"] == {"type": "integer"}
    assert arguments["required"] == []
    (anything,) = rows["loose"]["arguments"]["$defs"].values()
    assert anything["properties"] == {"values": {"type": "object", "additionalProperties": {"description": "anything"}}}


async def test_a_namespace_is_looked_at_and_steered_without_its_code(app: App) -> None:
    job = await app.tasks["add"].enqueue(7)
    program = Program(app.name, app.settings, lambda: app.client, QueueStream)
    async with listening(make_service(program, Access(this_machine=OPEN))) as port, client_at(port) as client:
        shown = (await client.get(f"{API}/jobs/{job.id}")).json()
        assert (shown["state"], shown["arguments"]) == ("ready", {"x": "[redacted]"})
        assert (await client.post(f"{API}/queues/sums/pause")).status_code == 200
        assert (await client.post(f"{API}/jobs/{job.id}/cancel")).json()["state"] == "cancelled"
        assert (await client.post(f"{API}/jobs/{job.id}/retry")).json()["state"] == "ready"
        refused = await client.post(f"{API}/jobs", json={"task": "add"})
        assert (refused.status_code, "none are known here" in refused.json()["detail"]) == (422, True)
        assert (await client.get(f"{API}/tasks")).json() == {"items": [], "next": None}
