"""redis-py's commands over connections whose answers pair with their commands (`connection.py`).

Its own connections trust that the next reply is the answer to the last command. One that a proxy passes on twice would
be read as the answer to the next question. Only pub/sub and commands that block have connections of redis-py.
"""

from collections.abc import Sequence
from typing import Any, Final

import redis
import redis.asyncio
from hiredis import pack_command
from redis import exceptions as redis_errors
from redis.asyncio.client import Pipeline as AsyncPipeline
from redis.client import Pipeline

Command = tuple[Any, ...]
BLOCKING: Final = frozenset({"BLPOP", "BRPOP", "BLMOVE", "BZPOPMIN", "BZPOPMAX", "WAIT", "WAITAOF"})


async def roundtrip_shared(pool: Any, commands: Sequence[bytes]) -> list[Any]:
    """Send commands on the connection that all callers of this pool share; return their answers, errors among them.

    If the caller is cancelled, the answers still come and are dropped: no other call can get them.
    """
    connection = await pool.shared()
    if connection.is_crowded:
        await connection.wait_for_turn()
        connection = await pool.shared()  # it may have been closed meanwhile, or be slow
    answers: list[Any] = await connection.roundtrip(b"".join(commands), len(commands))
    return unless_lost(answers)


def unless_lost(answers: list[Any]) -> list[Any]:
    """The answers; raised is the first that says that the connection is of no use, such as: it is loading its data."""
    for answer in answers:
        if isinstance(answer, redis_errors.ConnectionError):
            raise answer
    return answers


class PairedRedis(redis.asyncio.Redis):
    """A client for one event loop."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send one command; called by redis-py's methods."""
        if args[0] in BLOCKING or "BLOCK" in args or b"BLOCK" in args:  # all on the shared connection would wait
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        (answer,) = await self.answers([args])
        return _read(self, args, answer, options)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> "PairedPipeline":  # noqa: FBT001, FBT002, ARG002  (redis-py's)
        return PairedPipeline(self, transaction=transaction)

    async def answers(self, commands: Sequence[Command]) -> list[Any]:
        return await roundtrip_shared(self.connection_pool, [_packed(command) for command in commands])


class PairedPipeline(AsyncPipeline):
    """Several commands in one round trip."""

    def __init__(self, client: PairedRedis, *, transaction: bool) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, transaction, None)
        self._client = client

    async def execute(self, raise_on_error: bool = True) -> list[Any]:  # noqa: FBT001, FBT002  (redis-py's)
        stack, self.command_stack = list(self.command_stack), []
        if not stack:
            return []
        answers = await self._client.answers(_wrapped(stack, in_transaction=self.is_transaction))
        return _read_all(self._client, stack, answers, in_transaction=self.is_transaction, raises=raise_on_error)


class PairedSyncRedis(redis.Redis):
    """A client for blocking code."""

    def __init__(self, pool: redis.ConnectionPool, timeout: float) -> None:
        super().__init__(connection_pool=pool)
        self._timeout = timeout  #: seconds that an answer may take

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send one command; called by redis-py's methods."""
        (answer,) = self.answers([args])
        return _read(self, args, answer, options)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> "PairedSyncPipeline":  # noqa: FBT001, FBT002, ARG002  (redis-py's)
        return PairedSyncPipeline(self, transaction=transaction)

    def answers(self, commands: Sequence[Command]) -> list[Any]:
        pool: Any = self.connection_pool
        connection = pool.take()
        packed = b"".join(map(_packed, commands))
        try:
            answers: list[Any] = connection.roundtrip(packed, len(commands), self._timeout, lambda: True)
        except OSError as error:
            connection.close()
            raise redis_errors.ConnectionError(str(error)) from error
        except BaseException:
            connection.close()
            raise
        pool.give_back(connection)
        return unless_lost(answers)


class PairedSyncPipeline(Pipeline):
    """The same for blocking code."""

    def __init__(self, client: PairedSyncRedis, *, transaction: bool) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, transaction, None)
        self._client = client
        self._in_transaction = transaction

    def execute(self, raise_on_error: bool = True) -> list[Any]:  # noqa: FBT001, FBT002  (redis-py's)
        stack, self.command_stack = list(self.command_stack), []
        if not stack:
            return []
        answers = self._client.answers(_wrapped(stack, in_transaction=self._in_transaction))
        return _read_all(self._client, stack, answers, in_transaction=self._in_transaction, raises=raise_on_error)


def _packed(command: Command) -> bytes:
    """As redis-py packs it: a name of two words is two arguments."""
    name, *rest = command
    words = name.split() if isinstance(name, str | bytes) else [name]
    packed: bytes = pack_command((*words, *map(_plain, rest)))
    return packed


def _plain(value: Any) -> Any:
    return repr(value) if isinstance(value, float) else value


def _wrapped(stack: Sequence[Any], *, in_transaction: bool) -> list[Command]:
    commands = [args for args, _ in stack]
    return [("MULTI",), *commands, ("EXEC",)] if in_transaction else commands


def _read_all(
    client: Any, stack: Sequence[Any], answers: list[Any], *, in_transaction: bool, raises: bool
) -> list[Any]:
    if in_transaction:
        refused = next((answer for answer in answers if isinstance(answer, Exception)), None)
        if refused is not None:
            raise refused
        answers = answers[-1]
    values: list[Any] = []
    for (args, options), answer in zip(stack, answers, strict=True):
        try:
            values.append(_read(client, args, answer, options))
        except redis_errors.ResponseError as error:
            if raises:
                raise
            values.append(error)
    return values


def _read(client: Any, args: Command, answer: Any, options: dict[str, Any]) -> Any:
    """An answer as redis-py's method gives it."""
    if isinstance(answer, Exception):
        raise answer
    options = {name: value for name, value in options.items() if name != "keys"}  # its cache's
    callback = client.response_callbacks.get(args[0])
    return answer if callback is None else callback(answer, **options)
