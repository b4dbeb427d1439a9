"""The connection that all calls of a loop share: while it is late, lost or full, no call waits longer than needed."""

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from penstock import Penstock, Unavailable
from penstock.engine.repair.audit import audit
from penstock.model.header import new_id
from tests.app_helpers import eventually
from tests.conftest import namespace
from tests.engine.factories import new_job
from tests.proxy import proxied, tls_before
from tests.servers import Server, running


async def connection_of(app: Penstock) -> Any:
    """The connection at hand."""
    for _ in range(2):  # it is at hand once the server that was found has been asked for again
        await app.client.engine.cancel(["x"])
    return app.client.endpoint.shared_connection()


def big_page(app: Penstock) -> Any:
    return app.client.engine.enqueue([new_job(payload=b"x" * 900_000) for _ in range(4)])


async def test_calls_that_wait_for_room_are_sent_on_another_connection_when_theirs_is_lost(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "penstock.server.connection.SLOW_SECONDS", 30
    )  # however busy the machine, all are sent on one connection
    port = int(url.rpartition(":")[2].partition("/")[0])
    with proxied(port) as proxy:
        async with Penstock(namespace(), url=proxy.url, deadline=10) as app:
            connection = await connection_of(app)
            calls = [*(big_page(app) for _ in range(4)), *(app.client.engine.cancel([f"{n}"]) for n in range(3))]
            proxy.stall("requests")
            tasks = [asyncio.ensure_future(app.client.engine.script_client.run(call)) for call in calls]
            await eventually(lambda: len(connection._turns) >= 3)  # they wait for room
            proxy.cut()
            proxy.flow()
            async with asyncio.timeout(5):
                answers = await asyncio.gather(*tasks)
            assert [job.word for page in answers[:4] for job in page] == ["created"] * 16
            assert answers[4:] == [["missing"]] * 3
            assert await audit(app.client.engine) == []


async def test_big_pages_are_sent_in_turns_and_small_calls_wait_for_theirs(app: Penstock) -> None:
    pages = [big_page(app) for _ in range(20)]
    async with asyncio.timeout(30):
        answers = await asyncio.gather(*(app.client.engine.script_client.run(page) for page in pages))
    assert all(placed.word == "created" for page in answers for placed in page)
    assert (await app.client.views.counts())["default"]["ready"] == 80


async def test_a_call_that_is_cancelled_while_it_waits_for_its_turn_delays_no_other(app: Penstock) -> None:
    engine, connection = app.client.engine, await connection_of(app)
    connection.pause_writing()
    waiting = [asyncio.ensure_future(engine.script_client.run(engine.cancel([f"{n}"]))) for n in range(4)]
    await eventually(lambda: len(connection._turns) == 4)
    for gone in waiting[:3]:
        gone.cancel()
    connection.resume_writing()
    async with asyncio.timeout(2):
        assert await waiting[3] == ["missing"]
    assert not connection.is_crowded


async def test_a_connection_that_was_late_is_closed_once_it_has_answered(app: Penstock) -> None:
    engine, first = app.client.engine, await connection_of(app)
    for _ in range(5):
        late = asyncio.ensure_future(engine.script_client.run(engine.cancel(["x"])))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        time.sleep(0.3)  # noqa: ASYNC251 - a program that is busy: the answer is there, and nobody reads it
        await asyncio.gather(late, engine.script_client.run(engine.cancel(["y"])))
    assert not first.is_open or first is await connection_of(app)
    client: Any = await app.client.endpoint.client()
    assert sum(connection.is_open for connection in client.connection_pool._own) == 1


async def test_a_call_to_a_server_that_stands_still_ends_by_its_deadline() -> None:
    with running(Server()) as server:
        app = Penstock(namespace(), url=server.url, deadline=1)
        async with app:
            await app.client.engine.cancel(["x"])
            server.process.send_signal(signal.SIGSTOP)
            try:
                begin = time.monotonic()
                with pytest.raises(Exception, match="did not answer within"):
                    await app.client.engine.cancel(["x"])
                assert time.monotonic() - begin < 4
            finally:
                server.process.send_signal(signal.SIGCONT)
            assert await app.client.engine.cancel(["x"]) == ["missing"]


@pytest.fixture(params=["tls", "unix"])
def other_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Ways to a server that are no plain TCP."""
    with running(Server("--unixsocket", f"{tmp_path}/s")) as server:
        if request.param == "unix":
            yield f"unix://{tmp_path}/s"
        else:
            certificate: Path = request.getfixturevalue("certificate")
            with tls_before(server.port, certificate) as port:
                yield f"rediss://localhost:{port}?ssl_ca_certs={certificate}"


async def test_tls_and_socket_files_carry_all_that_plain_connections_do(other_url: str) -> None:
    async with Penstock(namespace(), url=other_url) as app:

        @app.task
        async def size(data: bytes) -> int:
            return len(data)

        async with app.worker():
            jobs = await app.enqueue_many(size.call(b"x" * (900_000 if n % 50 == 0 else n)) for n in range(150))
            jobs += await asyncio.gather(*(size.enqueue(b"x" * n) for n in range(150)))
            jobs += [await asyncio.to_thread(size.enqueue_sync, b"x" * n) for n in range(20)]
            results = await asyncio.gather(*(job.result(timeout=20) for job in jobs))
            assert await asyncio.to_thread(jobs[1].result_sync, 5) == 1
        assert results[1:150] == [900_000 if n % 50 == 0 else n for n in range(1, 150)]
        assert results[150:] == [*range(150), *range(20)]
        assert await audit(app.client.engine) == []


def test_event_loops_of_many_threads_come_and_go(url: str) -> None:
    app = Penstock(namespace(), url=url)
    errors: list[Exception] = []

    @app.task
    async def echo(x: int) -> None: ...

    def some() -> None:
        try:
            for n in range(15):
                asyncio.run(once(n))
        except Exception as error:  # noqa: BLE001 - told by the test
            errors.append(error)

    async def once(n: int) -> None:
        await echo.enqueue(n)
        await app.aclose()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=some) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert errors == []


def test_ids_are_all_different_in_threads_and_signal_handlers() -> None:
    drawn: list[list[str]] = [[] for _ in range(5)]

    def some(ids: list[str]) -> None:
        ids.extend(new_id() for _ in range(20_000))

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        drawn[4].extend(new_id() for _ in range(500))

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        threads = [threading.Thread(target=some, args=(ids,)) for ids in drawn[1:4]]
        for thread in threads:
            thread.start()
        some(drawn[0])
        for thread in threads:
            thread.join()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    ids = [drawn_id for some_ids in drawn for drawn_id in some_ids]
    assert len(set(ids)) == len(ids) >= 80_000


def test_blocking_code_waits_for_a_silent_server_no_longer_than_its_deadline(single: Server) -> None:
    with proxied(single.port) as proxy, Penstock(namespace(), url=proxy.url, deadline="2s") as app:

        @app.task
        async def size(data: bytes) -> int:
            return len(data)

        size.enqueue_sync(b"")
        proxy.stall("replies")
        begin = time.monotonic()
        with pytest.raises(Unavailable):
            size.enqueue_sync(b"")
        assert 0.5 < time.monotonic() - begin < 15
        proxy.stall("requests")
        with pytest.raises(Unavailable):
            size.enqueue_sync(b"." * 1_000_000)  # more than the sockets on the way take
        proxy.flow()
        assert size.enqueue_sync(b"").created
