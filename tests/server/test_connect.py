"""Connections to suitable servers are made the same way everywhere."""

import asyncio
import gc
import os
import ssl
from pathlib import Path

import pytest
import redis

from penstock.errors import Unavailable
from tests.server.fakes import GOOD, commands, serving, with_info
from tests.server.helpers import StartServer, endpoint, refusal


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
    # On a loop the sender sets the deadline: with a socket timeout redis-py would swallow cancellations.
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
    received: list[bytes] = []

    def answer(words: bytes) -> bytes:
        received.extend(command for command in commands(words) if b"INCR" in command)
        return b"" if b"INCR" in words else with_info(**GOOD)(words)

    with serving(answer) as port:
        place = endpoint(f"redis://127.0.0.1:{port}", socket_timeout=0.1)
        with pytest.raises(redis.TimeoutError):
            place.client_sync().incr("n")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await (await place.client()).incr("n")
        await place.aclose()
    assert len(received) == 2


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
    with serving(with_info(**GOOD), context) as port:
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
    with serving(with_info(**GOOD), context) as port:
        url = f"rediss://localhost:{port}?ssl_ca_certs={certificate}"
        assert "ssl_certfile=" in str(refusal(url, deadline=20))
        endpoint(f"{url}&ssl_certfile={certificate}&ssl_keyfile={certificate}").client_sync()
