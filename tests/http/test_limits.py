"""Limits of requests: too large, too deep, too slow, malformed."""

import asyncio
import contextlib
import functools
import http.client
import resource
from typing import Any

import httpx
import pytest

from penstock import Penstock
from penstock.http import body as body_module
from penstock.http import connections
from penstock.http.connections import Connections, Room, ServiceProtocol
from tests.http.harness import bearer, client_at, listening, open_service, serving

JOBS = "/api/v1/jobs"
JSON = {"Content-Type": "application/json"}
MIB = 2**20
_HEAD = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(autouse=True)
def tasks(app: Penstock) -> None:
    @app.task(name="echo")
    async def echo(value: Any = None) -> Any:
        return value


def bounded(room: Room = Room()) -> Any:  # noqa: B008  (frozen)
    """The protocol of `penstock serve`."""
    return functools.partial(ServiceProtocol, connections=Connections(room))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b'{"task": "\xed\xa0\x80"}', 400),
        (b"[" * 100_000 + b"]" * 100_000, 400),
        (b'{"task": "echo", "args": [' + b"[" * 100_000 + b"]" * 100_000 + b"]}", 400),
        (b'{"task": "echo", "args": [' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"]}", 400),
        (b'{"task": "echo", "args": ["' + b"x" * MIB + b'"]}', 413),
        (b" " * (MIB + 1), 413),
        (b"[" + b"1," * 400_000 + b"1]", 413),
        (b"[" + b"1," * 1_000_000 + b"1]", 413),
        (b'{"task": "echo", "args": [1e999999]}', 422),
        (b"1", 422),
        (b"null", 422),
        (b'{"task": "' + b"x" * 100_000 + b'"}', 422),
    ],
    ids=lambda value: repr(value)[:30],
)
async def test_a_body_that_is_too_much_or_no_json_is_refused(
    client: httpx.AsyncClient, app: Penstock, body: bytes, status: int
) -> None:
    response = await client.post(JOBS, content=body, headers=JSON)
    assert response.status_code == status, response.text[:300]
    assert response.headers["content-type"] == "application/problem+json"
    assert len(response.content) < 2_000
    assert await app.client.views.counts() == {}


async def test_a_body_without_a_length_is_counted_as_it_comes(client: httpx.AsyncClient) -> None:
    sent = 0

    async def endless() -> Any:
        nonlocal sent
        while sent < 100 * MIB:
            sent += 65_536
            yield b" " * 65_536

    try:
        response = await client.post(JOBS, content=endless(), headers=JSON)
        assert response.status_code == 413
    except httpx.TransportError:  # it was cut off while it sent on
        pass
    assert sent < 20 * MIB


