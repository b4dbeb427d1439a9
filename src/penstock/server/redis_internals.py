"""Every private attribute of redis-py that Penstock uses, each behind one function.

redis-py opens connections, since it knows about addresses, TLS and passwords; then Penstock takes over the sockets, for
which redis-py has no public interface. So `pyproject.toml` caps redis-py below the next major version, and
`tests/server/test_redis_internals.py` names the attribute that a newer version has lost.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

from redis.connection import DefaultParser

#: Makes the exception for the text of an error reply. `DefaultParser` is public, but not documented.
parse_error: Callable[[str], Exception] = DefaultParser.parse_error


def stream_writer(connection: Any) -> asyncio.StreamWriter | None:
    """The writer of an asyncio connection, None while that is not connected.

    `_writer`: the only way to the transport. `disconnect()` drops it, so take it before.
    """
    return cast("asyncio.StreamWriter | None", connection._writer)  # noqa: SLF001


def detach_stream(connection: Any) -> asyncio.StreamWriter | None:
    """Take the stream away from an asyncio connection, which then counts as not connected.

    `_reader` and `_writer`: both must go, or the connection would close, or warn about, a socket that it does not own.
    """
    writer = stream_writer(connection)
    connection._reader = connection._writer = None  # noqa: SLF001
    return writer


def socket_of(connection: Any) -> socket.socket:
    """The socket of a blocking connection.

    `_sock`: redis-py only offers its own reading and writing. The connection still owns the socket and closes it.
    """
    return cast("socket.socket", connection._sock)  # noqa: SLF001
