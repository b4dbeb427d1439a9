"""Batches over HTTP: opened once, filled by many posts, sealed, waited for, changed."""

import asyncio
import logging
from datetime import datetime
from typing import Any

import httpx
import pytest

from penstock import BatchStatus, Penstock
from penstock.api.program import Program
from penstock.http import bulk_actions
from penstock.http.access import Access
from penstock.http.route_table import make_service
from penstock.http.this_machine import OPEN
from penstock.worker.queue_stream import QueueStream
from tests.http.harness import client_at, listening
from tests.http.test_jobs_by_filter import all_of

API = "/api/v1"
BATCHES = f"{API}/batches"
ENDS: dict[str, list[BatchStatus]] = {}


@pytest.fixture(autouse=True)
def tasks(app: Penstock) -> None:
    @app.task(name="work", retries=0)
    async def work(number: int) -> int:
        if number < 0:
            raise ValueError("negative")
        return number * 2

    @app.task(name="report")
    async def report(status: BatchStatus) -> None:
        ENDS.setdefault(app.name, []).append(status)

    @app.task(name="wrong")
    async def wrong(number: int) -> None: ...


async def opened(client: httpx.AsyncClient, **options: Any) -> str:
    response = await client.post(BATCHES, json=options)
    assert response.status_code == 201, response.text
    assert response.headers["location"].startswith(f"{BATCHES}/")
    return str(response.json()["id"])


def job(number: int, **options: Any) -> dict[str, Any]:
    return {"task": "work", "args": [number], **options}


