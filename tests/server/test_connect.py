"""Verified connections: to good servers, and clear errors for all others."""

import asyncio
import gc
import logging
import os
import signal
import ssl
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock.errors import PenstockError, Unavailable, UnsuitableServer
from penstock.server.endpoint import Endpoint
from penstock.server.pool import Node
from penstock.server.search import Search
from penstock.server.urls import parse
from tests.proxy import proxied
from tests.server.fakes import Answer, answering, commands, saying, serving
from tests.server.helpers import Server, end, is_alive, server_pid, servers, until

StartServer = Callable[..., Server]
KEY = b"penstock:{test}:meta"
GOOD = {"redis_version": "7.4.0", "role": "master", "loading": 0, "aof_enabled": 1, "maxmemory_policy": "noeviction"}


def endpoint(url: str, **options: Any) -> Endpoint:
    return Endpoint(parse(url), slot_key=KEY, **options)


def refusal(url: str, deadline: float = 0.3) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        endpoint(url, deadline=deadline).client_sync()
    return caught.value


def refusal_of(answer: Answer, scheme: str = "redis://", deadline: float = 0.3) -> PenstockError:
    with serving(answer) as port:
        return refusal(f"{scheme}127.0.0.1:{port}", deadline)


async def test_both_clients_reach_the_server(start_server: StartServer) -> None:
    place = endpoint(start_server().url + "/3")
    client = await place.client()
    await client.set("k", b"\xff")
    assert place.client_sync().get("k") == b"\xff"
    assert await place.client() is client
    assert place.client_sync() is place.client_sync()
    await place.aclose()


async def test_every_connection_is_made_the_same_way(start_server: StartServer) -> None:
    place = endpoint(start_server().url)
    sync, client = place.client_sync(), await place.client()
    # On a loop whoever sends sets the deadline: a socket timeout would make redis-py swallow cancellations.
    for settings, timeout in (
        (sync.connection_pool.connection_kwargs, 5.0),
        (client.connection_pool.connection_kwargs, None),
    ):
        assert (settings["socket_timeout"], settings["socket_connect_timeout"]) == (timeout, 2.0)
        assert settings["retry"].get_retries() == 0
        assert settings["protocol"] == 2
        assert settings["socket_keepalive"]
    assert await client.client_getname() == sync.client_getname() == "penstock"
    await place.aclose()


async def test_no_command_is_ever_sent_twice_by_the_library() -> None:
    heard: list[bytes] = []

    def answer(words: bytes) -> bytes:
        heard.extend(command for command in commands(words) if b"INCR" in command)
        return b"" if b"INCR" in words else saying(**GOOD)(words)

    with serving(answer) as port:
        place = endpoint(f"redis://127.0.0.1:{port}", socket_timeout=0.1)
        with pytest.raises(redis.TimeoutError):
            place.client_sync().incr("n")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await (await place.client()).incr("n")
        await place.aclose()
    assert len(heard) == 2


async def test_more_than_a_hundred_connections_may_be_in_use_at_once(start_server: StartServer) -> None:
    place = endpoint(start_server().url)
    client = await place.client()
    waiting = [asyncio.ensure_future(client.blpop(["empty"], timeout=3)) for _ in range(150)]
    await asyncio.sleep(0)
    await client.rpush("empty", *range(150))
    assert len(await asyncio.gather(*waiting)) == 150
    await place.aclose()


async def test_a_socket_file_and_a_password_work(start_server: StartServer, tmp_path: Path) -> None:
    path = Path("/tmp") / f"penstock-test-{os.getpid()}.sock"
    start_server("--unixsocket", str(path), "--requirepass", "s/e:c r@t")
    place = endpoint(f"unix://:s%2Fe:c%20r@t@{path}?db=2")
    assert await (await place.client()).ping()
    assert "s/e" not in f"{place!r} {await place.client()!r} {place.client_sync()!r}"
    await place.aclose()


