"""An endpoint whose URL is that of an embedded server."""

import asyncio
import time
from pathlib import Path

import pytest
import redis

from tests.server.embedded.helpers import kill, server_pid, servers
from tests.server.helpers import endpoint, is_alive, until


async def test_an_embedded_url_needs_no_server(data: Path) -> None:
    place = endpoint(f"embedded://{data}")
    assert await (await place.client()).set("k", "v")
    assert place.client_sync().get("k") == b"v"
    kill(server_pid(data))
    with pytest.raises(redis.ConnectionError):
        await (await place.client()).get("k")
    await place.forget()
    assert await (await place.client()).get("k") == b"v"
    await place.aclose()
    until(lambda: not servers(data))


async def test_an_embedded_server_stays_for_as_long_as_one_endpoint_is_open(data: Path) -> None:
    first, second = endpoint(f"embedded://{data}"), endpoint(f"embedded://{data}")
    await first.client()
    await second.client()
    pid = server_pid(data)
    first.close()  # its loop still has a client
    await second.aclose()
    late = time.monotonic() + 0.8
    until(lambda: time.monotonic() > late)
    assert is_alive(pid)
    await first.aclose()
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
