"""Tasks that this worker does not know: newer code may, so their jobs are put off and not charged.

Only when no live worker has known a task for ten minutes is its job buried. Since when that is so stands in the job's
reason, so that it holds across workers and their restarts.
"""

import json
import logging
import re
import time
from datetime import UTC, datetime
from typing import Any, Final

from penstock.engine.answers import Lease
from penstock.engine.read.views import Views
from penstock.errors import PenstockError
from penstock.worker.outcome import Buried, Outcome, Snoozed

log = logging.getLogger("penstock.worker")

SHORTEST: Final = 5_000  #: ms until such a job is offered again
LONGEST: Final = 60_000
PATIENCE: Final = 600_000  #: ms
_ASK: Final = 5.0  #: seconds for which an answer about the other workers holds
_SINCE = re.compile(r"unknown_task since (\S+)\Z")


class UnknownTasks:
    """Decides what becomes of jobs whose task is not known here."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self._known: frozenset[str] = frozenset()
        self._asked = float("-inf")

    async def outcome(self, lease: Lease) -> Outcome:
        task, now = lease.header.task, lease.header.started
        if task in await self._known_elsewhere():
            return Snoozed(SHORTEST, "unknown_task")
        since = _since(lease.header.reason, now)
        if since == now:
            log.warning("job %s: no live worker knows task %r; the job waits for one that does", lease.id, task)
            return Snoozed(SHORTEST, "unknown_task")
        if now - since >= PATIENCE:
            return Buried("unknown_task", _error(task, since))
        return Snoozed(min(max(now - since, SHORTEST), LONGEST), f"unknown_task since {_shown(since)}")

    async def _known_elsewhere(self) -> frozenset[str]:
        if time.monotonic() - self._asked > _ASK:
            self._asked = time.monotonic()
            try:
                self._known = frozenset(task for node in await self._views.workers() for task in _tasks(node.info))
            except PenstockError as error:
                log.debug("which tasks other workers know could not be asked: %s", error)
        return self._known


def _tasks(info: str) -> list[str]:
    try:
        found: Any = json.loads(info)["tasks"]
        return [task for task in found if isinstance(task, str)]
    except (ValueError, TypeError, KeyError):
        return []


def _since(reason: str, now: int) -> int:
    """Since when nobody knows it, in ms of the server's clock; a reason without a time was given the shortest ago."""
    if reason == "unknown_task":
        return now - SHORTEST
    found = _SINCE.match(reason)
    try:
        return int(datetime.fromisoformat(found[1]).timestamp() * 1000) if found else now
    except ValueError:
        return now


def _shown(moment: int) -> str:
    return datetime.fromtimestamp(moment / 1000, UTC).isoformat(timespec="milliseconds")


def _error(task: str, since: int) -> str:
    message = f"no live worker has known task {task!r} since {_shown(since)}: start one that does, then retry the job"
    return json.dumps({"type": "UnknownTask", "message": message, "traceback": ""})
