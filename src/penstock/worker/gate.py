"""The gate in front of the slots: a suspect, a job that was there at two crashes, runs with nothing beside it.

So the third crash convicts nobody who is innocent. While one waits nothing more is leased; if what runs takes too long,
the suspect is put off instead, and may find a worker that is free.
"""

from collections.abc import Callable
from typing import Final

from penstock.worker.run import Running

CRASHES: Final = 2  #: that make a suspect
PATIENCE: Final = 30.0  #: seconds that a suspect waits until the others have ended
AGAIN: Final = 5_000  #: ms after which one that waited in vain is offered again


class Gate:
    """Who may start: everybody, unless a suspect runs; a suspect, when nobody runs.

    One that runs in a process of its own endangers nobody else.
    """

    def __init__(self, is_apart: Callable[[str], bool]) -> None:
        self._is_apart = is_apart
        self.waiting: list[Running] = []
        self._alone: Running | None = None

    @property
    def closed(self) -> bool:
        """Nothing more should be leased."""
        return self._alone is not None or bool(self.waiting)

    def admits(self, running: Running, others: int) -> bool:
        """Whether it may start while so many others run; if not, it waits here."""
        suspect = self._is_suspect(running)
        if self._alone is not None or (suspect and others):
            self.waiting.append(running)
            return False
        if suspect:
            self._alone = running
        return True

    def _is_suspect(self, running: Running) -> bool:
        ready = running.lease.ready
        return ready.crashes >= CRASHES and not self._is_apart(ready.task)

    def ended(self, running: Running, others: int) -> list[Running]:
        """One has ended: those who may start in its place."""
        if self._alone is running:
            self._alone = None
        waiting, self.waiting = self.waiting, []
        waiting.sort(key=self._is_suspect)
        admitted: list[Running] = []
        for one in waiting:
            if self.admits(one, others + len(admitted)):
                admitted.append(one)
        return admitted

    def give_up(self, running: Running) -> bool:
        """Whether it still waited; it does no more."""
        if running not in self.waiting:
            return False
        self.waiting.remove(running)
        return True
