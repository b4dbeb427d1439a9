"""Who may do what: a matrix of principals and routes, credentials of every kind, and pages of other sites."""

import base64
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from penstock import BadOption, Penstock, Principal
from penstock.http import Trust
from penstock.http.access import Access
from penstock.http.credentials import parse_tokens, parse_trust, parse_users
from penstock.http.principal import ROLES, Role
from penstock.http.request_metrics import RequestMetrics
from penstock.http.route import Route
from penstock.http.route_table import all_routes
from penstock.http.tokens import token_digest
from tests.http.harness import bearer, client_at, listening, open_service, serving

TOKENS: dict[str, Role | Principal] = {f"{role}-secret": role for role in ROLES}
USERS: dict[str, tuple[str, Role | Principal]] = {"ann": ("pass:word", "viewer"), "bob": ("password", "admin")}
PROBES = {"/livez", "/readyz"}
#: Each has the token NAME-secret.
PRINCIPALS = {
    "viewer": Principal("viewer", "viewer"),
    "reader": Principal("reader", "viewer", contents=True),
    "enqueuer": Principal("enqueuer", "enqueuer"),
    "operator": Principal("operator", "operator"),
    "blind": Principal("blind", "operator", contents=False),
    "admin": Principal("admin", "admin"),
    "mailer": Principal("mailer", "operator", queues=["mail.*"]),
    "sender": Principal("sender", "admin", tasks=["send"]),
    "poster": Principal("poster", "enqueuer", queues=["mail.*"], tasks=["send"]),
}
LADDER = ("viewer", "operator", "admin")


@pytest.fixture
def routes(app: Penstock) -> list[Route]:
    return all_routes(app.program, Access(), RequestMetrics())


def path_of(path: str) -> str:
    """A path of this kind that leads to nothing, but to nothing that a scope of these principals forbids."""
    return path.replace("{id}", "nothing").replace("{name}", "mail.nothing")


async def ask(client: httpx.AsyncClient, route: Route, headers: dict[str, str]) -> httpx.Response:
    """Ask, and wait for no more than the head of the answer, for events never end; a problem is read as a whole."""
    async with client.stream(route.method, path_of(route.path), headers=headers) as response:
        if response.status_code >= 400:
            await response.aread()
        return response


def basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def missing(route: Route, principal: Principal) -> str:
    """What the 403 has to say, by the table; nothing if the principal may use the route."""
    assert route.role is not None
    is_high_enough = principal.role in LADDER and LADDER.index(principal.role) >= LADDER.index(route.role)
    if not is_high_enough and not (route.enqueuer and principal.role == "enqueuer"):
        return f"this needs the role {route.role}"
    reads = principal.role in {"operator", "admin"} if principal.contents is None else principal.contents
    if route.contents and not reads:
        return "the right to read contents"
    is_bound = (tuple(principal.queues), tuple(principal.tasks)) != (("*",), ("*",))
    if route.whole_app and is_bound:
        return "this concerns the whole app"
    if route.whole_queue and tuple(principal.tasks) != ("*",):
        return "this concerns all tasks of a queue"
    return ""


@pytest.mark.parametrize("name", PRINCIPALS)
async def test_each_principal_may_what_the_table_says_and_nothing_else(
    app: Penstock, routes: list[Route], name: str
) -> None:
    principal = PRINCIPALS[name]
    async with serving(app, tokens={f"{key}-secret": value for key, value in PRINCIPALS.items()}) as client:
        for route in routes:
            response = await ask(client, route, bearer(f"{name}-secret"))
            assert response.headers["x-content-type-options"] == "nosniff", route
            if route.role is None:
                assert response.status_code in {200, 204, 415}, route
            elif text := missing(route, principal):
                assert response.status_code == 403, route
                assert text in response.json()["detail"], route
            else:
                assert response.status_code not in {401, 403, 500}, (route, response.text)
    assert await app.client.views.counts() == {}


