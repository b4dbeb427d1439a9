"""Who may do what: a matrix of roles and routes, credentials of every kind, and pages of other sites."""

import base64
import logging
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from penstock import BadOption, Penstock
from penstock.http.access import ROLES, Role, Trust
from penstock.http.request_metrics import RequestMetrics
from penstock.http.route import Route
from penstock.http.route_table import all_routes
from tests.http.harness import bearer, client_at, listening, serving

TOKENS: dict[str, Role] = {f"{role}-secret": role for role in ROLES}
USERS: dict[str, tuple[str, Role]] = {"ann": ("pass:word", "viewer"), "bob": ("password", "admin")}
PROBES = {"/livez", "/readyz"}


@pytest.fixture
def routes(app: Penstock) -> list[Route]:
    return all_routes(app.program, RequestMetrics())


def path_of(path: str) -> str:
    return path.replace("{id}", "nothing").replace("{name}", "nothing")


async def ask(client: httpx.AsyncClient, route: Route, headers: dict[str, str]) -> httpx.Response:
    """Ask, and wait for no more than the head of the answer: events never end."""
    async with client.stream(route.method, path_of(route.path), headers=headers) as response:
        return response


def basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


@pytest.mark.parametrize("role", [None, *ROLES])
async def test_each_role_may_what_the_table_says_and_nothing_else(
    app: Penstock, routes: list[Route], role: Role | None
) -> None:
    headers = bearer(f"{role}-secret") if role else {}
    async with serving(app, tokens=TOKENS) as client:
        for route in routes:
            response = await ask(client, route, headers)
            if route.role is None:
                assert response.status_code in {200, 503}, route
            elif role is None:
                assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer"), route
            elif ROLES.index(role) < ROLES.index(route.role):
                assert response.status_code == 403, route
            else:
                assert response.status_code not in {401, 403, 500}, route
    assert await app.client.views.counts() == {}


def test_a_viewer_can_change_nothing(routes: list[Route]) -> None:
    assert {route.path for route in routes if route.role is None} == PROBES
    assert [route for route in routes if route.writes and route.role not in {"operator", "admin"}] == []
    assert {"/metrics", "/openapi.json", "/", "/api/v1/events", "/api/v1/batches"} < {route.path for route in routes}


async def test_without_credentials_only_this_machine_may_ask(app: Penstock, routes: list[Route]) -> None:
    async with listening(app.asgi(), host="0.0.0.0") as port, client_at(port) as here:
        assert (await here.get("/api/v1/queues")).status_code == 200
        # A page whose name leads here asks as that name.
        assert (await here.get("/api/v1/queues", headers={"Host": "evil.example"})).status_code == 401
        for name in ("localhost:1", "[::1]:8000", "127.8.8.8", "x.localhost"):
            assert (await here.get("/api/v1/queues", headers={"Host": name})).status_code == 200
    outside = httpx.ASGITransport(app.asgi(), client=("192.0.2.7", 1234))
    async with httpx.AsyncClient(transport=outside, base_url="http://127.0.0.1") as there:
        for route in routes:
            response = await ask(there, route, {})
            assert (response.status_code == 401) == (route.path not in PROBES), route
        assert (await there.get("/nothing")).status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (bearer("admin-secret"), 200),
        ({"Authorization": "bearer admin-secret"}, 200),
        (bearer("admin-secre"), 401),
        (bearer("admin-secret x"), 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": "admin-secret"}, 401),
        ({"Authorization": "Basic !!!"}, 401),
        ({"Authorization": "Digest x"}, 401),
        (basic("ann", "pass:word"), 200),
        (basic("ann", "password"), 401),
        (basic("eve", "password"), 401),
        (basic("", ""), 401),
        ({"X-User": "root"}, 401),
        ({}, 401),
    ],
    ids=str,
)
async def test_credentials_are_right_or_refused(app: Penstock, headers: dict[str, str], status: int) -> None:
    async with serving(app, tokens=TOKENS, users=USERS) as client:
        response = await client.get("/api/v1/queues", headers=headers)
        assert response.status_code == status
        if status == 401:
            assert response.headers["www-authenticate"].startswith("Basic")
            assert "secret" not in response.text


