"""Clients of an endpoint that is forgotten, forked, or used on several loops and threads."""

import asyncio
import gc
import os
import signal
import threading
import time
import warnings
from typing import Any

import pytest
import redis

from penstock.errors import Unavailable
from penstock.server.endpoint import Endpoint
from penstock.server.pool import Node
from penstock.server.topology import Search
from penstock.server.urls import parse
from tests.proxy import proxied
from tests.server.helpers import Server, StartServer, endpoint, until


def test_a_server_that_is_found_again_is_the_same_object() -> None:
    """So that the holder of a client can compare it without a search."""
    url = parse("redis://127.0.0.1:1")
    search = Search(lambda: Node(url, ("127.0.0.1", 1), run_id="first"))
    nodes = [search.join().result()]
    for _ in range(2):
        search.join()
        assert search.node is nodes[0]
        search.drop()
        assert search.node is None
        nodes.append(search.join().result())
    assert all(node is nodes[0] for node in nodes)


async def test_a_hundred_failing_tasks_share_one_search(start_server: StartServer) -> None:
    server = start_server()
    place = endpoint(server.url)
    await place.client()
    server.ask("CONFIG", "RESETSTAT")

    async def fail() -> object:
        await place.forget()
        return await place.client()

    clients = await asyncio.gather(*(fail() for _ in range(100)))
    assert len(set(clients)) == 1
    stats: Any = server.ask("INFO", "commandstats")
    assert stats["cmdstat_info"]["calls"] <= 2
    await place.aclose()


async def test_forgetting_cuts_off_nobody_elses_call(start_server: StartServer) -> None:
    place = endpoint(start_server().url)
    client = await place.client()
    waiting = asyncio.ensure_future(client.blpop(["list"], timeout=4))
    await client.ping()
    await place.forget()
    assert await place.client() is client
    await client.rpush("list", "x")
    assert await waiting == (b"list", b"x")
    await place.aclose()


async def test_a_restarted_server_gets_a_new_client(start_server: StartServer) -> None:
    server = start_server()
    place = endpoint(server.url)
    client, sync = await place.client(), place.client_sync()
    waiting = asyncio.ensure_future(client.blpop(["list"], timeout=4))
    await client.ping()
    server.stop()
    with pytest.raises(redis.ConnectionError):
        await client.ping()
    with pytest.raises(redis.ConnectionError):
        await waiting
    start_server(port=server.port)
    await place.forget()
    assert await place.client() is not client
    assert await (await place.client()).ping()
    assert place.client_sync() is not sync
    assert await client.ping()  # the old client still works for its holders, and leaves nothing open
    await place.aclose()


async def test_waiters_hear_of_a_failure_together_and_in_time() -> None:
    place = endpoint("redis://127.0.0.1:1", deadline=0.3)
    begin = time.monotonic()
    errors = await asyncio.gather(*(place.client() for _ in range(20)), return_exceptions=True)
    assert time.monotonic() - begin < 2
    assert len({id(error) for error in errors}) == 20
    assert all(isinstance(error, Unavailable) for error in errors)


async def test_a_waiter_may_be_cancelled_at_once() -> None:
    place = endpoint("redis://127.0.0.1:1", deadline=0.5)
    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(place.client(), 0.05)
    assert time.monotonic() - begin < 0.4


def test_each_loop_has_its_own_client_which_closes_with_it(start_server: StartServer) -> None:
    server = start_server()
    place = endpoint(server.url)

    async def use() -> int:
        client = await place.client()
        await asyncio.gather(*(client.ping() for _ in range(3)))
        return id(client)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(use())
        asyncio.run(use())
        gc.collect()
    until(lambda: _connections(server) == 1)
    place.close()


@pytest.mark.filterwarnings("ignore:unclosed event loop:ResourceWarning")
def test_a_loop_that_was_closed_with_open_connections_leaves_no_warnings(start_server: StartServer) -> None:
    server = start_server()
    place = endpoint(server.url)

    async def use() -> None:
        await (await place.client()).ping()

    for _ in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(use())
        loop.close()
        del loop
    place.close()
    gc.collect()
    until(lambda: _connections(server) == 1)


def _connections(server: Server) -> int:
    clients: Any = server.ask("CLIENT LIST")
    return len(clients)


def test_threads_share_the_blocking_client(start_server: StartServer) -> None:
    place = endpoint(start_server().url)
    clients: list[redis.Redis] = []
    threads = [threading.Thread(target=lambda: clients.append(place.client_sync())) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(client) for client in clients}) == 1
    place.close()


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_connection_that_the_server_closed_is_opened_again_without_an_error(
    start_server: StartServer, blocking: bool
) -> None:
    server = start_server()
    place = endpoint(server.url)
    client: Any = place.client_sync() if blocking else await place.client()

    async def number() -> int:
        return int(client.client_id() if blocking else await client.client_id())

    before = await number()
    server.ask("CLIENT KILL", "ID", before)
    await asyncio.sleep(0.1)  # until the loop has noticed, and blocking code looks again before it sends
    assert await number() > before
    await place.aclose()


def test_a_connection_that_was_interrupted_while_it_was_made_gives_nobody_its_answers(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server()
    server.ask("SET", "k", "v")
    with proxied(server.port) as proxy:
        place = endpoint(proxy.url)
        client = place.client_sync()

        def interrupt(*_: object, **__: object) -> None:
            monkeypatch.undo()
            raise KeyboardInterrupt

        proxy.stall("replies")
        monkeypatch.setattr(redis.Connection, "read_response", interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.ping()
        threading.Timer(0.1, proxy.flow).start()
        assert client.get("k") == b"v"
        place.close()


async def test_a_forked_child_has_its_own_connections_and_disturbs_none(start_server: StartServer) -> None:
    server = start_server()
    place = endpoint(server.url)
    client, sync = await place.client(), place.client_sync()
    assert await client.ping()
    assert sync.ping()
    before = await client.client_id(), sync.client_id()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
        child = os.fork()
    if not child:
        _in_child(place, before)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (await client.client_id(), sync.client_id()) == before
    assert await client.get("child") == b"1"
    await place.aclose()


def _in_child(place: Endpoint, before: tuple[int, int]) -> None:
    code = 1
    try:
        mine = place.client_sync()
        if mine.client_id() not in before:
            mine.set("child", 1)
            place.close()
            code = 0
    finally:
        os._exit(code)


def test_a_blocked_wait_for_a_server_ends_with_ctrl_c() -> None:
    place = endpoint("redis://127.0.0.1:1", deadline=5)
    begin = time.monotonic()
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        place.client_sync()
    assert time.monotonic() - begin < 2