async def test_without_right_and_unexpired_credentials_no_route_answers_but_probes_and_the_session(
    app: Penstock, routes: list[Route], tmp_path: Path
) -> None:
    sha256 = token_digest("expired-secret").hex()
    file = tmp_path / "tokens.toml"
    file.write_text(f'[tokens.old]\nsha256 = "{sha256}"\nrole = "admin"\nexpires = 2020-01-01T00:00:00Z\n')
    cases: tuple[tuple[dict[str, str], str], ...] = (
        ({}, "give a token"),
        (bearer("wrong-secret"), "are wrong"),
        (bearer("expired-secret"), "has expired"),
    )
    async with serving(app, token_file=file) as client:
        for route in routes:
            for headers, text in cases:
                response = await ask(client, route, headers)
                if route.role is None:
                    assert response.status_code in {200, 204, 415}, route
                else:
                    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer"), route
                    assert text in response.json()["detail"]
        assert (await client.get("/no/such/path")).status_code == 401
        assert (await client.put("/api/v1/jobs")).status_code == 401


def test_a_viewer_can_change_nothing(routes: list[Route]) -> None:
    assert {route.path for route in routes if route.role is None} == PROBES | {"/api/v1/session"}
    changing = [route for route in routes if route.writes and route.path != "/api/v1/session"]
    assert [route for route in changing if route.role not in {"operator", "admin"}] == []
    assert {"/metrics", "/openapi.json", "/", "/api/v1/events", "/api/v1/batches"} < {route.path for route in routes}


def test_an_enqueuer_stores_jobs_and_batches_and_reads_one_job(routes: list[Route]) -> None:
    assert {(route.method, route.path) for route in routes if route.enqueuer} == {
        ("POST", "/api/v1/jobs"),
        ("GET", "/api/v1/jobs/{id}"),
        ("POST", "/api/v1/batches"),
        ("POST", "/api/v1/batches/{id}/jobs"),
        ("POST", "/api/v1/batches/{id}/seal"),
        ("GET", "/api/v1/me"),
    }


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
        (basic("admin-secret", ""), 401),
        ({"X-User": "root"}, 401),
        ({}, 401),
    ],
    ids=str,
)
async def test_credentials_are_right_or_refused(app: Penstock, headers: dict[str, str], status: int) -> None:
    async with serving(app, tokens=TOKENS, users=USERS) as client:
        response = await client.get("/api/v1/queues", headers=headers)
        assert response.status_code == status
        assert (await client.get("/api/v1/queues?token=admin-secret")).status_code in {401, 422}
        if status == 401:
            assert response.headers["www-authenticate"].startswith("Basic")
            assert "secret" not in response.text


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


# The header of a proxy


async def test_a_proxy_that_is_trusted_names_the_user(app: Penstock, caplog: pytest.LogCaptureFixture) -> None:
    user = {"X-User": "carl"}
    async with serving(app, trust=Trust("X-User", "operator", ["127.0.0.1"])) as client:
        assert (await client.get("/api/v1/queues", headers=user)).status_code == 200
        assert (await client.get("/api/v1/queues")).status_code == 401
        with caplog.at_level(logging.INFO, "penstock.audit"):
            assert (await client.post("/api/v1/jobs/x/cancel", headers=user)).status_code == 404
    lines = [record.getMessage() for record in caplog.records if record.name == "penstock.audit"]
    assert lines[-1] == "carl: jobs cancel x, 404"
    async with serving(app, trust=Trust("X-User", proxies=["10.0.0.0/8"])) as client:
        assert (await client.get("/api/v1/queues", headers=user)).status_code == 401


async def test_a_header_that_came_twice_is_refused(app: Penstock) -> None:
    async with serving(app, trust=Trust("X-User", "admin", ["127.0.0.1"])) as client:
        twice = [("X-User", "eve"), ("X-User", "carl")]
        response = await client.get("/api/v1/queues", headers=twice)
        assert (response.status_code, "came 2 times" in response.json()["detail"]) == (403, True)


async def test_a_proxy_is_believed_only_under_expected_host_names(app: Penstock) -> None:
    user = {"X-User": "carl"}
    async with serving(app, trust=Trust("X-User", proxies=["127.0.0.1"], hosts=["Jobs.Example.com"])) as client:
        for host, status in (
            ("jobs.example.com", 200),
            ("jobs.example.com:8443", 200),
            ("localhost:1", 200),
            ("10.1.2.3", 200),
            ("[::1]:8000", 200),
            ("evil.example", 403),
            ("jobs.example.com.evil.example", 403),
        ):
            response = await client.get("/api/v1/queues", headers=user | {"Host": host})
            assert response.status_code == status, host


