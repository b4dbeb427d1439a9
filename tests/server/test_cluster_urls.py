"""The URL of a cluster leads to the node that has the slot."""

import pytest
import redis

from penstock.errors import Unavailable, UnsuitableServer
from tests.server.fakes import GOOD, serving, with_info
from tests.server.helpers import SLOT_KEY, Server, StartServer, endpoint, refusal, until

pytestmark = pytest.mark.integration


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
    assert await (await place.client()).set(SLOT_KEY, "v")
    assert place.client_sync().get(SLOT_KEY) == b"v"
    await place.forget()
    assert await (await place.client()).get(SLOT_KEY) == b"v"
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
    slot = int(first.ask("CLUSTER", "KEYSLOT", SLOT_KEY.decode()))  # type: ignore[call-overload]
    for node in (second, first):
        node.ask("CLUSTER", "SETSLOT", slot, "NODE", names["second"])
    with pytest.raises(redis.exceptions.MovedError):
        await client.set(SLOT_KEY, "v")
    await place.forget()
    moved = await place.client()
    assert moved is not client
    assert await moved.set(SLOT_KEY, "v")
    # The first node is no longer needed to find the way.
    first.stop()
    await place.forget()
    assert await (await place.client()).get(SLOT_KEY) == b"v"
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
            return with_info(**GOOD)(words)
        return b"*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n" + host + b":%d\r\n$2\r\nid\r\n" % ports[0]

    with serving(answer) as port:
        ports.append(port)
        place = endpoint(f"redis+cluster://127.0.0.1:{port}")
        assert place.client_sync().connection_pool.connection_kwargs["host"] == "127.0.0.1"
        place.close()
