"""Lanes and locks over HTTP: whoever may not set limits joins lanes as they are, and leaves none of the code's."""

from typing import Any

import httpx
import pytest

from penstock import Lane, Penstock, Principal
from tests.http.harness import bearer, serving

JOBS = "/api/v1/jobs"
TOKENS = {
    "operator-secret": Principal("operator", "operator"),
    "limiter-secret": Principal("limiter", "operator", limits=True),
    "admin-secret": Principal("admin", "admin"),
}


@pytest.fixture(autouse=True)
def tasks(app: Penstock) -> None:
    @app.task(name="bound", lane=Lane("tenant:{tenant}", limit=2, rate="100/s", burst=5), lock="user:{user}", cost=2)
    async def bound(tenant: int, user: int) -> None: ...

    @app.task(name="free")
    async def free() -> None: ...


async def post(client: httpx.AsyncClient, name: str, job: dict[str, Any]) -> httpx.Response:
    return await client.post(JOBS, json=job, headers=bearer(f"{name}-secret"))


async def lanes_of(app: Penstock, response: httpx.Response) -> list[str]:
    """The lanes of the job that was stored, with their settings."""
    assert response.status_code == 201, response.text
    record = await app.client.views.job(response.json()["id"])
    assert record is not None
    return [lane.replace("\x1f", "|") for lane in record.header.lanes]


BOUND = {"task": "bound", "args": [7, 8]}
OWN = ["lock:user:8", "lane:tenant:7|2|0.1|5||2"]


@pytest.mark.parametrize(
    "lane",
    [
        {"limit": 1_000_000},
        {"limit": 0},
        {"limit": 2, "rate": "100/s", "burst": 5},
        {"rate": "1/h"},
        {"rate": "1000/s", "burst": 9},
        {"ordered": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("task", [BOUND, {"task": "free"}], ids=["bound", "free"])
async def test_an_operator_sets_no_limit_by_storing_a_job(
    app: Penstock, task: dict[str, Any], lane: dict[str, Any]
) -> None:
    async with serving(app, tokens=TOKENS) as client:
        await lanes_of(app, await post(client, "admin", BOUND))
        response = await post(client, "operator", task | {"lane": [{"name": "tenant:7", **lane}]})
        assert response.status_code == 403
        assert "this needs the right to set limits" in response.json()["detail"]
        assert (await app.client.views.counts())["default"]["ready"] == 1


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"lane": []}, "lane:tenant:7"),
        ({"lane": {"name": "tenant:8"}}, "lane:tenant:7"),
        ({"lock": []}, "lock:user:8"),
        ({"lock": "user:9"}, "lock:user:8"),
        ({"lock": [], "lane": []}, "lane:tenant:7, lock:user:8"),
        ({"cost": 1}, "cost=1"),
    ],
    ids=str,
)
async def test_an_operator_does_not_leave_what_the_code_says(app: Penstock, options: dict[str, Any], left: str) -> None:
    async with serving(app, tokens=TOKENS) as client:
        refused = await post(client, "operator", BOUND | options)
        assert (refused.status_code, left in refused.json()["detail"]) == (403, True)
        many = await client.post(JOBS, json=[BOUND | options, BOUND], headers=bearer("operator-secret"))
        assert [row.get("problem", {}).get("status") for row in many.json()] == [403, None]
        for name in ("limiter", "admin"):
            assert await lanes_of(app, await post(client, name, BOUND | options)) != OWN


async def test_an_operator_names_lanes_and_each_is_as_it_is_declared(app: Penstock) -> None:
    async with serving(app, tokens=TOKENS) as client:
        assert await lanes_of(app, await post(client, "operator", BOUND)) == OWN
        own = {"lane": {"name": "tenant:7"}, "lock": ["user:8", "more"], "cost": 3}
        assert await lanes_of(app, await post(client, "operator", BOUND | own)) == [
            "lock:user:8",
            "lock:more",
            "lane:tenant:7|2|0.1|5||3",
        ]
        by_template = {"task": "free", "lane": {"name": "tenant:9"}}
        assert await lanes_of(app, await post(client, "operator", by_template)) == ["lane:tenant:9|2|0.1|5||1"]
        unknown = {"task": "free", "lane": {"name": "new"}}
        assert await lanes_of(app, await post(client, "operator", unknown)) == ["lane:new|||||1"]


async def test_a_lane_that_other_code_declared_keeps_its_limit(app: Penstock) -> None:
    async with serving(app, tokens=TOKENS) as client:
        declared = {"task": "free", "lane": {"name": "theirs", "limit": 2, "rate": "5/m"}}
        first = await lanes_of(app, await post(client, "admin", declared))
        named = {"task": "free", "lane": {"name": "theirs"}}
        assert await lanes_of(app, await post(client, "operator", named)) == first
        many = await client.post(JOBS, json=[named, named], headers=bearer("operator-secret"))
        record = await app.client.views.job(many.json()[1]["id"])
        assert record is not None
        assert [lane.replace("\x1f", "|") for lane in record.header.lanes] == first
        status = await app.lane("theirs").status()
        assert (status.limit, status.conflict) == (2, "")


@pytest.mark.parametrize(
    "job",
    [
        '{"task": "free", "lane": {"name": "x", "rate": "DIGITS/s"}}',
        '{"task": "free", "lane": {"name": "x", "rate": "1/DIGITSs"}}',
        '{"task": "free", "lane": {"name": "x", "rate": "1/s", "burst": DIGITS}}',
        '{"task": "free", "lane": {"name": "x", "limit": DIGITS}}',
        '{"task": "free", "delay": DIGITS}',
        '{"task": "free", "delay": "DIGITSd"}',
        '{"task": "free", "timeout": "DIGITSd"}',
        '{"task": "free", "expires": DIGITS.5}',
        '{"task": "free", "retries": DIGITS}',
        '{"task": "free", "cost": DIGITS}',
        '{"task": "free", "keep_result": DIGITS}',
        '{"task": "free", "backoff": ["DIGITSd"]}',
        '{"task": "free", "backoff": {"base": DIGITS}}',
    ],
)
async def test_a_number_of_400_digits_is_a_problem_of_the_sender(
    app: Penstock, client: httpx.AsyncClient, job: str
) -> None:
    response = await client.post(
        JOBS, content=job.replace("DIGITS", "9" * 400), headers={"Content-Type": "application/json"}
    )
    assert response.status_code == 422, response.text
    assert len(response.text) < 800