def test_tls_is_verified_and_its_connections_close_quietly(certificate: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    with serving(saying(**GOOD), context) as port:
        place = endpoint(f"rediss://localhost:{port}?ssl_ca_certs={certificate}")

        async def use() -> None:
            client = await place.client()
            await asyncio.gather(*(client.client_setname("x") for _ in range(3)))
            await place.forget()
            assert await (await place.client()).client_setname("x")

        asyncio.run(use())
        assert place.client_sync().client_setname("x")
        place.close()
        gc.collect()
        error = refusal(f"rediss://localhost:{port}", deadline=20)
        assert isinstance(error, Unavailable)
        assert "ssl_ca_certs" in str(error)
        other = f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}"
        assert "certificate" in str(refusal(other))
        endpoint(other + "&ssl_check_hostname=false").client_sync()
        endpoint(f"rediss://127.0.0.1:{port}?ssl_cert_reqs=none").client_sync()


def test_a_tls_server_that_wants_a_certificate_says_so(certificate: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificate))
    context.load_cert_chain(certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    with serving(saying(**GOOD), context) as port:
        url = f"rediss://localhost:{port}?ssl_ca_certs={certificate}"
        assert "ssl_certfile=" in str(refusal(url, deadline=20))
        endpoint(f"{url}&ssl_certfile={certificate}&ssl_keyfile={certificate}").client_sync()


# Servers that cannot be reached


def test_nobody_listening_is_tried_until_the_deadline() -> None:
    begin = time.monotonic()
    error = refusal("redis://127.0.0.1:1", deadline=0.5)
    assert 0.4 < time.monotonic() - begin < 3
    assert isinstance(error, Unavailable)
    assert "redis://127.0.0.1:1 cannot be reached" in str(error)
    assert "check that it runs there" in str(error)


def test_a_server_that_comes_up_within_the_deadline_is_found(start_server: StartServer) -> None:
    server = start_server()
    server.stop()
    place = endpoint(server.url, deadline=10)
    found: list[redis.Redis] = []
    waiter = threading.Thread(target=lambda: found.append(place.client_sync()))
    waiter.start()
    other = start_server(port=server.port)
    waiter.join(10)
    assert found[0].ping()
    assert other.process.poll() is None
    place.close()


def test_a_host_without_an_address_is_unavailable() -> None:
    error = refusal("redis://:hunter2@no-such-host.invalid")
    assert isinstance(error, Unavailable)
    assert "no-such-host.invalid" in str(error)
    assert "hunter2" not in str(error)


def test_a_server_that_says_nothing_is_unavailable() -> None:
    error = refusal_of(lambda _: b"")
    assert isinstance(error, Unavailable)
    assert "does not answer" in str(error)


@pytest.mark.parametrize(
    ("options", "credentials", "advice"),
    [
        (("--requirepass", "right"), "", "wants a password: put it into the URL"),
        (("--requirepass", "right"), ":hunter2@", "refuses the URL's user or password"),
        (("--requirepass", "right"), "somebody:hunter2@", "refuses the URL's user or password"),
        ((), ":hunter2@", "has no password set"),
        (("--user", "weak", "on", ">hunter2", "~*", "+ping"), "weak:hunter2@", "does not permit its user"),
    ],
)
def test_a_wrong_password_is_said_at_once(
    start_server: StartServer, options: tuple[str, ...], credentials: str, advice: str
) -> None:
    server = start_server(*options)
    begin = time.monotonic()
    error = refusal(f"redis://{credentials}127.0.0.1:{server.port}", deadline=30)
    assert time.monotonic() - begin < 5
    assert isinstance(error, Unavailable)
    assert advice in str(error)
    assert "hunter2" not in f"{error!r} {error.__cause__!r}"


# Servers that jobs are not safe on


def test_a_server_that_evicts_is_refused(start_server: StartServer) -> None:
    error = refusal(start_server("--maxmemory-policy", "allkeys-lru").url)
    assert isinstance(error, UnsuitableServer)
    assert "set maxmemory-policy noeviction" in str(error)


def test_a_server_that_evicts_may_be_allowed_and_is_warned_of(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PENSTOCK_ALLOW_EVICTION", "1")
    place = endpoint(start_server("--maxmemory-policy", "allkeys-lru").url)
    place.client_sync()
    place.forget_sync()
    assert place.client_sync().ping()
    assert ["evicts" in record.getMessage() for record in caplog.records] == [True]
    place.close()


def test_a_server_without_aof_is_warned_of_once(start_server: StartServer, caplog: pytest.LogCaptureFixture) -> None:
    place = endpoint(start_server("--appendonly", "no").url)
    place.client_sync()
    place.forget_sync()
    assert place.client_sync().ping()
    assert [record.levelno for record in caplog.records if "appendonly yes" in record.getMessage()] == [logging.WARNING]
    place.close()


def test_a_replica_is_refused_and_its_master_named(start_server: StartServer) -> None:
    master = start_server()
    replica = start_server("--replicaof", "127.0.0.1", str(master.port))
    error = refusal(replica.url)
    assert isinstance(error, UnsuitableServer)
    assert f"use the URL of its master, 127.0.0.1:{master.port}" in str(error)


def test_a_server_that_becomes_a_replica_is_given_time_to_fail_over(start_server: StartServer) -> None:
    server = start_server()
    place = endpoint(server.url, deadline=10)
    assert place.client_sync().ping()
    server.ask("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(redis.exceptions.ReadOnlyError):
        place.client_sync().set("k", "v")
    place.forget_sync()
    promotion = threading.Timer(0.3, server.ask, ("REPLICAOF", "NO", "ONE"))
    promotion.start()
    assert place.client_sync().set("k", "v")
    promotion.join()
    place.close()


@pytest.mark.parametrize(
    ("info", "advice"),
    [
        ({"redis_version": "6.2.0"}, "is Redis 6.2.0, which is too old"),
        ({"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "7.1.9"}, "is Valkey 7.1.9"),
    ],
)
def test_a_server_that_is_too_old_is_refused(info: dict[str, str], advice: str) -> None:
    error = refusal_of(saying(**GOOD | info))
    assert isinstance(error, UnsuitableServer)
    assert advice in str(error)
    assert "upgrade it to Valkey 7.2 or Redis 7.0" in str(error)


@pytest.mark.parametrize(
    "info", [{}, {"redis_version": "7.0.0"}, {"redis_version": "8.10.1"}, {"redis_version": "new"}]
)
def test_what_a_managed_server_hides_is_not_held_against_it(info: dict[str, str]) -> None:
    with serving(saying(**info)) as port:
        place = endpoint(f"redis://127.0.0.1:{port}")
        place.client_sync()
        place.close()


def test_a_server_that_hides_info_altogether_is_taken_as_it_is() -> None:
    with serving(answering({b"INFO": b"-ERR unknown command 'INFO', with args beginning with: \r\n"})) as port:
        place = endpoint(f"redis://127.0.0.1:{port}")
        place.client_sync()
        place.close()


def test_a_server_that_is_still_loading_is_waited_for() -> None:
    loading = saying(**GOOD | {"loading": 1, "loading_loaded_perc": "42.50", "loading_eta_seconds": 7})
    error = refusal_of(loading)
    assert isinstance(error, Unavailable)
    assert "still loading its data after 0.3 s (42.5 % are loaded, about 7 s remain)" in str(error)
    error = refusal_of(lambda _: b"-LOADING the dataset in memory\r\n")
    assert "still loading" in str(error)
    answers = [loading, loading, saying(**GOOD)]
    with serving(lambda words: (answers.pop(0) if answers[1:] and b"\nINFO" in words else answers[0])(words)) as port:
        place = endpoint(f"redis://127.0.0.1:{port}")
        place.client_sync()
        place.close()


def test_a_server_that_is_busy_with_a_script_is_waited_for() -> None:
    error = refusal_of(answering({b"INFO": b"-BUSY Redis is busy running a script.\r\n"}))
    assert isinstance(error, Unavailable)
    assert "busy running a script" in str(error)


@pytest.mark.parametrize("scheme", ["redis://", "redis+cluster://"])
def test_something_else_than_redis_is_named_as_such(scheme: str) -> None:
    error = refusal_of(lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n", scheme, deadline=5)
    assert isinstance(error, UnsuitableServer)
    assert "no Redis or Valkey server: check host and port" in str(error)


def test_a_server_that_wants_tls_is_named_as_such() -> None:
    alert = bytes([0x15, 3, 3, 0, 2, 2, 0x46])
    assert "if it expects TLS, use rediss://" in str(refusal_of(lambda _: alert))


def test_a_server_that_has_no_tls_is_named_as_such(start_server: StartServer) -> None:
    assert "if it does not use TLS, write redis://" in str(refusal(f"rediss://127.0.0.1:{start_server().port}"))
    assert "use redis:// instead of rediss://" in str(refusal_of(lambda _: b"-ERR Protocol error\r\n", "rediss://"))


def test_a_database_that_does_not_exist_is_named(start_server: StartServer) -> None:
    assert "has no database 99" in str(refusal(start_server().url + "/99"))


# Clusters


def start_cluster_node(start_server: StartServer) -> Server:
    node = start_server("--cluster-enabled", "yes")
    node.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    return node


def serves(node: Server) -> bool:
    return b"cluster_state:ok" in _raw(node, "CLUSTER", "INFO")


def _raw(node: Server, *command: str) -> bytes:
    with redis.Redis(port=node.port) as client:
        client.response_callbacks.clear()
        answer: bytes = client.execute_command(*command)
        return answer


async def test_a_cluster_url_gives_a_plain_client_of_the_node_that_has_the_slot(start_server: StartServer) -> None:
    node = start_cluster_node(start_server)
    until(lambda: serves(node))
    place = endpoint(f"redis+cluster://127.0.0.1:1,localhost:{node.port}")
    assert await (await place.client()).set(KEY, "v")
    assert place.client_sync().get(KEY) == b"v"
    await place.forget()
    assert await (await place.client()).get(KEY) == b"v"
    await place.aclose()


async def test_the_slot_is_followed_to_another_node(start_server: StartServer) -> None:
    first, second = start_cluster_node(start_server), start_server("--cluster-enabled", "yes")
    first.ask("CLUSTER", "MEET", "127.0.0.1", second.port)
    names: dict[str, str] = {}
    for name, node in (("first", first), ("second", second)):
        names[name] = _raw(node, "CLUSTER", "MYID").decode()
    until(lambda: serves(first) and serves(second))
    place = endpoint(f"redis+cluster://127.0.0.1:{first.port}")
    client = await place.client()
    slot = int(first.ask("CLUSTER", "KEYSLOT", KEY.decode()))  # type: ignore[call-overload]
    for node in (second, first):
        node.ask("CLUSTER", "SETSLOT", slot, "NODE", names["second"])
    with pytest.raises(redis.exceptions.MovedError):
        await client.set(KEY, "v")
    await place.forget()
    moved = await place.client()
    assert moved is not client
    assert await moved.set(KEY, "v")
    # The first node is no longer needed to find the way.
    first.stop()
    await place.forget()
    assert await (await place.client()).get(KEY) == b"v"
    await place.aclose()


def test_a_plain_url_of_a_cluster_node_is_refused_with_the_right_one(start_server: StartServer) -> None:
    node = start_cluster_node(start_server)
    error = refusal(node.url)
    assert isinstance(error, UnsuitableServer)
    assert f"use the URL redis+cluster://127.0.0.1:{node.port}" in str(error)


def test_a_cluster_url_of_a_plain_server_is_refused_with_the_right_one(start_server: StartServer) -> None:
    server = start_server()
    error = refusal(f"redis+cluster://127.0.0.1:{server.port}")
    assert isinstance(error, UnsuitableServer)
    assert f"use the URL redis://127.0.0.1:{server.port}" in str(error)


def test_a_cluster_without_the_slot_is_unavailable(start_server: StartServer) -> None:
    node = start_server("--cluster-enabled", "yes")
    error = refusal(f"redis+cluster://127.0.0.1:{node.port}")
    assert isinstance(error, Unavailable)
    assert "no node of the cluster has slot" in str(error)


@pytest.mark.parametrize("host", [b"$0\r\n\r\n", b"$-1\r\n", b"$1\r\n?\r\n"])
def test_a_node_that_does_not_know_its_host_is_where_it_was_asked(host: bytes) -> None:
    ports: list[int] = []

    def answer(words: bytes) -> bytes:
        if b"SLOTS" not in words:
            return saying(**GOOD)(words)
        return b"*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n" + host + b":%d\r\n$2\r\nid\r\n" % ports[0]

    with serving(answer) as port:
        ports.append(port)
        place = endpoint(f"redis+cluster://127.0.0.1:{port}")
        assert place.client_sync().connection_pool.connection_kwargs["host"] == "127.0.0.1"
        place.close()


# Forgetting, forking, loops


def test_a_server_that_is_found_again_is_the_same_object() -> None:
    """So that those who have a client of it need not ask the search."""
    url = parse("redis://127.0.0.1:1")
    search = Search(lambda: Node(url, ("127.0.0.1", 1), run="first"))
    found = [search.join().result()]
    for _ in range(2):
        search.join()
        assert search.found is found[0]
        search.drop()
        assert search.found is None
        found.append(search.join().result())
    assert all(one is found[0] for one in found)


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
    assert await client.ping()  # whoever still holds the old one is served as well, and leaves nothing open
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
def test_a_loop_that_was_closed_without_ceremony_leaves_no_noise(start_server: StartServer) -> None:
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
async def test_a_connection_that_the_server_closed_is_opened_again_without_a_word(
    start_server: StartServer, blocking: bool
) -> None:
    server = start_server()
    place = endpoint(server.url)
    client: Any = place.client_sync() if blocking else await place.client()

    async def number() -> int:
        return int(client.client_id() if blocking else await client.client_id())

    before = await number()
    server.ask("CLIENT KILL", "ID", before)
    await asyncio.sleep(0.1)  # until the loop has heard of it, and blocking code looks again before it sends
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


# The embedded server


async def test_an_embedded_url_needs_no_server(data: Path) -> None:
    place = endpoint(f"embedded://{data}")
    assert await (await place.client()).set("k", "v")
    assert place.client_sync().get("k") == b"v"
    end(server_pid(data))
    with pytest.raises(redis.ConnectionError):
        await (await place.client()).get("k")
    await place.forget()
    assert await (await place.client()).get("k") == b"v"
    await place.aclose()
    until(lambda: not servers(data))


async def test_an_embedded_server_stays_for_as_long_as_one_endpoint_is_open(data: Path) -> None:
    one, two = endpoint(f"embedded://{data}"), endpoint(f"embedded://{data}")
    await one.client()
    await two.client()
    pid = server_pid(data)
    one.close()  # its loop still has a client
    await two.aclose()
    late = time.monotonic() + 0.8
    until(lambda: time.monotonic() > late)
    assert is_alive(pid)
    await one.aclose()
    until(lambda: not servers(data))


async def test_closing_during_a_search_leaves_no_user_behind(data: Path) -> None:
    place = endpoint(f"embedded://{data}")
    search = asyncio.create_task(place.client())
    await asyncio.sleep(0)
    place.close()
    search.cancel()
    with pytest.raises(asyncio.CancelledError):
        await search
    until((data / "watcher.lock").exists)
    until(lambda: not servers(data))


def test_a_blocked_wait_for_a_server_ends_with_ctrl_c() -> None:
    place = endpoint("redis://127.0.0.1:1", deadline=5)
    begin = time.monotonic()
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        place.client_sync()
    assert time.monotonic() - begin < 2
