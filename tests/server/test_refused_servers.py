"""Servers that cannot be reached or that would lose jobs: a clear error for each."""

import logging
import threading
import time

import pytest
import redis

from penstock.errors import Unavailable, UnsuitableServer
from tests.server.fakes import GOOD, answering, serving, with_info
from tests.server.helpers import StartServer, endpoint, refusal, refusal_of


def test_a_port_without_a_server_is_tried_until_the_deadline() -> None:
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
    clients: list[redis.Redis] = []
    waiter = threading.Thread(target=lambda: clients.append(place.client_sync()))
    waiter.start()
    other = start_server(port=server.port)
    waiter.join(10)
    assert clients[0].ping()
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
    error = refusal_of(with_info(**GOOD | info))
    assert isinstance(error, UnsuitableServer)
    assert advice in str(error)
    assert "upgrade it to Valkey 7.2 or Redis 7.0" in str(error)


@pytest.mark.parametrize(
    "info", [{}, {"redis_version": "7.0.0"}, {"redis_version": "8.10.1"}, {"redis_version": "new"}]
)
def test_settings_that_a_managed_server_hides_are_not_required(info: dict[str, str]) -> None:
    with serving(with_info(**info)) as port:
        place = endpoint(f"redis://127.0.0.1:{port}")
        place.client_sync()
        place.close()


def test_a_server_that_hides_info_altogether_is_taken_as_it_is() -> None:
    with serving(answering({b"INFO": b"-ERR unknown command 'INFO', with args beginning with: \r\n"})) as port:
        place = endpoint(f"redis://127.0.0.1:{port}")
        place.client_sync()
        place.close()


def test_a_server_that_is_still_loading_is_waited_for() -> None:
    loading = with_info(**GOOD | {"loading": 1, "loading_loaded_perc": "42.50", "loading_eta_seconds": 7})
    error = refusal_of(loading)
    assert isinstance(error, Unavailable)
    assert "still loading its data after 0.3 s (42.5 % are loaded, about 7 s remain)" in str(error)
    error = refusal_of(lambda _: b"-LOADING the dataset in memory\r\n")
    assert "still loading" in str(error)
    answers = [loading, loading, with_info(**GOOD)]
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
