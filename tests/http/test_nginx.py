"""A real nginx in front of the service: without credentials, with a token, and with a header that it sets.

nginx comes from the system's package, which these tests install where they may. It runs with a configuration of its
own, on loopback, and is ended by its process id.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import namespace
from tests.http.harness import bearer
from tests.http.processes import serve
from tests.servers import Server, free_port, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
QUEUES, PURGE, JOBS = "/api/v1/queues", "/api/v1/queues/sums/purge", "/api/v1/jobs"
JOB = {"task": "add", "args": [1]}
#: As people have it who follow the first page that they find; and with what proxies usually tell.
PLAIN = ""
TELLING = "proxy_set_header Host $host; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;"
MODERN = "proxy_http_version 1.1; proxy_set_header X-Real-IP $remote_addr;"
#: What it takes to name the user: what clients send is replaced.
NAMING = 'proxy_http_version 1.1; proxy_set_header X-Remote-User "carl"; proxy_set_header Host $host;'
FORWARDING = "proxy_http_version 1.1; proxy_set_header Host $host;"
CONFIG = """
daemon off; master_process off; error_log {folder}/error.log; pid {folder}/nginx.pid;
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {target}; {more} }} }}
}}
"""


@pytest.fixture(scope="session")
def nginx() -> str:
    """The program; installed if it is missing and we may. The service that the package starts is stopped."""
    if (found := shutil.which("nginx")) is None:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            pytest.skip("needs nginx: apt-get install nginx")
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}  # it starts no service then
        wait = ["-o", "DPkg::Lock::Timeout=120"]  # another process of these tests may install it at the same time
        install = ["apt-get", "install", *wait, "-y", "--no-install-recommends", "nginx"]
        if subprocess.run(install, env=environment, capture_output=True, check=False, timeout=250).returncode != 0:
            pytest.skip("nginx could not be installed")
        subprocess.run(["service", "nginx", "stop"], capture_output=True, check=False, timeout=60)
        found = shutil.which("nginx")
    assert found is not None
    return found


@contextlib.contextmanager
def proxy(nginx: str, folder: Path, target: str, more: str) -> Iterator[str]:
    """An nginx of our own before this service; its address."""
    port = free_port()
    place = folder / f"nginx-{port}"
    place.mkdir()
    file = place / "nginx.conf"
    file.write_text(CONFIG.format(folder=place, port=port, target=target, more=more))
    process = subprocess.Popen([nginx, "-c", str(file), "-e", str(place / "error.log")], stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: answers(f"http://127.0.0.1:{port}/livez"), timeout=30)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=30)


def answers(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url).status_code == 200
    return False


@pytest.mark.parametrize("more", [PLAIN, TELLING, MODERN], ids=["plain", "telling", "modern"])
def test_nobody_gets_in_through_a_proxy_before_an_open_service(
    nginx: str, tmp_path: Path, single: Server, more: str
) -> None:
    with (
        serve(tmp_path, single.url, namespace(), "tasks:app", "--open") as process,
        proxy(nginx, tmp_path, process.url, more) as url,
    ):
        assert httpx.post(f"{process.url}{JOBS}", json=JOB).status_code == 201
        for method, path in (("GET", QUEUES), ("GET", "/"), ("POST", PURGE), ("POST", JOBS)):
            response = httpx.request(method, f"{url}{path}", json=JOB if method == "POST" else None)
            assert response.status_code == 403, response.text
            assert "a proxy seems to have sent this" in response.json()["detail"]
        assert httpx.get(f"{process.url}{QUEUES}/sums").json()["counts"]["ready"] == 1


@pytest.mark.parametrize("more", [PLAIN, TELLING, MODERN], ids=["plain", "telling", "modern"])
def test_a_service_without_credentials_asks_for_its_token_through_a_proxy_too(
    nginx: str, tmp_path: Path, single: Server, more: str
) -> None:
    token = {"PENSTOCK_TOKEN": "always-the-same"}
    with (
        serve(tmp_path, single.url, namespace(), "tasks:app", **token) as process,
        proxy(nginx, tmp_path, process.url, more) as url,
    ):
        for method, path in (("GET", QUEUES), ("GET", "/"), ("POST", PURGE), ("POST", JOBS)):
            assert httpx.request(method, f"{url}{path}").status_code == 401
        assert httpx.post(f"{url}{JOBS}", json=JOB, headers=bearer("always-the-same")).status_code == 201
        with httpx.Client(base_url=url, follow_redirects=True) as browser:
            assert browser.get("/?token=always-the-same").status_code == 200
            assert browser.get("/api/v1/me").json()["role"] == "admin"


@pytest.mark.parametrize("more", [PLAIN, TELLING, MODERN], ids=["plain", "telling", "modern"])
def test_a_token_has_its_role_through_a_proxy(nginx: str, tmp_path: Path, single: Server, more: str) -> None:
    secrets = {"PENSTOCK_HTTP_TOKENS": "admin:of-an-admin,viewer:of-a-viewer", "PENSTOCK_HTTP_PROXIES": "127.0.0.1"}
    with (
        serve(tmp_path, single.url, namespace(), "tasks:app", **secrets) as process,
        proxy(nginx, tmp_path, process.url, more) as url,
    ):
        assert httpx.post(f"{url}{JOBS}", json=JOB, headers=bearer("of-an-admin")).status_code == 201
        for headers, read, purge in (
            ({}, 401, 401),
            (bearer("of-nobody"), 401, 401),
            ({"X-Remote-User": "root"}, 401, 401),
            (bearer("of-a-viewer"), 200, 403),
            (bearer("of-an-admin"), 200, 200),
        ):
            assert httpx.get(f"{url}{QUEUES}", headers=headers).status_code == read
            assert httpx.post(f"{url}{PURGE}", headers=headers).status_code == purge
        if more != PLAIN:
            return
        large = httpx.post(f"{url}{JOBS}", content=b" " * 900_000, headers=bearer("of-nobody"))
        assert large.status_code == 401


def test_the_user_is_whom_the_proxy_names_and_nobody_whom_clients_name(
    nginx: str, tmp_path: Path, single: Server
) -> None:
    trust = ("--trust-header", "X-Remote-User:viewer", "--proxy", "127.0.0.1", "--allowed-host", "jobs.example.com")
    host, eve = {"Host": "jobs.example.com"}, {"X-Remote-User": "eve"}
    with serve(tmp_path, single.url, namespace(), "tasks:app", *trust) as process:
        with proxy(nginx, tmp_path, process.url, NAMING) as url:
            for headers in (host, host | eve):
                me = httpx.get(f"{url}/api/v1/me", headers=headers)
                assert (me.status_code, me.json()["name"], me.json()["role"]) == (200, "carl", "viewer")
                assert httpx.post(f"{url}{PURGE}", headers=headers).status_code == 403
            other = httpx.get(f"{url}/api/v1/me", headers={"Host": "evil.example"})
            assert (other.status_code, "host name is not expected" in other.json()["detail"]) == (403, True)
            twice = httpx.get(f"{process.url}/api/v1/me", headers=[("X-Remote-User", "a"), ("X-Remote-User", "b")])
            assert twice.status_code == 403
        with proxy(nginx, tmp_path, process.url, FORWARDING) as url:  # it names nobody
            assert httpx.get(f"{url}/api/v1/me", headers=host).status_code == 401
