"""Jobs over HTTP: stored once, read, waited for, cancelled, retried and rescheduled."""

import asyncio
import base64
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import Penstock, current_job
from tests.app_helpers import eventually
from tests.cli.shell import Shell
from tests.engine.factories import TestWorker, enqueue, new_job

JOBS = "/api/v1/jobs"


def tasks_of(app: Penstock) -> None:
    @app.task(name="add", queue="sums")
    async def add(x: int, y: int = 0) -> int:
        """The sum of two numbers."""
        return x + y

    @app.task(name="fail", retries=0)
    async def fail(text: str) -> None:
        raise ValueError(text)

    @app.task(name="typed", redact=["pin"])
    async def typed(at: datetime, raw: bytes, pin: str = "") -> list[Any]:
        return [at.year, len(raw), raw]

    @app.task(name="slow")
    async def slow() -> str:
        await current_job().progress(1, 2, "half")
        await asyncio.sleep(60)
        return "never"


@pytest.fixture(autouse=True)
def tasks(app: Penstock) -> None:
    tasks_of(app)


async def test_a_job_is_stored_run_and_answered(app: Penstock, client: httpx.AsyncClient) -> None:
    posted = await client.post(JOBS, json={"task": "add", "args": [1], "kwargs": {"y": 2}, "priority": 5})
    assert posted.status_code == 201
    job = posted.json()
    assert job == {"id": job["id"], "state": "ready", "created": True}
    assert posted.headers["location"] == f"{JOBS}/{job['id']}"
    waiting = (await client.get(posted.headers["location"])).json()
    assert (waiting["state"], waiting["queue"], waiting["priority"]) == ("ready", "sums", 5)
    assert waiting["arguments"] == {"x": 1, "y": 2}
    await app.run_until_idle()
    done = (await client.get(posted.headers["location"])).json()
    assert (done["state"], done["result"], done["attempt"]) == ("done", 3, 1)
    assert "error" not in done


async def test_waiting_ends_with_the_job_or_with_the_time(app: Penstock, client: httpx.AsyncClient) -> None:
    job = (await client.post(JOBS, json={"task": "add", "args": [1]})).json()
    begun = time.monotonic()
    assert (await client.get(f"{JOBS}/{job['id']}?wait=0.2")).json()["state"] == "ready"
    assert time.monotonic() - begun >= 0.2
    asked = asyncio.create_task(client.get(f"{JOBS}/{job['id']}?wait=30"))
    await asyncio.sleep(0.1)
    async with app.worker():
        assert (await asked).json()["result"] == 1
    assert (await client.get(f"{JOBS}/{job['id']}", params={"wait": 30})).json()["result"] == 1


async def test_a_request_whose_client_hangs_up_ends(app: Penstock, client: httpx.AsyncClient) -> None:
    job = (await client.post(JOBS, json={"task": "add", "args": [1]})).json()
    with pytest.raises(httpx.ReadTimeout):
        await client.get(f"{JOBS}/{job['id']}?wait=60", timeout=0.3)
    waiter = next(iter(app.client.waiter._loop_waiters.values()))
    await eventually(lambda: not waiter._waiting)


async def test_an_array_has_a_result_per_item(app: Penstock, client: httpx.AsyncClient) -> None:
    items: list[Any] = [{"task": "add", "args": [n]} for n in range(250)]
    items[7] = {"task": "nothing"}
    items[8] = {"task": "add", "args": ["one"]}
    items[9] = 9
    items[10] = {"task": "add", "args": [1], "priority": 100}
    items[11] = {"task": "add", "args": [1], "dealy": 5}
    response = await client.post(JOBS, json=items)
    assert response.status_code == 200
    rows = response.json()
    assert len(rows) == 250
    problems = {number: row["problem"] for number, row in enumerate(rows) if "problem" in row}
    assert {number: problem["status"] for number, problem in problems.items()} == dict.fromkeys(range(7, 12), 422)
    assert "did you mean 'delay'" in problems[11]["detail"]
    assert [row["created"] for row in rows if "problem" not in row] == [True] * 245
    await app.run_until_idle()
    assert (await client.get(f"{JOBS}/{rows[249]['id']}")).json()["result"] == 249