async def test_users_of_a_proxy_may_have_a_scope(app: Penstock) -> None:
    trust = Trust("X-User", Principal("users", "operator", queues=["mail"]), ["127.0.0.1"])
    async with serving(app, trust=trust) as client:
        me = (await client.get("/api/v1/me", headers={"X-User": "carl"})).json()
        assert (me["name"], me["role"], me["queues"]) == ("carl", "operator", ["mail"])
        assert (await client.get("/api/v1/lanes", headers={"X-User": "carl"})).status_code == 403


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("X-User",), "name the proxies that are believed by their addresses"),
        (("X-User", "operator", ["everywhere"]), "everywhere"),
        (("X-User", "operator", ["0.0.0.0/0"]), "is everybody"),
        (("X-User", "operator", ["::/0"]), "is everybody"),
        (("X-User", "owner", ["127.0.0.1"]), "valid are admin, enqueuer, operator, viewer"),
        (("X User", "viewer", ["127.0.0.1"]), "use the name of a header"),
        (("X-User", "viewer", ["127.0.0.1"], ["https://a.example"]), "without a port"),
    ],
)
def test_a_trusted_header_without_named_proxies_is_refused(arguments: Any, text: str) -> None:
    with pytest.raises(BadOption, match=text):
        Trust(*arguments)


# A login of the program


async def test_a_login_of_the_program_says_who_asks(app: Penstock) -> None:
    async def login(request: Request) -> Principal | None:
        match request.cookies.get("site"):
            case "ann":
                return Principal("ann", "viewer")
            case "odd":
                return "admin"  # type: ignore[return-value]
        return None

    async with serving(app, access=login) as client:
        assert (await client.get("/api/v1/queues")).status_code == 401
        assert (await client.get("/api/v1/queues", headers=bearer("a-wrong-one"))).status_code == 401
        me = await client.get("/api/v1/me", headers={"Cookie": "site=ann"})
        assert (me.json()["name"], me.json()["role"]) == ("ann", "viewer")
        assert (await client.get("/api/v1/me", headers={"Cookie": "site=odd"})).status_code == 500
        refused = await client.post("/api/v1/queues/x/pause", headers={"Cookie": "site=ann"})
        assert "needs the role operator" in refused.json()["detail"]


async def test_a_login_of_the_program_stands_beside_tokens(app: Penstock) -> None:
    async def login(request: Request) -> Principal | None:
        return Principal("carl", "viewer") if request.headers.get("authorization") == "Bearer of-the-site" else None

    async with serving(app, access=login, tokens=TOKENS) as client:
        for token, name in (("of-the-site", "carl"), ("admin-secret", "token ")):
            assert (await client.get("/api/v1/me", headers=bearer(token))).json()["name"].startswith(name)


async def test_a_change_with_a_cookie_is_json_from_the_same_site(app: Penstock) -> None:
    async def login(request: Request) -> Principal | None:
        return Principal("ann", "admin") if request.cookies.get("site") == "ann" else None

    cookie = {"Cookie": "site=ann"}
    json = {"Content-Type": "application/json"}
    async with serving(app, access=login) as client:
        for headers, status in (
            ({}, 415),
            ({"Content-Type": "text/plain"}, 415),
            (json, 404),
            (json | {"Sec-Fetch-Site": "cross-site"}, 403),
            (json | {"Origin": "https://evil.example"}, 403),
        ):
            response = await client.post("/api/v1/jobs/x/cancel", headers=cookie | headers)
            assert response.status_code == status, headers


# The audit log


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
            many = [{"task": "send", "args": ["hunter2"], "id": f"j{number}"} for number in range(45)]
            await client.post("/api/v1/jobs", json=many, headers=sent)
    messages = [record.getMessage() for record in caplog.records if record.name == "penstock.audit"]
    assert messages[:4] == [
        "bob: jobs send j, 201",
        "bob: jobs cancel j, 200",
        "bob: queues patch default, 200",
        "bob: jobs, 400",
    ]
    assert len(messages) == 7
    assert all(f"send j{number}" in ", ".join(messages[4:]) for number in range(45))
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


