"""Whether the server has begun to evict keys while it is in use.

One that evicts is refused when it is connected to, but its setting can be changed at any time after that.
"""

import logging
import time
from contextlib import suppress
from typing import Any, Final

from redis.exceptions import RedisError

from penstock.engine.transport.roundtrip import packed, roundtrip_sync
from penstock.engine.transport.script_client import ScriptClient
from penstock.server.verify import NO_EVICTION, danger_of, is_refused

log = logging.getLogger("penstock")

INTERVAL: float = 60.0  #: seconds between two looks: rare, because the server puts the answer together anew
WITHIN: Final = 1.0  #: seconds that it may take to answer; renewals of leases wait for that
_QUESTION: Final = packed(("INFO", "memory"))
_FIELD: Final = b"maxmemory_policy:"


class EvictionWatch:
    """Looks at the policy now and then for as long as a worker is open, and logs each change.

    It asks on a connection that is open already. If the server is away or does not tell, nothing is said.
    """

    def __init__(self, script_client: ScriptClient) -> None:
        self._script_client = script_client
        self._policy = NO_EVICTION  #: the last that was heard of
        self._next_at = time.monotonic() + INTERVAL

    @property
    def evicts(self) -> bool:
        """Whether jobs are in danger, as far as is known."""
        return is_refused(self._policy)

    async def look(self) -> None:
        """Ask the server, if it is time."""
        if self._is_due() and (pipe := self._script_client.endpoint.pipe()) is not None:
            with suppress(RedisError, OSError):
                (answer,) = await pipe.post(_QUESTION, 1, WITHIN)
                self._compare(answer)

    def look_sync(self) -> None:
        """The same from blocking code."""
        if self._is_due() and (client := self._script_client.endpoint.at_hand_sync()) is not None:
            with suppress(RedisError, OSError):
                (answer,) = roundtrip_sync(client, _QUESTION, 1, WITHIN, lambda: False)
                self._compare(answer)

    def _is_due(self) -> bool:
        now = time.monotonic()
        if now < self._next_at:
            return False
        self._next_at = now + INTERVAL
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
    """What the answer to INFO says; None if it was refused, or leaves this out."""
    lines = answer.splitlines() if isinstance(answer, bytes) else []
    found = (line.removeprefix(_FIELD).decode() for line in lines if line.startswith(_FIELD))
    return next(found, None)