async def test_the_same_key_and_body_make_one_job_and_another_body_is_refused(client: httpx.AsyncClient) -> None:
    key = {"Idempotency-Key": "order 7 / x"}
    first = await client.post(JOBS, json={"task": "add", "args": [1]}, headers=key)
    again = await client.post(JOBS, json={"task": "add", "args": [1]}, headers=key)
    assert (first.status_code, first.json()) == (again.status_code, again.json()) == (201, first.json())
    other = await client.post(JOBS, json={"task": "add", "args": [2]}, headers=key)
    assert (other.status_code, first.json()["id"] in other.json()["detail"]) == (422, True)
    array = [{"task": "add", "args": [n]} for n in range(3)]
    many = (await client.post(JOBS, json=array, headers=key)).json()
    assert many[0]["problem"]["status"] == 422  # the key's first job has another body: it was sent alone
    assert many[1:] == (await client.post(JOBS, json=array, headers=key)).json()[1:]


def named_in_modules(app: Penstock) -> None:
    for name in ("shop:send", "mail:post", "shop:post", "shop:add"):

        @app.task(name=name)
        async def function(number: int = 0) -> None: ...


async def test_a_task_may_be_named_without_its_module(app: Penstock, client: httpx.AsyncClient) -> None:
    named_in_modules(app)
    posted = await client.post(JOBS, json={"task": "send", "args": [7]})
    assert posted.status_code == 201
    many = (await client.post(JOBS, json=[{"task": "send"}, {"task": "post"}, {"task": "mail:post"}])).json()
    assert [row.get("created") for row in many] == [True, None, True]
    assert many[1]["problem"]["status"] == 422
    ids = [posted.json()["id"], many[0]["id"], many[2]["id"]]
    tasks = [(await client.get(f"{JOBS}/{job_id}")).json()["task"] for job_id in ids]
    assert tasks == ["shop:send", "shop:send", "mail:post"]
    whole = (await client.post(JOBS, json={"task": "add", "args": [1]})).json()["id"]  # it is the full name of one
    assert (await client.get(f"{JOBS}/{whole}")).json()["task"] == "add"


async def test_a_name_that_several_tasks_have_is_a_problem_that_names_them(
    app: Penstock, client: httpx.AsyncClient
) -> None:
    named_in_modules(app)
    response = await client.post(JOBS, json={"task": "post"})
    detail = "several tasks are called 'post'; say which: mail:post, shop:post"
    assert (response.status_code, response.json()["detail"]) == (422, detail)
    assert await app.client.views.counts() == {}


async def test_a_key_makes_one_job_of_a_task_without_its_module(app: Penstock, client: httpx.AsyncClient) -> None:
    named_in_modules(app)
    key, job = {"Idempotency-Key": "short"}, {"task": "send", "args": [7]}
    first = await client.post(JOBS, json=job, headers=key)
    again = await client.post(JOBS, json=job, headers=key)
    assert (again.status_code, again.json()) == (201, first.json())
    other = await client.post(JOBS, json={"task": "send", "args": [8]}, headers=key)
    assert (other.status_code, first.json()["id"] in other.json()["detail"]) == (422, True)


async def test_an_id_that_is_there_makes_no_second_job(client: httpx.AsyncClient) -> None:
    job = {"task": "add", "args": [1], "id": "mine/1"}
    first, second = await client.post(JOBS, json=job), await client.post(JOBS, json=job)
    assert (first.status_code, first.json()["created"]) == (201, True)
    assert (second.status_code, second.json()["created"], second.json()["id"]) == (200, False, "mine/1")


async def test_values_are_converted_as_json_has_them(app: Penstock, client: httpx.AsyncClient) -> None:
    raw = base64.b64encode(b"\xff\x00").decode()
    kwargs = {"at": "2030-01-31T08:00:00+01:00", "raw": raw, "pin": "1234"}
    job = (await client.post(JOBS, json={"task": "typed", "kwargs": kwargs})).json()
    shown = (await client.get(f"{JOBS}/{job['id']}")).json()
    assert shown["arguments"]["pin"] == "[redacted]"
    await app.run_until_idle()
    assert (await client.get(f"{JOBS}/{job['id']}")).json()["result"] == [2030, 2, raw]