def problem(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json", response.text
    return response.status_code, response.json()["detail"]


async def test_members_come_in_many_posts_while_others_run_and_one_job_is_made_at_the_end(
    app: Penstock, client: httpx.AsyncClient
) -> None:
    path = f"{BATCHES}/{await opened(client, name='nightly', limit=8, priority=20, then='report')}"
    async with app.worker():
        for start in range(0, 1_000, 200):
            added = await client.post(f"{path}/jobs", json=[job(number) for number in range(start, start + 200)])
            assert [row["created"] for row in added.json()] == [True] * 200
        last = await client.post(f"{path}/jobs", json=job(-1))
        assert (last.status_code, last.json()["created"]) == (201, True)
        assert last.headers["location"] == f"{API}/jobs/{last.json()['id']}"
        sealed = (await client.post(f"{path}/seal")).json()
        assert (sealed["open"], sealed["total"], sealed["name"], sealed["priority"]) == (False, 1_001, "nightly", 20)
        ended = (await client.get(path, params={"wait": 60})).json()
        assert (await client.post(f"{path}/seal")).json() == ended  # once more is the same
    assert (ended["state"], ended["done"], ended["dead"], ended["pending"]) == ("ended", 1_000, 1, 0)
    await app.run_until_idle()
    (status,) = ENDS[app.name]
    assert (status.id, status.done, status.dead) == (ended["id"], 1_000, 1)


async def test_tasks_of_a_batch_may_be_named_without_their_modules(app: Penstock, client: httpx.AsyncClient) -> None:
    @app.task(name="shop:tell")
    async def tell(status: BatchStatus) -> None: ...

    @app.task(name="shop:send")
    async def send(number: int) -> None: ...

    ended: dict[str, list[str]] = {}
    for end in ("then", "on_failure"):
        path = f"{BATCHES}/{await opened(client, **{end: 'tell'})}"
        added = await client.post(f"{path}/jobs", json=[{"task": "send", "args": [1]}, job(-1)])
        assert [row["created"] for row in added.json()] == [True, True]
        await client.post(f"{path}/seal")
        await app.run_until_idle()
        ended[end] = [job["task"] for job in await all_of(client, "jobs", task="tell")]
    assert ended == {"then": ["shop:tell"], "on_failure": ["shop:tell"] * 2}
    app.tasks["mail:tell"] = app.tasks["shop:tell"]
    status, detail = problem(await client.post(BATCHES, json={"then": "tell"}))
    assert (status, "mail:tell, shop:tell" in detail) == (422, True)


async def test_what_has_finished_is_read_with_its_results_until_there_is_no_more(
    app: Penstock, client: httpx.AsyncClient
) -> None:
    path = f"{BATCHES}/{await opened(client)}"
    waiting = asyncio.create_task(client.get(f"{path}/finished", params={"wait": 30}))
    await client.post(f"{path}/jobs", json=[job(number) for number in range(30)])
    await app.run_until_idle()
    first = (await waiting).json()
    assert first["items"]
    assert first["items"][0]["result"] % 2 == 0
    await client.post(f"{path}/jobs", json=[job(-1), job(30)])
    await client.post(f"{path}/seal")
    await app.run_until_idle()
    finished = [*first["items"], *await all_of(client, f"{path.removeprefix(API)}/finished"[1:], limit=7)]
    whole = {row["id"]: row for row in finished}
    assert sorted(row["result"] for row in whole.values() if "result" in row) == [2 * n for n in range(31)]
    assert [row["error"]["type"] for row in whole.values() if "error" in row] == ["ValueError"]
    over = (await client.get(f"{path}/finished", params={"cursor": "32"})).json()
    assert over == {"items": [], "next": None}
    for cursor in ("x", "-1", "1" * 16, "²"):
        assert (await client.get(f"{path}/finished", params={"cursor": cursor})).status_code == 422


async def test_members_are_listed_by_state_and_in_pages(app: Penstock, client: httpx.AsyncClient) -> None:
    batch = await opened(client)
    await client.post(f"{BATCHES}/{batch}/jobs", json=[job(number) for number in range(-10, 120)])
    await app.run_until_idle()
    await client.post(f"{BATCHES}/{batch}/jobs", json=[job(number, delay="1h") for number in range(20)])
    await client.post(f"{API}/jobs", json=job(1))  # of no batch
    members = f"batches/{batch}/jobs"
    assert len(await all_of(client, members)) == 150
    for state, number in {"done": 120, "dead": 10, "scheduled": 20, "ready": 0, "cancelled": 0}.items():
        assert len(await all_of(client, members, state=state, limit=50)) == number
        assert len(await all_of(client, "jobs", batch=batch, state=state)) == number
    assert len(await app.jobs(batch=batch, limit=500)) == 150
    assert await app.jobs(batch=batch).cancel() == 20
    assert len(await all_of(client, members, state="cancelled")) == 20


async def test_the_same_key_or_id_and_body_open_one_batch(client: httpx.AsyncClient) -> None:
    key = {"Idempotency-Key": "order 7"}
    first = await client.post(BATCHES, json={"name": "a"}, headers=key)
    again = await client.post(BATCHES, json={"name": "a"}, headers=key)
    assert (first.status_code, first.json()) == (again.status_code, again.json()) == (201, first.json())
    status, detail = problem(await client.post(BATCHES, json={"name": "b"}, headers=key))
    assert (status, first.json()["id"] in detail) == (422, True)
    for _ in range(2):
        assert (await client.post(BATCHES, json={"id": "mine/1"})).json()["id"] == "mine/1"
    assert problem(await client.post(BATCHES, json={"id": "mine/1", "limit": 3}))[0] == 409
    assert (await client.get(f"{BATCHES}/mine%2F1")).json()["state"] == "open"


async def test_a_post_that_is_sent_again_adds_no_member_also_after_the_seal(client: httpx.AsyncClient) -> None:
    key = {"Idempotency-Key": "page 1"}
    body = [job(1), job(2)]
    plain = (await client.post(f"{API}/jobs", json=body, headers=key)).json()
    path = f"{BATCHES}/{await opened(client)}"
    first = (await client.post(f"{path}/jobs", json=body, headers=key)).json()
    await client.post(f"{path}/seal")
    assert (await client.post(f"{path}/jobs", json=body, headers=key)).json() == first
    assert {row["id"] for row in plain}.isdisjoint(row["id"] for row in first)
    assert (await client.get(path)).json()["total"] == 2
    mixed = (await client.post(f"{path}/jobs", json=[*body, job(3)], headers=key)).json()
    assert [row.get("problem", {}).get("status") for row in mixed] == [None, None, 409]


async def test_what_is_sealed_ended_cancelled_or_unknown_takes_no_members(
    app: Penstock, client: httpx.AsyncClient
) -> None:
    sealed, ended, cancelled = [await opened(client) for _ in range(3)]
    await client.post(f"{BATCHES}/{sealed}/jobs", json=job(1, delay="1h"))
    await client.post(f"{BATCHES}/{cancelled}/jobs", json=job(1, delay="1h"))
    for batch in (sealed, ended):
        await client.post(f"{BATCHES}/{batch}/seal")
    stopped = (await client.post(f"{BATCHES}/{cancelled}/cancel", params={"reason": "no need"})).json()
    assert (stopped["state"], stopped["reason"], stopped["cancelled"]) == ("ended", "no need", 1)
    for batch, word in ((sealed, "sealed"), (ended, "ended"), (cancelled, "ended")):
        for body in (job(2), [job(2), job(3)]):
            status, detail = problem(await client.post(f"{BATCHES}/{batch}/jobs", json=body))
            assert (status, f"is {word} and takes no more members" in detail) == (409, True)
        status, detail = problem(await client.post(BATCHES, json={"parent": batch}))
        assert (status, word in detail) == (409, True)
    assert problem(await client.post(BATCHES, json={"parent": "nothing"}))[0] == 422
    asked: list[tuple[str, str, Any]] = [
        ("GET", "", None),
        ("GET", "/jobs", None),
        ("GET", "/finished", None),
        ("POST", "/jobs", job(1)),
        ("POST", "/jobs", [job(1)]),
        ("POST", "/seal", None),
        ("POST", "/cancel", None),
        ("POST", "/retry", None),
        ("PATCH", "", {"limit": 3}),
    ]
    for method, end, sent in asked:
        status, detail = problem(await client.request(method, f"{BATCHES}/nothing{end}", json=sent))
        assert (status, "no batch 'nothing'" in detail) == (404, True)
    assert (await app.client.views.counts())["default"] == {"ready": 0, "scheduled": 1, "cancelled": 1}


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ({"limit": 0}, "limit"),
        ({"priority": 100}, "priority"),
        ({"then": "reprot"}, "did you mean 'report'"),
        ({"then": "wrong"}, "cannot take a BatchStatus"),
        ({"on_failure": "nothing"}, "unknown task"),
        ({"keep": "long"}, "keep"),
        ({"abandon_after": 0}, "abandon_after"),
        ({"id": "a@b"}, "no @"),
        ({"id": "x" * 101}, "id"),
        ({"nmae": "x"}, "did you mean 'name'"),
        ({"name": "a\nb"}, "name"),
        ([], "object"),
    ],
    ids=str,
)
async def test_a_batch_that_cannot_be_is_a_problem_that_says_so(
    client: httpx.AsyncClient, body: Any, hint: str
) -> None:
    status, detail = problem(await client.post(BATCHES, json=body))
    assert (status, hint in detail) == (422, True), detail
    assert (await client.get(BATCHES)).json() == {"items": [], "next": None}