@pytest.mark.parametrize("size", [2 * MIB, 5 * MIB, 7 * MIB])
@pytest.mark.parametrize("has_length", [True, False])
async def test_a_client_that_sends_all_of_a_large_body_can_read_why_it_was_refused(
    app: Penstock, size: int, has_length: bool
) -> None:
    """As ordinary clients do it: they write all of it, and read then."""

    def post(port: int, token: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        headers = JSON | bearer(token)
        body = b" " * size if has_length else iter([b" " * 65_536] * (size // 65_536))
        connection.request("POST", JOBS, body, headers, encode_chunked=not has_length)
        response = connection.getresponse()
        found = response.status, response.read()
        connection.close()
        return found

    async with listening(app.asgi(tokens={"of-an-admin": "admin", "of-a-viewer": "viewer"})) as port:
        for token, status in (("of-an-admin", 413), ("of-a-viewer", 403), ("of-nobody", 401)):
            code, text = await asyncio.to_thread(post, port, token)
            assert code == status
            assert b'"detail"' in text


async def test_a_client_that_asks_first_sends_no_body_that_is_refused(client: httpx.AsyncClient) -> None:
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    head = f"POST {JOBS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
    writer.write(f"{head}Content-Length: {2 * MIB}\r\n\r\n".encode())
    assert b"413 " in await asyncio.wait_for(reader.readline(), 5)
    writer.close()


async def test_every_answer_forbids_sniffing(client: httpx.AsyncClient) -> None:
    paths = ("/", "/livez", "/metrics", "/openapi.json", "/api/v1/queues", "/no/such/path", "/api/v1/jobs/nothing")
    for path in paths:
        assert (await client.get(path)).headers["x-content-type-options"] == "nosniff"
    async with client.stream("GET", "/api/v1/events") as response:
        assert response.headers["x-content-type-options"] == "nosniff"


async def test_what_is_no_json_by_its_type_is_refused(client: httpx.AsyncClient) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = await client.post(JOBS, content=b'{"task": "echo"}', headers={"Content-Type": kind})
        assert response.status_code == 415


async def test_a_slow_client_is_told_so_and_keeps_nobody_waiting(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_module, "BODY_TIMEOUT", 0.3)
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    head = f"POST {JOBS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    writer.write(head.encode() + b"{")
    assert (await client.get("/api/v1/queues")).status_code == 200
    assert b"408 Request Timeout" in await asyncio.wait_for(reader.readline(), 10)
    writer.close()


async def test_a_head_that_does_not_come_is_not_waited_for(app: Penstock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STRANGER_TIMEOUT", 0.5)
    monkeypatch.setattr(connections, "HEAD_TIMEOUT", 0.5)
    async with listening(open_service(app), http=bounded()) as port:
        for whole, begun in ((b"", b""), (b"", _HEAD[:30]), (_HEAD, _HEAD[:5])):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(whole)
            assert not whole or (await reader.readuntil(b"alive\n")).count(b"200 OK")
            writer.write(begun)
            assert await asyncio.wait_for(reader.read(), 20) == b""  # it is closed
            writer.close()
        async with client_at(port) as client:  # who is kept alive may think, and wait for an answer
            job = (await client.post(JOBS, json={"task": "echo"})).json()
            for _ in range(2):
                await asyncio.sleep(0.7)
                assert (await client.get(f"{JOBS}/{job['id']}?wait=0.7")).json()["state"] == "ready"


async def test_a_head_that_is_too_large_is_refused(app: Penstock) -> None:
    async with listening(open_service(app), http=bounded(), h11_max_incomplete_event_size=65_536) as port:
        async with client_at(port) as client:
            assert (await client.get("/livez", headers={"X-Large": "x" * 60_000})).status_code == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /livez HTTP/1.1\r\nX-Large: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                writer.write(b"x" * 10_000)
                await writer.drain()
        with contextlib.suppress(ConnectionError):
            assert b" 400 " in await asyncio.wait_for(reader.readline(), 20)
        writer.close()


async def test_what_is_no_http_is_refused_like_all_else(app: Penstock) -> None:
    async with listening(open_service(app), http=bounded()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x16\x03\x01 this is TLS, perhaps\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 10)
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert b"X-Content-Type-Options: nosniff\r\n" in answer
        assert answer.endswith(b"Invalid HTTP request received.")
        writer.close()


async def test_memory_stays_flat_under_big_bodies(client: httpx.AsyncClient) -> None:
    big = b'{"task": "echo", "args": [' + b"1," * 400_000 + b"1]}"
    deep = b"[" * 500_000 + b"]" * 500_000
    await asyncio.gather(*(client.post(JOBS, content=body, headers=JSON) for body in (big, deep) * 5))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(10):
        await asyncio.gather(*(client.post(JOBS, content=body, headers=JSON) for body in (big, deep) * 5))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"\n{grown:.1f} MiB more after 100 bodies of 1 MB")
    assert grown < 64


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/api/v1", 404),
        ("GET", "/api/v1/", 404),
        ("GET", "//", 404),
        ("GET", "/api/v1/queues/", 404),
        ("GET", "/api/v1/queues/..%2f..", 404),
        ("GET", "/api/v1/queues/a%20b", 422),
        ("GET", "/api/v1/lanes/%00", 422),
        ("DELETE", "/api/v1/jobs", 405),
        ("PUT", "/api/v1/queues/x", 405),
        ("TRACE", "/livez", 405),
        ("GET", "/api/v1/queues?limit=0", 422),
        ("GET", "/api/v1/queues?limit=501", 422),
        ("GET", "/api/v1/queues?limti=5", 422),
        ("GET", "/api/v1/queues?limit=5&limit=6", 422),
        ("GET", "/api/v1/queues?cursor=%2A%2A", 422),
        ("GET", "/api/v1/jobs/x?wait=61", 422),
        ("GET", "/api/v1/jobs/x?wait=soon", 422),
        ("GET", "/api/v1/jobs/x?wait=nan", 422),
        ("GET", "/api/v1/lanes/x?kind=other", 422),
        ("GET", "/" + "x" * 5_000, 414),
    ],
)
async def test_odd_requests_get_a_problem(client: httpx.AsyncClient, method: str, path: str, status: int) -> None:
    response = await client.request(method, httpx.URL(f"{client.base_url}{path}"))
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == status
    if status == 405:
        assert response.headers["allow"]


async def test_a_head_is_a_get_without_its_body(client: httpx.AsyncClient) -> None:
    response = await client.head("/api/v1/queues")
    assert (response.status_code, response.content) == (200, b"")


async def test_a_server_that_is_gone_is_503_and_says_that_sending_again_is_safe(app: Penstock) -> None:
    lost = Penstock(app.name, url="redis://127.0.0.1:1", deadline="300ms")

    @lost.task(name="echo")
    async def echo() -> None: ...

    async with serving(lost) as client:
        assert (await client.get("/livez")).status_code == 200
        for method, path in (("GET", "/readyz"), ("GET", "/api/v1/queues"), ("POST", JOBS)):
            response = await client.request(method, path, json={"task": "echo"} if method == "POST" else None)
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    await lost.aclose()