async def test_every_option_is_taken_by_its_name(app: Penstock, client: httpx.AsyncClient) -> None:
    options = {
        "queue": "other",
        "priority": 1,
        "delay": "10m",
        "expires": "1h",
        "retries": 7,
        "backoff": {"kind": "linear", "base": "2s", "jitter": False},
        "timeout": 1.5,
        "lock": ["a", "b"],
        "lane": {"name": "tenant:7", "limit": 2},
        "cost": 1,
        "unique": "k",
        "id": "named",
        "tags": ["x"],
        "keep_result": "2h",
        "redact": ["y"],
    }
    response = await client.post(JOBS, json={"task": "add", "args": [1, 2], **options})
    assert (response.status_code, response.json()["state"]) == (201, "scheduled")
    status = await (await app.get_job("named")).status()
    assert (status.queue, status.priority, status.retries, status.tags) == ("other", 1, 7, ("x",))
    record = await app.client.views.job("named")
    assert record is not None
    assert record.header.lanes[:2] == ["lock:a", "lock:b"]
    assert (await client.get(f"{JOBS}/named")).json()["arguments"] == {"x": 1, "y": "[redacted]"}
    at = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    later = await client.post(JOBS, json={"task": "add", "args": [1], "at": at, "backoff": ["1s", 5]})
    assert later.json()["state"] == "scheduled"


@pytest.mark.parametrize(
    ("job", "hint"),
    [
        ({"task": "ad"}, "did you mean 'add'"),
        ({"task": "add"}, "missing a required argument: 'x'"),
        ({"task": "add", "kwargs": {"x": 1, "delay": 3}}, "option"),
        ({"task": "add", "args": ["1"]}, "int"),
        ({"task": "add", "args": [1], "priority": 100}, "priority"),
        ({"task": "add", "args": [1], "delay": "soon"}, "delay"),
        ({"task": "add", "args": [1], "at": "2030-01-01T00:00:00"}, "at"),
        ({"task": "add", "args": [1], "executor": "process"}, "executor"),
        ({"task": "add", "args": [1], "queue": "a b"}, "queue"),
        ({"task": "add", "args": [1], "delay": 1, "at": "2030-01-01T00:00:00Z"}, "delay and at"),
        (
            {"task": "add", "args": [1], "backoff": {"kind": "odd"}},
            "unknown kind 'odd'; valid are exponential, fixed, linear - at `$.backoff.kind`",
        ),
        (
            {"task": "add", "args": [1], "lane": [{"name": "x", "on_dead": "holt"}]},
            "unknown on_dead 'holt'; did you mean 'hold'? valid are continue, hold - at `$.lane[0].on_dead`",
        ),
        ({"args": [1]}, "task"),
        ("add", "object"),
    ],
    ids=str,
)
async def test_what_is_wrong_is_a_problem_that_says_so(
    app: Penstock, client: httpx.AsyncClient, job: Any, hint: str
) -> None:
    response = await client.post(JOBS, json=job)
    assert (response.status_code, response.headers["content-type"]) == (422, "application/problem+json")
    assert hint in response.json()["detail"]
    assert response.json()["title"]
    assert await app.client.views.counts() == {}


async def test_a_failed_job_says_why_and_can_be_run_again(app: Penstock, client: httpx.AsyncClient) -> None:
    job = (await client.post(JOBS, json={"task": "fail", "args": ["oh"]})).json()
    await app.run_until_idle()
    dead = (await client.get(f"{JOBS}/{job['id']}")).json()
    assert (dead["state"], dead["error"]["type"], dead["error"]["message"]) == ("dead", "ValueError", "oh")
    assert len(dead["attempts"]) == 1
    again = await client.post(f"{JOBS}/{job['id']}/retry")
    assert (again.status_code, again.json()) == (200, {"id": job["id"], "state": "ready"})
    refused = await client.post(f"{JOBS}/{job['id']}/retry")
    assert (refused.status_code, "is ready" in refused.json()["detail"]) == (409, True)


