"""`/livez`, `/readyz` and `/metrics` of a worker: a few lines of HTTP, no framework."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress
from typing import Final

from penstock.metrics.prometheus import MEDIA
from penstock.model.hosts import is_expected_host

_REQUEST_TIMEOUT: Final = 5.0  #: seconds
_MAX_HEAD_BYTES: Final = 8192
Metrics = Callable[[], Awaitable[str]]  #: the text of `/metrics`


@asynccontextmanager
async def serve_health(
    host: str, port: int, ready: Callable[[], bool], metrics: Metrics, allowed_hosts: Collection[str] = ()
) -> AsyncIterator[None]:
    """Answer requests inside this block."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_REQUEST_TIMEOUT):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await _answer(head, ready, metrics, allowed_hosts))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, host, port, limit=_MAX_HEAD_BYTES)
    try:
        yield
    finally:
        server.close()


async def _answer(head: bytes, ready: Callable[[], bool], metrics: Metrics, allowed_hosts: Collection[str]) -> bytes:
    request, *headers = head.split(b"\r\n")
    method, path, *_ = [*request.split(b" "), b"", b""]
    path = path.partition(b"?")[0]
    if not all(is_expected_host(host, allowed_hosts) for host in _hosts(headers)):
        return _http(403, "Forbidden", "this host name is not expected here: name it with --allowed-host")
    if method not in {b"GET", b"HEAD"}:
        return _http(405, "Method Not Allowed", "only GET")
    if path == b"/livez":
        return _http(200, "OK", "alive")
    if path == b"/readyz":
        return _http(200, "OK", "ready") if ready() else _http(503, "Service Unavailable", "not ready")
    if path == b"/metrics":
        return _http(200, "OK", (await metrics()).rstrip(), MEDIA)
    return _http(404, "Not Found", "/livez, /readyz or /metrics")


def _hosts(headers: list[bytes]) -> list[str]:
    """Each Host that was sent; a browser always sends one."""
    fields = [header.partition(b":") for header in headers]
    return [value.strip().decode("latin-1") for name, _, value in fields if name.strip().lower() == b"host"]


def _http(code: int, name: str, text: str, media: str = "text/plain") -> bytes:
    body = f"{text}\n".encode()
    return (
        f"HTTP/1.1 {code} {name}\r\nContent-Type: {media}\r\nContent-Length: {len(body)}\r\n"
        f"X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    ).encode() + body
