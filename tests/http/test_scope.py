"""What those may do who are bound to queues, tasks and options, and what is hidden from those without `contents`."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from penstock import Bury, Penstock, Principal, current_job
from tests.http.harness import bearer, serving

JOBS, BATCHES = "/api/v1/jobs", "/api/v1/batches"
SECRET = "hunter2"
SCOPED: dict[str, Any] = {
    "admin": Principal("admin", "admin"),
    "mailer": Principal("mailer", "operator", queues=["mail", "mail.*"]),
    "caller": Principal("caller", "operator", tasks=["shop:*"]),
    "poster": Principal("poster", "enqueuer", queues=["mail"], most_urgent=20, max_retries=5, max_timeout="1m"),
    "other": Principal("other", "enqueuer", queues=["mail"]),
    "viewer": Principal("viewer", "viewer"),
    "reader": Principal("reader", "viewer", contents=True),
}


@pytest.fixture(autouse=True)
def tasks(app: Penstock) -> None:
    @app.task(name="shop:send", queue="mail", retries=0, priority=5)
    async def send(text: str = "", fail: str = "") -> str:
        job = current_job()
        job.log(f"a line about {text}")
        await job.progress(1, 2, f"halfway through {text}")
        if fail == "bury":
            raise Bury(f"because of {text}")
        if fail:
            raise ValueError(f"cannot send {text}")
        return text

    @app.task(name="shop:report", queue="mail")
    async def report(status: dict[str, object]) -> None: ...

    @app.every("1h", id="hourly")
    @app.task(name="bills:pay", queue="money")
    async def pay(status: dict[str, object] | None = None) -> None: ...


@asynccontextmanager
async def served(app: Penstock) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
    """A client for each principal."""
    tokens = {f"{name}-secret": principal for name, principal in SCOPED.items()}
    async with serving(app, tokens=tokens) as client, AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(client_of(client, name)) for name in SCOPED}


def client_of(client: httpx.AsyncClient, name: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=client.base_url, headers=bearer(f"{name}-secret"), timeout=30)


def detail(response: httpx.Response, status: int = 403) -> str:
    assert response.status_code == status, response.text
    return str(response.json()["detail"])


async def test_jobs_are_stored_only_in_the_queues_and_of_the_tasks_of_a_scope(app: Penstock) -> None:
    async with served(app) as by:
        assert (await by["mailer"].post(JOBS, json={"task": "send"})).status_code == 201
        assert (await by["mailer"].post(JOBS, json={"task": "pay", "queue": "mail.bills"})).status_code == 201
        text = detail(await by["mailer"].post(JOBS, json={"task": "pay"}))
        assert text == "the queue 'money' is not among those to use here; mailer may use only the queues mail, mail.*"
        assert "'money'" in detail(await by["mailer"].post(JOBS, json={"task": "send", "queue": "money"}))
        assert (await by["caller"].post(JOBS, json={"task": "send", "queue": "money"})).status_code == 201
        text = detail(await by["caller"].post(JOBS, json={"task": "pay", "kwargs": {"no": "such argument"}}))
        assert text == "the task 'bills:pay' is not among those to use here; caller may use only the tasks shop:*"
        unknown = detail(await by["caller"].post(JOBS, json={"task": "sent"}), 422)
        assert ("shop:send" in unknown, "bills" in unknown) == (True, False)
        many = await by["poster"].post(JOBS, json=[{"task": "send"}, {"task": "pay"}])
        assert [row.get("problem", {}).get("status") for row in many.json()] == [None, 403]


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("priority", 19, "poster may give 20 or a larger number"),
        ("retries", 6, "poster may give 5 at most"),
        ("timeout", "61s", "poster may give 1m at most"),
        ("timeout", None, "poster may give 1m at most"),
    ],
)
async def test_options_are_bounded_by_a_scope_and_those_of_the_code_are_not(
    app: Penstock, option: str, value: Any, text: str
) -> None:
    async with served(app) as by:
        assert text in detail(await by["poster"].post(JOBS, json={"task": "send", option: value}))
        fine = {"task": "send", "priority": 20, "retries": 5, "timeout": "1m"}
        for job in (fine, {"task": "send"}):  # which has the priority 5
            assert (await by["poster"].post(JOBS, json=job)).status_code == 201
        refused = await by["poster"].post(BATCHES, json={"priority": 0})
        assert "poster may give 20 or a larger number" in detail(refused)


async def test_those_who_are_bound_are_told_their_bounds_and_not_where_jobs_are_stored(app: Penstock) -> None:
    async with served(app) as by:
        me = (await by["mailer"].get("/api/v1/me")).json()
        assert (me["queues"], me["tasks"], me["server"]) == (["mail", "mail.*"], ["*"], "")
        assert (await by["viewer"].get("/api/v1/me")).json()["server"] == app.settings.url


async def test_an_enqueuer_reads_the_state_of_a_job_by_its_id_and_nothing_else(app: Penstock) -> None:
    async with served(app) as by:
        path = (await by["poster"].post(JOBS, json={"task": "send", "args": [SECRET]})).headers["location"]
        await app.run_until_idle()
        body = (await by["poster"].get(path)).json()
        assert (body["state"], body["hidden"], "result" in body) == ("done", True, False)
        for method, url in (("GET", JOBS), ("GET", f"{path}/log"), ("POST", f"{path}/cancel"), ("GET", "/metrics")):
            assert "poster has the role enqueuer" in detail(await by["poster"].request(method, url))
        money = await app.tasks["bills:pay"].enqueue()
        assert "poster may use only the queues mail" in detail(await by["poster"].get(f"{JOBS}/{money.id}"))


async def test_jobs_of_other_queues_and_tasks_are_neither_shown_nor_steered(app: Penstock) -> None:
    mail = await app.tasks["shop:send"].using(delay="1h").enqueue("x")
    money = await app.tasks["bills:pay"].using(delay="1h").enqueue()
    async with served(app) as by:
        for name in ("mailer", "caller"):
            rows = (await by[name].get(JOBS)).json()["items"]
            assert [row["id"] for row in rows] == [mail.id]
            for action, body in (("cancel", None), ("retry", None), ("reschedule", {"delay": 0})):
                refused = await by[name].post(f"{JOBS}/{money.id}/{action}", json=body)
                assert f"the job {money.id} is not among those to use here" in detail(refused)
            assert detail(await by[name].get(f"{JOBS}/{money.id}/log"))
            assert (await by[name].post(f"{JOBS}/{mail.id}/reschedule", json={"delay": "2h"})).status_code == 200
        assert detail(await by["mailer"].get(JOBS, params={"queue": "money"}))
        assert detail(await by["caller"].get(JOBS, params={"task": "bills:pay"}))
        assert await money.status()


async def test_dead_jobs_are_steered_together_only_by_a_filter_within_the_scope(app: Penstock) -> None:
    for _ in range(2):
        await app.tasks["shop:send"].enqueue("x", fail="yes")
    await app.run_until_idle()
    async with served(app) as by:
        assert "name a queue with queue=" in detail(await by["mailer"].post("/api/v1/dead/retry", json={}))
        assert "name a task with task=" in detail(await by["caller"].post("/api/v1/dead/retry", json={}))
        assert detail(await by["mailer"].post("/api/v1/dead/retry", json={"queue": "money"}))
        assert (await by["mailer"].post("/api/v1/dead/retry", json={"queue": "mail"})).json()["changed"] == 2


async def test_a_task_without_its_module_is_no_way_to_those_of_others(app: Penstock) -> None:
    @app.task(name="send", retries=0)
    async def send() -> None:
        raise ValueError

    await send.enqueue()
    await app.tasks["shop:send"].enqueue(fail="yes")
    await app.run_until_idle()
    sender = Principal("sender", "admin", tasks=["send"])
    async with serving(app, tokens={"a-long-secret": sender}) as client:
        headers = bearer("a-long-secret")
        listed = (await client.get("/api/v1/dead?task=send", headers=headers)).json()["items"]
        assert [row["task"] for row in listed] == ["send"]
        for action in ("retry", "discard"):
            refused = await client.post(f"/api/v1/dead/{action}", json={"task": "send"}, headers=headers)
            assert "name a task with task=, as module:function" in detail(refused)
    assert len(await app.jobs(state="dead")) == 2


async def test_queues_schedules_and_tasks_of_others_are_not_shown(app: Penstock) -> None:
    await app.tasks["shop:send"].enqueue("x")
    await app.tasks["bills:pay"].using(delay="1h").enqueue()
    await app.run_until_idle()  # a worker makes schedules known
    async with served(app) as by:
        names = [row["name"] for row in (await by["mailer"].get("/api/v1/queues")).json()["items"]]
        assert names == ["mail"]
        assert detail(await by["mailer"].get("/api/v1/queues/money"))
        assert detail(await by["mailer"].post("/api/v1/queues/money/pause"))
        assert (await by["mailer"].post("/api/v1/queues/mail/pause")).status_code == 200
        assert "all tasks of a queue" in detail(await by["caller"].post("/api/v1/queues/mail/pause"))
        for name in ("mailer", "caller"):
            assert (await by[name].get("/api/v1/schedules")).json()["items"] == []
            assert detail(await by[name].get("/api/v1/schedules/hourly"))
            assert detail(await by[name].post("/api/v1/schedules/hourly/run"))
        assert [row["name"] for row in (await by["caller"].get("/api/v1/tasks")).json()["items"]] == [
            "shop:report",
            "shop:send",
        ]


async def test_events_of_others_are_not_told(app: Penstock) -> None:
    await app.tasks["bills:pay"].using(delay="1h").enqueue()
    mail = await app.tasks["shop:send"].using(delay="1h").enqueue("x")
    async with served(app) as by:
        for name in ("mailer", "caller"):
            async with by[name].stream("GET", "/api/v1/events?since=1h") as response:
                lines = response.aiter_lines()
                first = await anext(line async for line in lines if line.startswith("data: "))
            assert json.loads(first.removeprefix("data: "))["job"] == mail.id
        assert detail(await by["mailer"].get("/api/v1/events?queue=money"))


# Batches


async def test_a_batch_is_filled_and_sealed_by_those_who_opened_it(app: Penstock) -> None:
    async with served(app) as by:
        made = await by["poster"].post(BATCHES, json={"id": "mine", "then": "report"})
        assert made.status_code == 201
        assert (await by["poster"].post(BATCHES, json={"id": "mine", "then": "report"})).status_code == 201
        for name in ("other", "mailer", "caller"):
            for path, body in (("jobs", {"task": "send"}), ("seal", None)):
                refused = await by[name].post(f"{BATCHES}/mine/{path}", json=body)
                assert f"the batch mine was not opened by {name}" in detail(refused)
            assert (await by[name].post(BATCHES, json={"parent": "mine"})).status_code == 403
            assert (await by[name].post(BATCHES, json={"id": "mine", "then": "report"})).status_code == 409
        assert detail(await by["mailer"].get(f"{BATCHES}/mine"))
        assert detail(await by["mailer"].get(f"{BATCHES}/mine/jobs"))
        assert detail(await by["mailer"].post(f"{BATCHES}/mine/cancel"))
        assert (await by["poster"].post(f"{BATCHES}/mine/jobs", json={"task": "send"})).status_code == 201
        assert (await by["poster"].post(f"{BATCHES}/mine/seal")).status_code == 200
        assert (await by["admin"].get(f"{BATCHES}/mine")).json()["total"] == 1


async def test_what_a_batch_makes_at_its_end_is_within_the_scope(app: Penstock) -> None:
    async with served(app) as by:
        assert "'money'" in detail(await by["poster"].post(BATCHES, json={"then": "pay"}))
        assert "'bills:pay'" in detail(await by["caller"].post(BATCHES, json={"on_failure": "pay"}))


# Keys and ids


async def test_an_idempotency_key_belongs_to_its_caller(app: Penstock) -> None:
    job, key = {"task": "send", "args": ["x"]}, {"Idempotency-Key": "order-1"}
    async with served(app) as by:
        first = await by["poster"].post(JOBS, json=job, headers=key)
        again = await by["poster"].post(JOBS, json=job, headers=key)
        assert (again.status_code, again.json()) == (201, first.json())
        theirs = await by["other"].post(JOBS, json={"task": "send", "args": ["y"]}, headers=key)
        assert theirs.status_code == 201
        assert theirs.json()["id"] != first.json()["id"]
        batches = [(await by[name].post(BATCHES, json={}, headers=key)).json()["id"] for name in ("poster", "other")]
        assert batches[0] != batches[1]


@pytest.mark.parametrize(
    "job_id",
    [
        "key-" + "0" * 32,
        "nightly@then-1",
        "nightly@on_failure-2-1800000000000",
        "hourly@run-0123456789ab",
        "hourly@2030-01-31T08:00:00Z",
        "hourly@2030-01-31T08:00:00.250Z",
        "GMhDvFiI8U01",
    ],
)
async def test_an_id_that_penstock_might_make_is_refused(app: Penstock, job_id: str) -> None:
    async with served(app) as by:
        text = detail(await by["admin"].post(JOBS, json={"task": "send", "id": job_id}), 422)
        assert "Penstock makes such ids itself" in text
        if "@" not in job_id:
            assert (await by["admin"].post(BATCHES, json={"id": job_id})).status_code == 422


async def test_the_next_id_that_the_service_makes_cannot_be_taken_by_a_caller(app: Penstock) -> None:
    async with served(app) as by:
        made = (await by["poster"].post(JOBS, json={"task": "send"})).json()["id"]
        squatted = made[:-1] + ("1" if made[-1] == "0" else "0")
        assert (await by["poster"].post(JOBS, json={"task": "send", "id": squatted})).status_code == 422


@pytest.mark.parametrize("job_id", ["welcome-7", "ann@example.com", "key-1", "123456789012", "a@then", "x" * 13])
async def test_other_ids_are_taken(app: Penstock, job_id: str) -> None:
    async with served(app) as by:
        assert (await by["admin"].post(JOBS, json={"task": "send", "id": job_id})).status_code == 201


# Contents


async def test_without_the_right_to_contents_the_secret_is_nowhere_in_any_answer(app: Penstock) -> None:
    done = await app.tasks["shop:send"].enqueue(SECRET)
    dead = await app.tasks["shop:send"].enqueue(SECRET, fail="yes")
    buried = await app.tasks["shop:send"].enqueue(SECRET, fail="bury")
    waiting = await app.tasks["shop:send"].using(delay="1h").enqueue(SECRET)
    batch = app.batch("b")
    async with batch:
        await batch.add(app.tasks["shop:send"].call(SECRET))
        await batch.add(app.tasks["shop:send"].call(SECRET, fail="yes"))
    await app.run_until_idle()
    paths = [
        *(f"{JOBS}/{job.id}?explain=true" for job in (done, dead, buried, waiting)),
        *(JOBS, f"{JOBS}?state=dead", "/api/v1/dead", "/api/v1/dead/groups", "/", "/metrics", "/openapi.json"),
        *(f"{BATCHES}/{batch.id}", f"{BATCHES}/{batch.id}/jobs", f"{BATCHES}/{batch.id}/finished", BATCHES),
        *("/api/v1/queues", "/api/v1/workers", "/api/v1/schedules", "/api/v1/tasks", "/api/v1/lanes", "/api/v1/me"),
    ]
    seen = {"viewer": 0, "reader": 0}
    async with served(app) as by:
        for name in seen:
            for path in paths:
                response = await by[name].get(path)
                assert response.status_code == 200
                seen[name] += SECRET in response.text
            seen[name] += SECRET in await events_of(by[name])
        assert seen["viewer"] == 0
        assert seen["reader"] >= 10
        for path in (f"{JOBS}/{done.id}/log", f"{JOBS}?error=hunter", "/api/v1/dead?error=hunter"):
            assert "the right to read contents" in detail(await by["viewer"].get(path))
            assert SECRET in (await by["reader"].get(path)).text


async def events_of(client: httpx.AsyncClient) -> str:
    """The events so far."""
    text, seen = "", 0
    async with client.stream("GET", "/api/v1/events?since=1h&kinds=progress,bury,complete") as response:
        async for line in response.aiter_lines():
            text += line
            seen += '"kind":"bury"' in line or '"kind":"complete"' in line
            if seen == 5:
                break
    return text


async def test_without_the_right_to_contents_the_class_of_an_error_and_its_times_are_left(app: Penstock) -> None:
    dead = await app.tasks["shop:send"].enqueue(SECRET, fail="yes")
    buried = await app.tasks["shop:send"].enqueue(SECRET, fail="bury")
    await app.run_until_idle()
    async with served(app) as by:
        body = (await by["viewer"].get(f"{JOBS}/{dead.id}?explain=true")).json()
        assert (body["state"], body["reason"], body["hidden"]) == ("dead", "retries_exhausted", True)
        assert body["error"] == {"type": "ValueError", "message": "", "traceback": ""}
        assert body["attempts"][0]["started"]
        assert body["progress"] == [1, 2, ""]
        body = (await by["viewer"].get(f"{JOBS}/{buried.id}?explain=true")).json()
        assert (body["reason"], body["error"]["type"]) == ("buried", "Bury")
        assert body["explain"].startswith("dead since")
        full = (await by["reader"].get(f"{JOBS}/{buried.id}")).json()
        assert (full["reason"], "hidden" in full) == (f"because of {SECRET}", False)