# Credentials that are no good


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


@pytest.mark.parametrize("text", ["Viewer:hunter2-secret", "owner:hunter2-secret", ":hunter2-secret", "a:hunter2:b"])
def test_an_unknown_role_before_a_token_is_an_error_that_shows_no_secret(text: str) -> None:
    with pytest.raises(BadOption, match="one of viewer, enqueuer, operator, admin") as refused:
        parse_tokens([text])
    assert "hunter2" not in str(refused.value)


def test_a_token_may_have_a_colon_after_its_role() -> None:
    assert parse_tokens(["admin:a:b:c", "enqueuer:secret", "plain"]) == {
        "a:b:c": "admin",
        "secret": "enqueuer",
        "plain": "admin",
    }


@pytest.mark.parametrize("text", ["ann:hunter2", "ann:pass:hunter2", "ann::admin", "ann", "ann:hunter2:Admin"])
def test_a_user_without_a_known_role_is_an_error_that_shows_no_secret(text: str) -> None:
    with pytest.raises(BadOption, match="name:password:role") as refused:
        parse_users([text])
    assert "hunter2" not in str(refused.value)
    assert parse_trust("", []) is None


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"role": "owner"}, "valid are"),
        ({"name": ""}, "printable"),
        ({"name": "a\nb"}, "printable"),
        ({"queues": "mail"}, "use a list of names"),
        ({"queues": []}, "leave it out for all"),
        ({"tasks": [""]}, "is no name"),
        ({"most_urgent": 100}, "from 0 to 99"),
        ({"max_retries": -1}, "from 0 to 10,000"),
        ({"max_timeout": "soon"}, "max_timeout"),
        ({"contents": "yes"}, "use true, false or nothing"),
    ],
    ids=str,
)
def test_a_principal_with_a_bad_value_is_refused(fields: Any, text: str) -> None:
    with pytest.raises(BadOption, match=text):
        Principal(**({"name": "ann", "role": "viewer"} | fields))


async def test_the_environment_gives_credentials(
    app: Penstock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(f'[tokens.file]\nsha256 = "{token_digest("of-the-file").hex()}"\nrole = "operator"\n')
    monkeypatch.setenv("PENSTOCK_HTTP_TOKENS", "viewer:look-only, all-and-everything")
    monkeypatch.setenv("PENSTOCK_HTTP_USERS", "ann:pass:word:operator")
    monkeypatch.setenv("PENSTOCK_HTTP_TOKEN_FILE", str(file))
    monkeypatch.setenv("PENSTOCK_HTTP_TRUST", "X-User:operator")
    monkeypatch.setenv("PENSTOCK_HTTP_PROXIES", "127.0.0.1")
    monkeypatch.setenv("PENSTOCK_HTTP_ALLOWED_HOSTS", "jobs.example.com")
    async with listening(app.asgi()) as port, client_at(port) as client:
        for headers, status in (
            (bearer("look-only"), 403),
            (bearer("all-and-everything"), 404),
            (bearer("of-the-file"), 404),
            (basic("ann", "pass:word"), 404),
            ({"X-User": "carl", "Host": "jobs.example.com"}, 404),
            ({"X-User": "carl", "Host": "other.example.com"}, 403),
            ({}, 401),
        ):
            assert (await client.post("/api/v1/jobs/x/cancel", headers=headers)).status_code == status


async def test_the_service_can_be_mounted_under_any_path(app: Penstock) -> None:
    @app.task(name="send")
    async def send() -> None: ...

    outer = Starlette(routes=[Mount("/deep/er", open_service(app))])
    async with listening(outer) as port, client_at(port) as client:
        body = await client.post("/deep/er/api/v1/jobs", json={"task": "send", "id": "a/b"})
        assert body.headers["location"] == "/deep/er/api/v1/jobs/a%2Fb"
        assert (await client.get(body.headers["location"])).json()["state"] == "ready"
        assert (await client.get("/deep/er/livez")).text == "alive\n"
        assert (await client.get("/deep/er/nothing")).status_code == 404
