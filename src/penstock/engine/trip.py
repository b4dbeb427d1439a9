"""Commands out, answers back, for both kinds of client."""

from collections.abc import Sequence
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
    pipe = await client.connection_pool.pipe()
    answers: list[Any] = await pipe.trip(b"".join(commands), len(commands))
    for answer in answers:
        if isinstance(answer, redis_errors.ConnectionError):  # such as: it is loading its data
            raise answer
    return answers


def trip_sync(client: Any, commands: list[bytes]) -> list[Any]:
    """The same from blocking code, on one of its connections. If not all answers were read, that is closed."""
    pool = client.connection_pool
    connection = pool.get_connection()
    try:
        connection.send_packed_command([b"".join(commands)], check_health=False)
        return [_answer_sync(connection) for _ in commands]
    except BaseException:
        connection.disconnect()
        raise
    finally:
        pool.release(connection)


def _answer_sync(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis_errors.ResponseError as error:
        return error


def packed(command: Sequence[Argument]) -> bytes:
    made: bytes = hiredis.pack_command(tuple(command))  # type: ignore[arg-type]  # its stub allows one word only
    return made


def words(command: Sequence[Argument]) -> bytes:
    """The same without the number of its words in front, so that others can be put before them."""
    made = packed(command)
    return made[made.index(b"\n") + 1 :]
