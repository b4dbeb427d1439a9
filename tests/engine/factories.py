"""Jobs and workers for the tests, made in one line."""

import secrets
from typing import Any

from penstock.engine.engine import Engine, Lease, NewJob
from penstock.job import Header

LIFE = 10_000


def new_job(job_id: str | None = None, *, payload: bytes = b"payload", **fields: Any) -> NewJob:
    """A job to be enqueued; without an id it gets a generated one."""
    header = Header(state="", task=fields.pop("task", "tasks:run"), **fields)
    return NewJob(job_id or secrets.token_hex(10), header, payload)


async def enqueue(engine: Engine, *jobs: NewJob) -> list[str]:
    """Enqueue jobs and give their ids."""
    return [placed.id for placed in await engine.enqueue(jobs)]


class TestWorker:
    """A worker without anything to run jobs: it takes and settles them as it is told."""

    __test__ = False

    def __init__(self, engine: Engine, name: str | None = None, queues: tuple[str, ...] = ("*",)) -> None:
        self.engine = engine
        self.name = name or "w-" + secrets.token_hex(6)
        self.queues = queues
        self.number = 0

    async def register(self) -> "TestWorker":
        assert await self.engine.register(self.name, LIFE, "{}", self.queues) == "ok"
        return self

    async def lease(self, want: int = 1) -> list[Lease]:
        """Take jobs under the next call number."""
        self.number += 1
        leased = await self.engine.lease(
            self.name, self.number, queues=self.queues, want=want, answered=self.number - 1
        )
        assert leased.word == "ok", leased
        return leased.leases

    async def complete(self, lease: Lease, result: bytes = b"") -> str:
        return (await self.engine.complete(self.name, [(lease.id, call_of(lease), result)]))[0]

    async def retry(self, lease: Lease, delay: int = 0, error: str = "{}") -> str:
        return (await self.engine.retry(self.name, [(lease.id, call_of(lease), delay, "error", error)]))[0]

    async def bury(self, lease: Lease, reason: str = "failed", error: str = "{}") -> str:
        return (await self.engine.bury(self.name, [(lease.id, call_of(lease), reason, error)]))[0]

    async def release(self, lease: Lease) -> str:
        return (await self.engine.release(self.name, [(lease.id, call_of(lease))]))[0]

    async def snooze(self, lease: Lease, delay: int, reason: str = "snoozed") -> str:
        return (await self.engine.snooze(self.name, [(lease.id, call_of(lease), delay, reason)]))[0]


def call_of(lease: Lease) -> int:
    """The call number of the attempt that holds this lease."""
    return int(lease.header.claim.split("\x1f")[1])
