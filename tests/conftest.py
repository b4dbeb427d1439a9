"""Fixtures: real servers, one of each kind per test process; an engine or an app of its own namespace for each test."""

import asyncio
import logging
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Penstock
from penstock.engine.engine import Engine
from penstock.engine.repair.audit import audit
from penstock.server.endpoint import Endpoint
from penstock.server.urls import parse
from tests.costs import TOO_LONG_US
from tests.servers import Cluster, Server, running
from tests.stopwatch import Stopwatch


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test on a cluster as `integration`, so that `make test` runs each of them on a single server only."""
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
        if "cluster" in getattr(item, "fixturenames", ()) or any(value == "cluster" for value in parameters):
            item.add_marker("integration")


@pytest.fixture(scope="session")
def single() -> Iterator[Server]:
    with running(Server("--appendonly", "no")) as server:
        yield server


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with running(Cluster()) as servers:
        yield servers


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("openssl"):
        pytest.skip("needs openssl to make a certificate")
    path = tmp_path_factory.mktemp("tls") / "cert.pem"
    request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost"
    extra = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(path), "-out", f"{path}.crt"]
    subprocess.run(["openssl", *request.split(), *extra], check=True, capture_output=True)
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


class Clock:
    """A server time that tests move."""

    def __init__(self, now: int = 1_800_000_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, milliseconds: int) -> None:
        self.now += milliseconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """The single server, or what `on_both` asks for."""
    return str(request.getfixturevalue(getattr(request, "param", "single")).url)


def namespace() -> str:
    return "test-" + secrets.token_hex(6)


def open_engine(url: str, name: str, clock: Clock | None = None) -> Engine:
    endpoint = Endpoint(parse(url), slot_key=f"penstock:{{{name}}}:meta".encode())
    return Engine(endpoint, name, test_clock=clock)


@pytest.fixture
async def engine(url: str, clock: Clock) -> AsyncIterator[Engine]:
    """An engine on virtual time; at the end of each test every invariant holds."""
    made = open_engine(url, namespace(), clock)
    try:
        yield made
        assert await audit(made) == []
    finally:
        client = await made.script_client.endpoint.client()
        await client.delete(*made.all_keys())
        await made.script_client.endpoint.aclose()


@pytest.fixture
async def real_engine(url: str) -> AsyncIterator[Engine]:
    """The same with the production scripts and the server's own time."""
    made = open_engine(url, namespace())
    try:
        yield made
        assert await audit(made) == []
    finally:
        client = await made.script_client.endpoint.client()
        await client.delete(*made.all_keys())
        await made.script_client.endpoint.aclose()


@pytest.fixture
async def unhandled() -> AsyncIterator[list[dict[str, Any]]]:
    """What reached the event loop because nobody awaited it; nothing may."""
    contexts: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: contexts.append(context))
    yield contexts
    loop.set_exception_handler(None)
    assert contexts == []


@pytest.fixture
async def app(url: str, unhandled: list[dict[str, Any]]) -> AsyncIterator[Penstock]:
    """An app of its own namespace; whatever the test did, every invariant holds at its end."""
    made = Penstock(namespace(), url=url)
    try:
        yield made
        assert await audit(made.client.engine) == []
    finally:
        client = await made.client.engine.script_client.endpoint.client()
        await client.delete(*made.client.engine.all_keys())
        await made.aclose()


@pytest.fixture
def watched_server() -> Iterator[Server]:
    """A server only for this test that logs every script that takes too long."""
    settings = ("--slowlog-log-slower-than", str(TOO_LONG_US), "--slowlog-max-len", "1000")
    with running(Server("--appendonly", "no", *settings)) as server:
        yield server


@pytest.fixture
async def watched_engine(watched_server: Server) -> AsyncIterator[Engine]:
    made = open_engine(watched_server.url, namespace())
    yield made
    await made.script_client.endpoint.aclose()


@pytest.fixture
def stopwatch(watched_engine: Engine, watched_server: Server) -> Stopwatch:
    """Measures what the server's main thread does during the engine's long scripts."""
    return Stopwatch(watched_engine, watched_server, TOO_LONG_US)


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """A command that a test runs in its own process sets levels: the next test finds those of before."""
    names = ["", *(name for name in logging.root.manager.loggerDict if name.startswith("penstock"))]
    loggers = [logging.getLogger(name) for name in names]
    before = [(each, each.level, each.disabled, each.propagate, list(each.handlers)) for each in loggers]
    yield
    for logger, level, disabled, propagate, handlers in before:
        logger.setLevel(level)
        logger.disabled, logger.propagate = disabled, propagate
        logger.handlers[:] = handlers