async def test_dead_members_run_again_and_limits_are_changed(app: Penstock, client: httpx.AsyncClient) -> None:
    path = f"{BATCHES}/{await opened(client, limit=1)}"
    await client.post(f"{path}/jobs", json=[job(-1), job(-2), job(3)])
    await client.post(f"{path}/seal")
    await app.run_until_idle()
    again = (await client.post(f"{path}/retry")).json()
    assert (again["state"], again["generation"], again["pending"], again["dead"]) == ("sealed", 2, 2, 0)
    changed = (await client.patch(path, json={"priority": 3, "limit": 5})).json()
    assert changed["priority"] == 3
    assert (await client.get(f"{API}/lanes/batch:{again['id']}")).status_code == 200
    assert (await client.patch(path, json={})).status_code == 422
    await app.run_until_idle()
    assert (await client.get(path)).json()["dead"] == 2


async def test_batches_are_listed_the_youngest_first_in_pages(client: httpx.AsyncClient) -> None:
    made = [await opened(client, name=f"n{number % 2}") for number in range(25)]
    for batch in made[:5]:
        await client.post(f"{BATCHES}/{batch}/seal")
    rows = await all_of(client, "batches", limit=4)
    assert sorted(row["id"] for row in rows) == sorted(made)
    times = [datetime.fromisoformat(row["created"]) for row in rows]
    assert times == sorted(times, reverse=True)
    assert {row["id"] for row in await all_of(client, "batches", state="ended")} == set(made[:5])
    assert len(await all_of(client, "batches", state="open", name="n0")) == 10
    assert (await client.get(BATCHES, params={"state": "odd"})).status_code == 422
    assert (await client.get(BATCHES, params={"cursor": "***"})).status_code == 422


