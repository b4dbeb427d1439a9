"""Settles that outlive whoever asked for them: each is sent until the server has answered it.

A handler may be cancelled while it waits for the answer. If the settle ended with it, nobody would know whether the job
is settled: its slot would be lost, or the job would stay running for as long as its stream lives.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Final

from penstock.engine.engine import Engine
from penstock.engine.transport.connection_health import ConnectionHealth
from penstock.errors import StaleLease, Unavailable
from penstock.worker.settle import SettledRun, settle

log = logging.getLogger("penstock.worker")

CLOSING: Final = 5.0  #: seconds that the settles under way get when their stream closes
LONGEST_PAUSE: Final = 2.0  #: seconds before one is sent again


class SettleRetry:
    """The settles of one stream that are under way, each in a task of its own, so that none holds up another."""

    def __init__(self, engine: Engine, health: ConnectionHealth) -> None:
        self._engine = engine
        self._health = health
        self._tasks: set[asyncio.Task[str]] = set()
        self._open = True

    def begin(self, settled: SettledRun) -> "asyncio.Task[str]":
        """Settle it; the task ends with the server's answer, or with Unavailable if the stream is closed before."""
        if not self._open:
            raise StaleLease(f"job {settled.id} is no longer held by this stream, which was closed")
        task = asyncio.create_task(self._until_answered(settled))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def aclose(self) -> None:
        """Wait for what is under way, but not for ever: what then has no answer goes back with the stream's lease."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSING):
                    while self._tasks:
                        await asyncio.wait(list(self._tasks))
        finally:
            self._open = False
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _until_answered(self, settled: SettledRun) -> str:
        name, pause = f"settle {settled.id}", 0.05
        try:
            while True:
                try:
                    ((_, call),) = settle(self._engine, [settled])
                    (word,) = await call
                except Unavailable as error:
                    self._health.failed(name, error)
                    await self._health.pause(name, pause)
                except Exception as error:  # noqa: BLE001  (the server refuses this one; somebody may mend what is wrong)
                    if pause < LONGEST_PAUSE:
                        log.warning("job %s could not be settled; trying again until it is: %s", settled.id, error)
                    await asyncio.sleep(pause)
                else:
                    self._health.succeeded(name)
                    return word
                pause = min(pause * 2, LONGEST_PAUSE)
        except asyncio.CancelledError:
            raise Unavailable(
                f"the stream was closed before the server answered what became of job {settled.id}: unless it was "
                "settled by then, it runs again"
            ) from None

    def _ended(self, task: "asyncio.Task[str]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, although perhaps nobody waits for it
