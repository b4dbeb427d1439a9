"""The least that a job queue can do with a script, as a yardstick.

It takes a hundred jobs, stores who holds them, decodes them, runs each as an asyncio task, and settles them with the
next call. It keeps no states, attempts, retries, events or counts.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from penstock.model.header import new_id

PAGE: Final = 100
_POLL_INTERVAL: Final = 2  #: seconds that an idle loop waits for a wake-up

_PUT: Final = """#!lua
local fields, members = {}, {}
for i = 1, #ARGV, 2 do
  fields[i], fields[i + 1] = ARGV[i], ARGV[i + 1]
  members[i], members[i + 1] = i, ARGV[i]
end
redis.call('HSET', KEYS[1], unpack(fields))
redis.call('ZADD', KEYS[2], unpack(members))
if redis.call('LLEN', KEYS[3]) == 0 then redis.call('RPUSH', KEYS[3], '') end
return #ARGV / 2
"""
_TAKE: Final = """#!lua
if #ARGV > 1 then
  redis.call('HDEL', KEYS[3], unpack(ARGV, 2))
  redis.call('HDEL', KEYS[1], unpack(ARGV, 2))
end
local popped, ids, leases = redis.call('ZPOPMIN', KEYS[2], ARGV[1]), {}, {}
for i = 1, #popped, 2 do
  ids[#ids + 1] = popped[i]
  leases[#leases + 1], leases[#leases + 2] = popped[i], 'w'
end
if #ids == 0 then return {} end
redis.call('HSET', KEYS[3], unpack(leases))
return { ids, redis.call('HMGET', KEYS[1], unpack(ids)) }
"""


class Bare:
    """Jobs are any data that msgpack carries; `run` gets it back."""

    def __init__(self, client: Any, name: str | None = None) -> None:
        self._client = client
        tag = name or secrets.token_hex(4)
        self._payloads, self._ready, self._leases, self._wake = self.keys = [
            f"penstock-bare:{{{tag}}}:{key}" for key in ("payloads", "ready", "leases", "wake")
        ]
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder().decode
        self._put = self._take = ""

    async def open(self) -> "Bare":
        self._put = await self._client.script_load(_PUT)
        self._take = await self._client.script_load(_TAKE)
        return self

    async def put(self, jobs: Sequence[Any]) -> None:
        """Store jobs, a page per round trip."""
        for first in range(0, len(jobs), PAGE):
            await self._client.evalsha(*self.putting(jobs[first : first + PAGE]))

    def putting(self, jobs: Sequence[Any]) -> list[Any]:
        """The script that stores a page of jobs, with its keys and arguments, for any client."""
        arguments = [self._put, 3, self._payloads, self._ready, self._wake]
        for job in jobs:
            arguments += (new_id(), self._encode(job))
        return arguments

    async def drain(self, run: Callable[[Any], Awaitable[None]]) -> None:
        """Until there is nothing left."""

        async def job(payload: bytes) -> None:
            await run(self._decode(payload))

        keys = self._payloads, self._ready, self._leases
        settled: list[bytes] = []
        while taken := await self._client.evalsha(self._take, 3, *keys, PAGE, *settled):
            settled, payloads = taken
            await asyncio.gather(*(asyncio.create_task(job(payload)) for payload in payloads))

    async def work(self, run: Callable[[Any], Awaitable[None]]) -> None:
        """Drain, then wait to be woken, for ever."""
        while True:
            await self.drain(run)
            await self._client.blpop([self._wake], timeout=_POLL_INTERVAL)
