"""Whether the server has begun to evict keys while it is in use.

A server that evicts is refused at the connect, but its setting can be changed at any time after that.
"""

import logging
import time
from contextlib import suppress
from typing import Any, Final

from redis.exceptions import RedisError

from penstock.engine.transport.roundtrip import pack_command, roundtrip_sync
from penstock.engine.transport.script_client import ScriptClient
from penstock.server.verify import NO_EVICTION, danger_of, is_refused

log = logging.getLogger("penstock")

CHECK_INTERVAL: float = 60.0  #: seconds; not more often, because the server computes the answer each time
_ANSWER_TIMEOUT: Final = 1.0  #: seconds; renewals wait meanwhile
_COMMAND: Final = pack_command(("INFO", "memory"))
_FIELD: Final = b"maxmemory_policy:"


class EvictionWatch:
    """Checks the policy from time to time while a worker is open, and logs each change.

    It only uses a connection that is open already. If the server is away or hides the policy, nothing is logged.
    """

    def __init__(self, script_client: ScriptClient) -> None:
        self._script_client = script_client
        self._policy = NO_EVICTION  #: the last known
        self._next_at = time.monotonic() + CHECK_INTERVAL

    @property
    def evicts(self) -> bool:
        """Whether jobs are in danger, as far as is known."""
        return is_refused(self._policy)

    async def check(self) -> None:
        """Ask the server, if it is time."""
        if self._is_due() and (connection := self._script_client.endpoint.shared_connection()) is not None:
            with suppress(RedisError, OSError):
                (answer,) = await connection.roundtrip(_COMMAND, 1, _ANSWER_TIMEOUT)
                self._compare(answer)

    def check_sync(self) -> None:
        """The same from blocking code."""
        if self._is_due() and (client := self._script_client.endpoint.open_client_sync()) is not None:
            with suppress(RedisError, OSError):
                (answer,) = roundtrip_sync(client, _COMMAND, 1, _ANSWER_TIMEOUT, lambda: False)
                self._compare(answer)

    def _is_due(self) -> bool:
        now = time.monotonic()
        if now < self._next_at:
            return False
        self._next_at = now + CHECK_INTERVAL
        return True

    def _compare(self, answer: Any) -> None:
        policy = _policy_in(answer)
        if policy is None or policy == self._policy:
            return
        before, self._policy = self.evicts, policy
        if self.evicts:
            log.error("%s.", danger_of(self._script_client.endpoint, policy))
        elif before:
            log.warning(
                "The server %s evicts no keys any more (maxmemory-policy %s).", self._script_client.endpoint, policy
            )


def _policy_in(answer: Any) -> str | None:
    """The policy in an answer to INFO; None if INFO was refused, or leaves it out."""
    lines = answer.splitlines() if isinstance(answer, bytes) else []
    policies = (line.removeprefix(_FIELD).decode() for line in lines if line.startswith(_FIELD))
    return next(policies, None)
