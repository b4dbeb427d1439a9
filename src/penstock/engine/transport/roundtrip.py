"""Commands out, answers back, for both kinds of client."""

from collections.abc import Callable, Sequence
from typing import Any

import hiredis

from penstock.server.paired_redis import post, unless_lost

Argument = str | bytes | int


async def roundtrip(client: Any, commands: list[bytes]) -> list[Any]:
    """Commands out, answers back, errors among them, on the connection that all trips of this client share."""
    if not commands:
        return []
    return await post(client.connection_pool, commands)


def roundtrip_sync(client: Any, commands: bytes, count: int, within: float, is_right: Callable[[], bool]) -> list[Any]:
    """So many commands from blocking code, on a connection of its own. If not all answers were read, that is closed."""
    pool = client.connection_pool
    wire = pool.take()
    try:
        answers: list[Any] = wire.trip(commands, count, within, is_right)
    except BaseException:
        wire.close()
        raise
    pool.give_back(wire)
    return unless_lost(answers)


def packed(command: Sequence[Argument]) -> bytes:
    made: bytes = hiredis.pack_command(tuple(command))  # type: ignore[arg-type]  # its stub allows one word only
    return made


def words(command: Sequence[Argument]) -> bytes:
    """The same without the number of its words in front, so that others can be put before them."""
    made = packed(command)
    return made[made.index(b"\n") + 1 :]
