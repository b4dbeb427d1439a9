"""Commands out, answers back, on one of a client's connections, for both kinds of client."""

from collections.abc import Sequence
from typing import Any

import hiredis
from redis import exceptions as redis_errors

Argument = str | bytes | int


async def trip(client: Any, commands: list[bytes]) -> list[Any]:
    """Commands out, answers back, errors among them, on one of the client's connections.

    Its pipeline would do the same with four times the work. A connection whose answers were not all read is closed, so
    that nobody can take them for their own.
    """
    pool = client.connection_pool
    connection = await pool.get_connection()
    try:
        await connection.send_packed_command(b"".join(commands), check_health=False)
        return [await _answer(connection) for _ in commands]
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    finally:
        await pool.release(connection)


async def _answer(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except redis_errors.ResponseError as error:
        return error


def trip_sync(client: Any, commands: list[bytes]) -> list[Any]:
    """The same from blocking code."""
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