async def test_a_proxy_that_is_trusted_names_the_user(app: Penstock, caplog: pytest.LogCaptureFixture) -> None:
    user = {"X-User": "carl"}
    async with serving(app, trust=Trust("X-User", "operator")) as client:
        assert (await client.get("/api/v1/queues", headers=user)).status_code == 200
        assert (await client.get("/api/v1/queues")).status_code == 401
        with caplog.at_level(logging.INFO, "penstock.audit"):
            assert (await client.post("/api/v1/jobs/x/cancel", headers=user)).status_code == 404
    (line,) = [record for record in caplog.records if record.name == "penstock.audit"]
    assert line.getMessage() == "carl: jobs cancel x, 404"
    async with serving(app, trust=Trust("X-User", proxies=["10.0.0.0/8"])) as client:
        assert (await client.get("/api/v1/queues", headers=user)).status_code == 401


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Origin": "https://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Sec-Fetch-Site": "cross-site", **bearer("admin-secret")}, True),
    ],
    ids=str,
)
async def test_other_sites_cannot_have_a_browser_change_anything(
    app: Penstock, headers: dict[str, str], allowed: bool
) -> None:
    async with serving(app, tokens=TOKENS, users=USERS) as client:
        sent = basic("bob", "password") | headers
        assert (await client.post("/api/v1/jobs/x/cancel", headers=sent)).status_code == (404 if allowed else 403)
        assert (await client.get("/api/v1/queues", headers=sent)).status_code == 200
        same = basic("bob", "password") | {"Origin": str(client.base_url).rstrip("/")}
        assert (await client.post("/api/v1/jobs/x/cancel", headers=same)).status_code == 404


async def test_every_change_is_in_the_audit_log_and_no_argument_is(
    app: Penstock, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(name="send")
    async def send(password: str) -> None: ...

    with caplog.at_level(logging.INFO):
        async with serving(app, users=USERS) as client:
            sent = basic("bob", "password")
            job = {"task": "send", "args": ["hunter2"], "id": "j"}
            await client.post("/api/v1/jobs", json=job, headers=sent)
            await client.post("/api/v1/jobs/j/cancel", headers=sent)
            await client.get("/api/v1/jobs/j", headers=sent)
            await client.patch("/api/v1/queues/default", json={"limit": 3}, headers=sent)
            await client.post("/api/v1/jobs", content=b"{", headers=sent | {"Content-Type": "application/json"})
    messages = [record.getMessage() for record in caplog.records if record.name == "penstock.audit"]
    assert messages == ["bob: jobs, 201", "bob: jobs cancel j, 200", "bob: queues patch default, 200", "bob: jobs, 400"]
    assert "hunter2" not in caplog.text


async def test_no_name_looks_like_another_line_of_the_audit_log(
    app: Penstock, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "penstock.audit"):
        await client.post("/api/v1/jobs/x%0Abob:%20jobs%20cancel%20y,%20200%1B%5B2J/cancel")
        await client.post(f"/api/v1/batches/{'x' * 1_000}/seal")
    first, second = [record.getMessage() for record in caplog.records if record.name == "penstock.audit"]
    assert first == "this machine: jobs cancel x\\x0abob: jobs cancel y, 200\\x1b[2J, 404"
    assert len(second) < 400


@pytest.mark.parametrize(
    "credentials",
    [
        {"tokens": {"short": "admin"}},
        {"tokens": {"long enough": "owner"}},
        {"users": {"a:b": ("long enough", "admin")}},
        {"users": {"ann": ("short", "admin")}},
    ],
    ids=str,
)
def test_poor_credentials_are_refused_at_the_start(app: Penstock, credentials: Any) -> None:
    with pytest.raises(BadOption):
        app.asgi(**credentials)
    with pytest.raises(BadOption):
        Trust("X-User", proxies=["everywhere"])


async def test_the_environment_gives_credentials(app: Penstock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HTTP_TOKENS", "viewer:look-only, all-and-everything")
    monkeypatch.setenv("PENSTOCK_HTTP_USERS", "ann:pass:word:operator")
    async with serving(app) as client:
        for headers, status in (
            (bearer("look-only"), 403),
            (bearer("all-and-everything"), 404),
            (basic("ann", "pass:word"), 404),
            ({}, 401),
        ):
            assert (await client.post("/api/v1/jobs/x/cancel", headers=headers)).status_code == status


async def test_the_service_can_be_mounted_under_any_path(app: Penstock) -> None:
    @app.task(name="send")
    async def send() -> None: ...

    outer = Starlette(routes=[Mount("/deep/er", app.asgi())])
    async with listening(outer) as port, client_at(port) as client:
        body = await client.post("/deep/er/api/v1/jobs", json={"task": "send", "id": "a/b"})
        assert body.headers["location"] == "/deep/er/api/v1/jobs/a%2Fb"
        assert (await client.get(body.headers["location"])).json()["state"] == "ready"
        assert (await client.get("/deep/er/livez")).text == "alive\n"
        assert (await client.get("/deep/er/nothing")).status_code == 404
