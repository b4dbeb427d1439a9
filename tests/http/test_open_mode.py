"""Without credentials: a link with a token, `app.asgi()` that changes nothing, and `--open`, which asks for nothing."""

import re
from pathlib import Path

import httpx
import pytest

from penstock import Penstock
from penstock.http.access import Access, access_by_link
from penstock.http.request_metrics import RequestMetrics
from penstock.http.route_table import all_routes, make_service
from penstock.http.this_machine import OPEN
from tests.conftest import namespace
from tests.http.harness import bearer, client_at, listening, serving
from tests.http.processes import serve
from tests.http.test_access import PROBES, ask
from tests.servers import Server, wait_for

#: What a reverse proxy on this machine adds to a request.
OF_PROXIES = [
    {"Forwarded": "for=192.0.2.60"},
    {"X-Forwarded-For": "192.0.2.60"},
    {"X-Forwarded-Host": "jobs.example.com"},
    {"X-Forwarded-Proto": "https"},
    {"X-Real-IP": "192.0.2.60"},
    {"Via": "1.1 proxy"},
]


# The link


async def test_the_link_leads_to_a_session_and_its_token_leaves_the_address(app: Penstock) -> None:
    service = make_service(app.program, access_by_link("random-token"))
    async with listening(service) as port, client_at(port) as client:
        assert (await client.get("/")).status_code == 401
        assert (await client.get("/?token=another-token")).status_code == 401
        opened = await client.get("/?token=random-token")
        assert (opened.status_code, opened.headers["location"]) == (303, "/")
        cookie = opened.headers["set-cookie"]
        assert "; HttpOnly; SameSite=Strict" in cookie
        assert "; Path=/; " in cookie
        assert "random-token" not in cookie
        page = await client.get("/")  # with the cookie
        assert (page.status_code, "random-token" in page.text) == (200, False)
        change = await client.post("/api/v1/dead/retry", json={})
        assert change.status_code == 200


async def test_with_a_link_nothing_is_answered_without_its_token_but_probes(app: Penstock) -> None:
    access = access_by_link("random-token")
    async with listening(make_service(app.program, access)) as port, client_at(port) as client:
        for route in all_routes(app.program, access, RequestMetrics()):
            response = await ask(client, route, {})
            if route.role is not None:
                assert response.status_code == 401, route
                assert "open the link that was printed at the start" in response.json()["detail"]
        assert (await client.get("/api/v1/queues", headers=bearer("random-token"))).status_code == 200
        assert (await client.get("/api/v1/queues?token=random-token")).status_code == 422  # only `/` takes it


async def test_the_token_of_a_link_is_for_that_service_alone(app: Penstock) -> None:
    first, second = (make_service(app.program, access_by_link("random-token")) for _ in range(2))
    async with listening(first) as port, client_at(port) as client, listening(second) as other:
        cookie = (await client.get("/?token=random-token")).headers["set-cookie"].partition(";")[0]
        value = cookie.partition("=")[2]
        for port_of, status in ((port, 200), (other, 401)):
            headers = {"Cookie": f"penstock-{port_of}={value}"}
            async with httpx.AsyncClient() as plain:
                response = await plain.get(f"http://127.0.0.1:{port_of}/", headers=headers)
            assert response.status_code == status


# app.asgi() without credentials


async def test_without_credentials_asgi_lets_this_machine_look_and_change_nothing(app: Penstock) -> None:
    async with listening(app.asgi(), host="0.0.0.0") as port, client_at(port) as here:
        for route in all_routes(app.program, Access(), RequestMetrics()):
            response = await ask(here, route, {})
            if route.role in {"operator", "admin"} or route.contents:
                assert response.status_code == 403, route
                assert "give app.asgi() tokens=" in response.json()["detail"]
            elif route.role is not None:
                assert response.status_code in {200, 404}, route
        me = (await here.get("/api/v1/me")).json()
        assert (me["role"], me["contents"], me["limits"]) == ("viewer", False, False)


# Both: who is this machine


