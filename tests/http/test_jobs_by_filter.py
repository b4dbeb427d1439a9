"""Jobs by filter over HTTP: listed in pages, the dead in groups, retried and forgotten together."""

from typing import Any

import httpx
import pytest

from penstock import Penstock, current_job
from penstock.api.selection import Selection
from penstock.http import bulk_actions
from penstock.model.header import STATES

API = "/api/v1"


@pytest.fixture(autouse=True)
def tasks(app: Penstock) -> None:
    @app.task(name="work", retries=0)
    async def work(number: int) -> int:
        current_job().log(f"number {number}")
        if number % 2:
            raise ValueError("odd") if number % 4 == 1 else KeyError(number)
        return number


async def all_of(client: httpx.AsyncClient, path: str, **query: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    cursor: Any = ""
    while cursor is not None:
        page = (await client.get(f"{API}/{path}", params={**query, "cursor": cursor})).json()
        items += page["items"]
        cursor = page["next"]
    return items


async def test_jobs_are_listed_by_filter_and_in_pages(app: Penstock, client: httpx.AsyncClient) -> None:
    task = app.tasks["work"]
    await app.enqueue_many(task.using(queue=f"q{n % 3}", tags=[f"t{n % 2}"]).call(n) for n in range(250))
    assert len(await all_of(client, "jobs")) == 250
    assert len(await all_of(client, "jobs", limit=10, queue="q0")) == 84
    assert len(await all_of(client, "jobs", queue="q1", tag="t1", state="ready", task="work")) == 42
    assert await all_of(client, "jobs", state="dead") == []
    assert await all_of(client, "jobs", older_than="1h") == []
    job = (await client.get(f"{API}/jobs", params={"limit": 1})).json()["items"][0]
    assert (job["state"], job["task"], "arguments" in job) == ("ready", "work", False)
    for query in ("state=odd", "older_than=old", "cursor=***", "queue=a b", "color=red"):
        assert (await client.get(f"{API}/jobs?{query}")).status_code == 422


@pytest.mark.parametrize(
    ("path", "detail"),
    [
        ("jobs?state=nosuch", f"query: unknown state 'nosuch'; valid are {', '.join(sorted(STATES))} - at `$.state`"),
        ("batches?state=opne", "query: unknown state 'opne'; did you mean 'open'? valid are ended, open, sealed"),
        ("lanes/x?kind=odd", "query: unknown kind 'odd'; valid are lane, lock"),
        ("jobs?state=%27%20-%20at%20%60$.x%60%0A", "valid are cancelled, dead,"),
        ("jobs?limit=many", "query: Expected `int`"),
    ],
)
async def test_a_value_that_is_not_known_is_answered_with_those_that_are(
    client: httpx.AsyncClient, path: str, detail: str
) -> None:
    response = await client.get(f"{API}/{path}")
    assert (response.status_code, detail in response.json()["detail"]) == (422, True), response.text


@pytest.mark.parametrize(
    "query", [{}, {"state": "ready"}, {"queue": "q0"}, {"tag": "t1"}, {"state": "done"}, {"state": "dead"}]
)
async def test_a_page_has_no_more_than_its_limit_and_none_is_left_out(
    app: Penstock, client: httpx.AsyncClient, query: dict[str, str]
) -> None:
    task = app.tasks["work"]
    await app.enqueue_many(task.using(queue=f"q{n % 3}", tags=[f"t{n % 2}"]).call(n) for n in range(30))
    await app.run_until_idle()
    await app.enqueue_many(task.using(queue=f"q{n % 3}", tags=[f"t{n % 2}"]).call(n) for n in range(30))
    items, cursor, sizes = [], "", []
    while cursor is not None:
        page = (await client.get(f"{API}/jobs", params={**query, "limit": 4, "cursor": cursor})).json()
        items += [job["id"] for job in page["items"]]
        sizes.append(len(page["items"]))
        cursor = page["next"]
    assert max(sizes) == 4
    assert sorted(items) == sorted(job["id"] for job in await all_of(client, "jobs", **query))
    assert len(items) == len(set(items)) > 4


async def test_the_dead_are_listed_grouped_retried_and_forgotten(app: Penstock, client: httpx.AsyncClient) -> None:
    await app.enqueue_many(app.tasks["work"].call(n) for n in range(40))
    await app.run_until_idle()
    dead = await all_of(client, "dead")
    assert len(dead) == 20
    assert {job["attempts"][-1]["error"]["type"] for job in dead} == {"ValueError", "KeyError"}
    groups = (await client.get(f"{API}/dead/groups")).json()["items"]
    assert sorted((group["type"], group["count"]) for group in groups) == [("KeyError", 10), ("ValueError", 10)]
    odd = next(group["group"] for group in groups if group["type"] == "ValueError")
    assert len(await all_of(client, "dead", group=odd)) == 10
    assert len(await all_of(client, "dead", error="odd")) == 10
    assert (await client.post(f"{API}/dead/retry", json={"group": odd})).json() == {"changed": 10, "more": False}
    assert (await client.post(f"{API}/dead/discard", json={})).json() == {"changed": 10, "more": False}
    assert (await client.get(f"{API}/dead")).json() == {"items": [], "next": None}
    assert (await client.post(f"{API}/dead/retry", json={"groop": odd})).status_code == 422
    assert (await client.post(f"{API}/dead/retry")).status_code == 415


async def test_an_action_on_many_says_how_far_it_came(
    app: Penstock, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.enqueue_many(app.tasks["work"].call(n) for n in range(1_000))
    await app.run_until_idle()
    monkeypatch.setattr(bulk_actions, "BULK_TIMEOUT", 0.0)
    first = (await client.post(f"{API}/dead/retry", json={})).json()
    assert (first["more"], first["changed"] < 500) == (True, True)
    monkeypatch.undo()
    rest = (await client.post(f"{API}/dead/retry", json={})).json()
    assert rest["more"] is False
    assert await Selection(lambda: app.client, app.jobs(state="dead")._choice).count() == 0


async def test_a_job_shows_what_it_wrote(app: Penstock, client: httpx.AsyncClient) -> None:
    job = await app.tasks["work"].enqueue(8)
    assert (await client.get(f"{API}/jobs/{job.id}/log")).json() == {"gone": 0, "lines": []}
    await app.run_until_idle()
    body = (await client.get(f"{API}/jobs/{job.id}/log")).json()
    assert [(line["attempt"], line["text"]) for line in body["lines"]] == [(1, "number 8")]
    assert (await client.get(f"{API}/jobs/nothing/log")).status_code == 404


async def test_a_queue_is_bounded_and_purged(app: Penstock, client: httpx.AsyncClient) -> None:
    path = f"{API}/queues/default"
    assert (await client.patch(path, json={"max_size": 3})).json()["max_size"] == 3
    many = (await client.post(f"{API}/jobs", json=[{"task": "work", "args": [n]} for n in range(5)])).json()
    assert [row.get("state") for row in many] == ["ready"] * 3 + [None] * 2
    assert {row["problem"]["status"] for row in many[3:]} == {429}
    single = await client.post(f"{API}/jobs", json={"task": "work", "args": [1]})
    assert (single.status_code, single.headers["retry-after"]) == (429, "1")
    bounded = (await client.patch(path, json={"limit": 2})).json()
    assert (bounded["limit"], bounded["max_size"]) == (2, 3)
    lifted = (await client.patch(path, json={"limit": None, "max_size": None})).json()
    assert (lifted["limit"], lifted["max_size"]) == (None, None)
    assert (await client.patch(path, json={})).status_code == 422
    assert (await client.post(f"{path}/purge")).json() == {"changed": 3, "more": False}
    assert (await client.get(path)).json()["counts"]["cancelled"] == 3
