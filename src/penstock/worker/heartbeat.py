"""Who keeps a worker alive and the timer of its namespace: itself, or its supervisor."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from penstock.engine.engine import Engine
from penstock.engine.transport.connection_health import ConnectionHealth
from penstock.worker.renewal_thread import RenewalThread
from penstock.worker.supervisor.shared_state import SharedState
from penstock.worker.timer import Timer


class Heartbeat(Protocol):
    """What a worker asks of it."""

    notes: SharedState | None

    @property
    def valid_until(self) -> float:
        """Until when, by the monotonic clock, nobody else takes the worker's jobs for sure."""

    def begin(self, worker: str, info: dict[str, Any], queues: list[str], valid_until: float) -> None:
        """It goes on under this name, whose lease lasts until then if it is not renewed."""

    def channels(self) -> list[str]:
        """The channels it wants to hear of, beside the worker's own."""

    def letter(self, channel: str, text: bytes) -> None:
        """What was heard there."""

    def rearm(self) -> None:
        """Something may be due earlier than was known."""

    def start(self) -> list[Coroutine[Any, Any, None]]:
        """Loops to run on the worker's event loop."""

    def stop(self) -> None:
        """The worker ends."""

    async def gone(self, worker: str) -> None:
        """It has ended: whatever it still holds goes back."""


class OwnHeartbeat:
    """Inside a program: a thread renews, and the timer turns on the loop."""

    notes: SharedState | None = None

    def __init__(
        self,
        engine: Engine,
        life: int,
        health: ConnectionHealth,
        *,
        lost: Callable[[str], None],
        cancelling: Callable[[str], None],
        moved: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._timer = Timer(engine, life, health, moved=moved)
        self._renewer = RenewalThread(engine, life, lost=lost, cancelling=cancelling)

    @property
    def valid_until(self) -> float:
        return self._renewer.valid_until

    def begin(self, worker: str, info: dict[str, Any], queues: list[str], valid_until: float) -> None:  # noqa: ARG002  (the protocol's)
        self._renewer.worker, self._renewer.valid_until = worker, valid_until

    def channels(self) -> list[str]:
        return self._timer.channels()

    def letter(self, channel: str, text: bytes) -> None:
        self._timer.letter(channel, text)

    def rearm(self) -> None:
        self._timer.rearm()

    def start(self) -> list[Coroutine[Any, Any, None]]:
        self._renewer.start()
        return [self._timer.run()]

    def stop(self) -> None:
        self._renewer.stop()

    async def gone(self, worker: str) -> None:
        more = 1
        while more:
            _, more = await self._engine.retire(worker)
        await self._renewer.ended()


class SupervisedHeartbeat:
    """Under a supervisor, which reads the notes, renews, keeps the timer, and cleans up after the end."""

    def __init__(self, notes: SharedState, say: Callable[..., None]) -> None:
        self.notes: SharedState | None = notes
        self._notes = notes
        self._say = say

    @property
    def valid_until(self) -> float:
        return self._notes.valid_until

    def begin(self, worker: str, info: dict[str, Any], queues: list[str], valid_until: float) -> None:
        self._notes.worker, self._notes.valid_until = worker, valid_until
        self._say("named", worker, info, queues)

    def channels(self) -> list[str]:
        return []

    def letter(self, channel: str, text: bytes) -> None:
        pass

    def rearm(self) -> None:
        pass

    def start(self) -> list[Coroutine[Any, Any, None]]:
        return [self._beat()]

    async def _beat(self) -> None:
        while True:
            self._notes.beat()
            await asyncio.sleep(2)

    def stop(self) -> None:
        pass

    async def gone(self, worker: str) -> None:
        pass
