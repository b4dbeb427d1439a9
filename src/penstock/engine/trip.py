"""Commands out, answers back, for both kinds of client."""

from collections.abc import Callable, Sequence
from typing import Any

import hiredis
from redis import exceptions as redis_errors

Argument = str | bytes | int


async def trip(client: Any, commands: list[bytes]) -> list[Any]:
    """Commands out, answers back, errors among them, on the connection that all trips of this client share.

    Who is cancelled leaves it as it is: the answers still come, and nobody can take them for their own.
    """
    if not commands:
        return []
    pool = client.connection_pool
    pipe = await pool.pipe()
    if pipe.is_crowded:
        await pipe.wait_for_turn()
        pipe = await pool.pipe()  # it may have ended meanwhile, or be late
    answers: list[Any] = await pipe.post(b"".join(commands), len(commands))
    return _unless_lost(answers)


def trip_sync(client: Any, commands: bytes, count: int, within: float, is_right: Callable[[], bool]) -> list[Any]:
    """So many commands from blocking code, on a connection of its own. If not all answers were read, that is closed."""
    pool = client.connection_pool
    wire = pool.take()
    try:
        answers: list[Any] = wire.trip(commands, count, within, is_right)
    except BaseException:
        wire.close()
        raise
    pool.give_back(wire)
    return _unless_lost(answers)


def _unless_lost(answers: list[Any]) -> list[Any]:
    for answer in answers:
        if isinstance(answer, redis_errors.ConnectionError):  # such as: it is loading its data
            raise answer
    return answers


def packed(command: Sequence[Argument]) -> bytes:
    made: bytes = hiredis.pack_command(tuple(command))  # type: ignore[arg-type]  # its stub allows one word only
    return made


def words(command: Sequence[Argument]) -> bytes:
    """The same without the number of its words in front, so that others can be put before them."""
    made = packed(command)
    return made[made.index(b"\n") + 1 :]