async def test_jobs_are_cancelled_and_rescheduled(app: Penstock, client: httpx.AsyncClient) -> None:
    job = (await client.post(JOBS, json={"task": "add", "args": [1], "delay": "1h"})).json()
    path = f"{JOBS}/{job['id']}"
    assert (await client.post(f"{path}/reschedule", json={"delay": 0})).json()["state"] == "ready"
    assert (await client.post(f"{path}/reschedule", json={})).status_code == 422
    assert (await client.post(f"{path}/cancel")).json()["state"] == "cancelled"
    shown = (await client.get(path, params={"explain": "true"})).json()
    assert shown["error"] == {"type": "JobCancelled", "message": "cancelled", "traceback": ""}
    assert shown["explain"].startswith("cancelled since")
    running = (await client.post(JOBS, json={"task": "slow"})).json()
    async with app.worker():
        await eventually(lambda: _has_progress(client, running["id"]))
        assert (await client.post(f"{JOBS}/{running['id']}/cancel")).json()["state"] == "cancelling"
        ended = (await client.get(f"{JOBS}/{running['id']}?wait=30")).json()
    assert ended["state"] == "cancelled"


async def _has_progress(client: httpx.AsyncClient, job_id: str) -> bool:
    body = (await client.get(f"{JOBS}/{job_id}")).json()
    return (body["state"], body.get("progress")) == ("running", [1.0, 2.0, "half"])


@pytest.mark.parametrize("name", ["missing", "a%2Fb", "%2F", "%00", "ä", "%FF", "..", "a%252Fb", "x" * 3000])
@pytest.mark.parametrize("action", ["", "/cancel", "/retry"])
async def test_an_odd_id_is_not_found(client: httpx.AsyncClient, name: str, action: str) -> None:
    response = await client.request("POST" if action else "GET", httpx.URL(f"{client.base_url}{JOBS}/{name}{action}"))
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("name", ["a/b", "%", "a%2Fb", "ä ö".replace(" ", "-"), "x:y", "cancel", "?", "#"])
async def test_an_odd_id_is_found_where_it_exists(client: httpx.AsyncClient, name: str) -> None:
    posted = await client.post(JOBS, json={"task": "add", "args": [1], "id": name})
    assert posted.status_code == 201
    assert (await client.get(posted.headers["location"])).json()["id"] == name
    assert (await client.post(f"{posted.headers['location']}/cancel")).json() == {"id": name, "state": "cancelled"}


async def test_a_result_that_is_no_longer_kept_is_said_so(app: Penstock, client: httpx.AsyncClient) -> None:
    job = (await client.post(JOBS, json={"task": "add", "args": [1], "keep_result": 0})).json()
    await app.run_until_idle()
    body = (await client.get(f"{JOBS}/{job['id']}")).json()
    assert (body["state"], body["error"]["type"]) == ("done", "ResultExpired")
    assert "result" not in body


async def test_a_job_cancelled_while_it_ran_tells_of_that_attempt(
    app: Penstock, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    engine = app.client.engine
    worker = await TestWorker(engine, "w").register()
    await enqueue(engine, new_job("a", payload=b"\x90"))
    (lease,) = await worker.lease()
    await engine.cancel(["a"], "no longer wanted")
    await worker.release(lease)
    body = (await client.get("/api/v1/jobs/a")).json()
    assert (body["state"], body["attempt"]) == ("cancelled", 1)
    (attempt,) = body["attempts"]
    assert (attempt["number"], attempt["outcome"], attempt["error"]["message"]) == (1, "cancelled", "no longer wanted")
    assert (attempt["started"], attempt["ended"]) == (body["started"], body["finished"])
    shell = Shell(tmp_path, str(app.settings.url))
    shown, _ = await asyncio.to_thread(shell.run, "job", "show", "a", "--namespace", app.name)
    assert "attempts that did not succeed" in shown, shown
    assert "no longer wanted" in shown