@pytest.mark.parametrize("is_open", [True, False])
async def test_without_credentials_only_this_machine_may_ask_under_its_own_name(app: Penstock, is_open: bool) -> None:
    service = make_service(app.program, Access(this_machine=OPEN)) if is_open else app.asgi()
    async with listening(service, host="0.0.0.0") as port, client_at(port) as here:
        assert (await here.get("/api/v1/queues")).status_code == 200
        # A page whose name leads here asks as that name.
        assert (await here.get("/api/v1/queues", headers={"Host": "evil.example"})).status_code == 403
        for name in ("localhost:1", "[::1]:8000", "127.8.8.8", "x.localhost"):
            assert (await here.get("/api/v1/queues", headers={"Host": name})).status_code == 200
    outside = httpx.ASGITransport(service, client=("192.0.2.7", 1234))
    async with httpx.AsyncClient(transport=outside, base_url="http://127.0.0.1") as there:
        for route in all_routes(app.program, Access(), RequestMetrics()):
            response = await ask(there, route, {})
            assert (response.status_code == 403) == (route.role is not None), route
        assert (await there.get("/nothing")).status_code == 403


@pytest.mark.parametrize("headers", OF_PROXIES, ids=str)
@pytest.mark.parametrize("is_open", [True, False])
async def test_without_credentials_what_came_through_a_proxy_is_refused(
    app: Penstock, is_open: bool, headers: dict[str, str]
) -> None:
    service = make_service(app.program, Access(this_machine=OPEN)) if is_open else app.asgi()
    async with listening(service) as port, client_at(port) as client:
        response = await client.get("/api/v1/queues", headers=headers)
        assert response.status_code == 403
        assert f"the header {next(iter(headers)).lower()}: a proxy seems to" in response.json()["detail"]
        for path in PROBES:
            assert (await client.get(path, headers=headers)).status_code == 200


async def test_with_credentials_what_came_through_a_proxy_is_answered(app: Penstock) -> None:
    async with serving(app, tokens={"look-at-it": "viewer"}) as client:
        for headers in OF_PROXIES:
            assert (await client.get("/api/v1/queues", headers=headers | bearer("look-at-it"))).status_code == 200


# The command


def test_serve_prints_a_link_that_opens_and_a_curl_line_that_works(tmp_path: Path, single: Server) -> None:
    with serve(tmp_path, single.url, namespace(), "tasks:app") as process:
        link = wait_for(lambda: re.search(r"open  (http://\S+/\?token=(\S+))", process.output), timeout=30)
        header, url = wait_for(
            lambda: re.search(r"curl  -H '(Authorization: Bearer \S+)' (\S+)\n", process.output), timeout=30
        ).groups()
        assert httpx.get(url).status_code == 401
        assert httpx.get(url, headers=dict([header.split(": ")])).status_code == 200
        with httpx.Client(follow_redirects=True) as browser:
            page = browser.get(link[1])
            assert (page.status_code, page.url.query) == (200, b"")
            assert browser.get(f"{process.url}/api/v1/me").json()["role"] == "admin"
        assert process.output.count(link[2]) == 2  # in the link, and in the line for curl
        assert "\x1b" not in process.output


def test_penstock_token_is_the_token_of_the_link(tmp_path: Path, single: Server) -> None:
    given = {"PENSTOCK_TOKEN": "always-the-same"}
    with serve(tmp_path, single.url, namespace(), "tasks:app", "-v", **given) as process:
        wait_for(lambda: "/?token=always-the-same" in process.output, timeout=30)
        assert httpx.get(f"{process.url}/api/v1/me", headers=bearer("always-the-same")).status_code == 200
        before = process.output.count("always-the-same")
        assert httpx.get(f"{process.url}/?token=always-the-same").status_code == 303
        wait_for(lambda: "token=***" in process.output, timeout=30)  # in the line for this request
        assert process.output.count("always-the-same") == before


def test_open_asks_for_nothing_and_says_what_that_means(tmp_path: Path, single: Server) -> None:
    with serve(tmp_path, single.url, namespace(), "tasks:app", "--open") as process:
        made = httpx.post(f"{process.url}/api/v1/jobs", json={"task": "add", "args": [1]})
        assert made.status_code == 201
        assert "may read, change and delete everything" in process.output
        refused = httpx.get(f"{process.url}/api/v1/queues", headers={"X-Forwarded-For": "192.0.2.7"})
        assert refused.status_code == 403


@pytest.mark.parametrize("more", [["--host", "0.0.0.0"], ["--token", "admin:long-enough"]])
def test_open_goes_neither_with_other_hosts_nor_with_credentials(
    tmp_path: Path, single: Server, more: list[str]
) -> None:
    with serve(tmp_path, single.url, namespace(), "tasks:app", "--open", *more) as process:
        assert process.process.wait(timeout=30) == 2
        assert "Error: --" in process.output