async def test_batches_are_inside_each_other(app: Penstock, client: httpx.AsyncClient) -> None:
    outer = await opened(client, name="outer")
    inner = await opened(client, name="inner", parent=outer)
    await client.post(f"{BATCHES}/{inner}/jobs", json=job(1))
    for batch in (outer, inner):
        await client.post(f"{BATCHES}/{batch}/seal")
    await app.run_until_idle()
    body = (await client.get(f"{BATCHES}/{outer}")).json()
    assert (body["state"], body["total"], body["done"]) == ("ended", 1, 1)
    assert (await client.get(f"{BATCHES}/{outer}/jobs")).json() == {"items": [], "next": None}
    assert (await client.get(f"{BATCHES}/{outer}/finished", params={"cursor": "1"})).json()["next"] is None


async def test_cancelling_answers_in_time_however_many_there_are(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = f"{BATCHES}/{await opened(client)}"
    await client.post(f"{path}/jobs", json=[job(number) for number in range(1_000)])
    monkeypatch.setattr(bulk_actions, "BULK_TIMEOUT", 0.0)
    with caplog.at_level(logging.INFO, "penstock.audit"):
        body = (await client.post(f"{path}/cancel", params={"reason": "hunter2"})).json()
    assert (body["open"], body["pending"] > 0) == (False, True)
    assert "hunter2" not in caplog.text
    monkeypatch.undo()
    assert (await client.post(f"{path}/cancel")).json()["cancelled"] == 1_000


async def test_a_batch_is_opened_looked_at_and_steered_without_the_code(app: Penstock) -> None:
    async with app.batch("theirs") as batch:
        await batch.add(app.tasks["work"].call(-7))
    await app.run_until_idle()
    bare = Program(app.name, app.settings, lambda: app.client, QueueStream)
    async with listening(make_service(bare, Access(this_machine=OPEN))) as port, client_at(port) as client:
        path = f"{BATCHES}/{batch.id}"
        (row,) = (await client.get(f"{path}/finished")).json()["items"]
        assert (row["state"], row["error"]["type"]) == ("dead", "ValueError")
        assert (await client.post(f"{path}/retry")).json()["generation"] == 2
        assert (await client.post(f"{path}/cancel")).json()["state"] == "ended"
        fresh = await opened(client, name="ours")
        status, detail = problem(await client.post(f"{BATCHES}/{fresh}/jobs", json=job(1)))
        assert (status, "none are known here" in detail) == (422, True)
        assert problem(await client.post(BATCHES, json={"then": "report"}))[0] == 422
