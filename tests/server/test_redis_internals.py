"""The private attributes of redis-py that Penstock uses exist, mean what they did, and are used in one module."""

import asyncio
import inspect
import re
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.connection

from penstock.server import redis_internals
from penstock.server.pool import Pool, SyncPool
from tests.server.helpers import StartServer

BlockingConnection: Any = redis.Connection  # it has no types
SOURCE = Path(redis_internals.__file__)
ASYNCIO = [("_reader", asyncio.StreamReader), ("_writer", asyncio.StreamWriter)]
BLOCKING = [("_sock", socket.socket)]


def check(owner: Any, name: str, kind: type) -> None:
    """Fail with the name of the attribute, and where it is used."""
    where = f"redis-py {redis.__version__}: {type(owner).__name__}.{name}"
    assert hasattr(owner, name), f"{where} is gone; server/redis_internals.py uses it"
    actual = type(getattr(owner, name))
    assert issubclass(actual, kind), (
        f"{where} is a {actual.__name__}, no {kind.__name__}; see server/redis_internals.py"
    )


@pytest.mark.parametrize(("name", "kind"), ASYNCIO)
async def test_an_asyncio_connection_of_redis_py_has_its_stream(
    start_server: StartServer, name: str, kind: type
) -> None:
    connection: Any = redis.asyncio.Connection(port=start_server().port, protocol=2)
    await connection.connect()
    try:
        check(connection, name, kind)
    finally:
        await connection.disconnect()


@pytest.mark.parametrize(("name", "kind"), BLOCKING)
def test_a_blocking_connection_of_redis_py_has_its_socket(start_server: StartServer, name: str, kind: type) -> None:
    connection: Any = BlockingConnection(port=start_server().port, protocol=2)
    connection.connect()
    try:
        check(connection, name, kind)
    finally:
        connection.disconnect()


def test_the_parser_of_redis_py_makes_exceptions_of_error_texts() -> None:
    check(redis.connection, "DefaultParser", type)
    assert hasattr(redis.connection.DefaultParser, "parse_error"), "DefaultParser.parse_error is gone"
    assert isinstance(redis_internals.parse_error("NOSCRIPT No matching script."), redis.exceptions.NoScriptError)


async def test_a_connection_whose_stream_was_detached_leaves_it_alone(start_server: StartServer) -> None:
    connection: Any = redis.asyncio.Connection(port=start_server().port, protocol=2)
    await connection.connect()
    writer = redis_internals.detach_stream(connection)
    assert writer is not None
    assert not connection.is_connected
    await connection.disconnect()
    assert not writer.transport.is_closing()
    writer.close()


@pytest.mark.parametrize(("name", "kind"), [*ASYNCIO, *BLOCKING])
def test_an_attribute_that_is_gone_is_named(name: str, kind: type) -> None:
    with pytest.raises(AssertionError, match=rf"\.{name} is gone; server/redis_internals\.py uses it"):
        check(SimpleNamespace(), name, kind)
    with pytest.raises(AssertionError, match=rf"\.{name} is a NoneType, no {kind.__name__}"):
        check(SimpleNamespace(**{name: None}), name, kind)


def test_every_private_attribute_that_is_used_is_checked_here_and_used_there_only() -> None:
    used = set(re.findall(r"\bconnection\.(_\w+)", SOURCE.read_text()))
    assert used == {name for name, _ in (*ASYNCIO, *BLOCKING)}
    package = SOURCE.parents[1]
    files = [file for folder in ("server", "engine") for file in (package / folder).rglob("*.py") if file != SOURCE]
    assert [file.name for file in files if re.search(r"(?<!asyncio)\._\w+\(?.*SLF001|redis\._", file.read_text())] == []


@pytest.mark.parametrize(("ours", "theirs"), [(Pool, redis.asyncio.ConnectionPool), (SyncPool, redis.ConnectionPool)])
def test_our_pools_take_no_private_name_of_those_of_redis_py(ours: type, theirs: type) -> None:
    set_by_ours = set(re.findall(r"self\.(_\w+)(?:: [^=]+)? = ", inspect.getsource(ours)))
    methods_of_ours = {name for name, member in vars(ours).items() if inspect.isfunction(member) and name[:2] != "__"}
    private = set_by_ours | {name for name in methods_of_ours if name.startswith("_")}
    assert len(private) > 3
    assert private & {*vars(theirs()), *dir(theirs)} == set()
