"""One round trip: commands out, answers back, on an event loop and in blocking code."""

from collections.abc import Callable, Sequence
from typing import Any

import hiredis

from penstock.server.paired_redis import roundtrip_shared, unless_lost

Argument = str | bytes | int


async def roundtrip(client: Any, commands: list[bytes]) -> list[Any]:
    """Send commands on the connection that all callers of this client share; return the answers, errors among them."""
    return await roundtrip_shared(client.connection_pool, commands) if commands else []


def roundtrip_sync(
    client: Any, commands: bytes, count: int, timeout: float, is_current: Callable[[], bool]
) -> list[Any]:
    """Send so many commands on a connection that no other thread uses; it is closed unless all answers were read."""
    pool = client.connection_pool
    connection = pool.take()
    try:
        answers: list[Any] = connection.roundtrip(commands, count, timeout, is_current)
    except BaseException:
        connection.close()
        raise
    pool.give_back(connection)
    return unless_lost(answers)


def pack_command(command: Sequence[Argument]) -> bytes:
    packed: bytes = hiredis.pack_command(tuple(command))  # type: ignore[arg-type]  # its stub allows one word only
    return packed


def pack_words(words: Sequence[Argument]) -> bytes:
    """A part of a command: the words without their number in front, so that other words can precede them."""
    packed = pack_command(words)
    return packed[packed.index(b"\n") + 1 :]
