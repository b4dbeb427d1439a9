"""Jobs of tasks that this worker does not know: newer code may know them, so they are snoozed and not charged.

A job is buried once no live worker has known its task for ten minutes. The start of that time is kept in the job's
reason, so that it survives a change of workers.
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

MIN_DELAY: Final = 5_000  #: ms until such a job is offered again
MAX_DELAY: Final = 60_000
MAX_WAIT: Final = 600_000  #: ms until it is buried
WORKERS_TTL: Final = 5.0  #: seconds for which the list of tasks that other workers know is used again
_REASON = re.compile(r"unknown_task since (\S+)\Z")


class UnknownTasks:
    """Decides the outcome of jobs whose task is not known here."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self._known: frozenset[str] = frozenset()
        self._asked_at = float("-inf")

    async def outcome(self, lease: Lease) -> Outcome:
        task, now = lease.header.task, lease.header.started
        if task in await self._known_elsewhere():
            return Snoozed(MIN_DELAY, "unknown_task")
        since = _since(lease.header.reason, now)
        if since == now:
            log.warning("job %s: no live worker knows task %r; the job waits for one that does", lease.id, task)
            return Snoozed(MIN_DELAY, "unknown_task")
        if now - since >= MAX_WAIT:
            return Buried("unknown_task", _error(task, since))
        return Snoozed(min(max(now - since, MIN_DELAY), MAX_DELAY), f"unknown_task since {_shown(since)}")

    async def _known_elsewhere(self) -> frozenset[str]:
        if time.monotonic() - self._asked_at > WORKERS_TTL:
            self._asked_at = time.monotonic()
            try:
                self._known = frozenset(task for node in await self._views.workers() for task in _tasks_in(node.info))
            except PenstockError as error:
                log.debug("the tasks of other workers could not be listed: %s", error)
        return self._known


def _tasks_in(info: str) -> list[str]:
    try:
        tasks: Any = json.loads(info)["tasks"]
        return [task for task in tasks if isinstance(task, str)]
    except (ValueError, TypeError, KeyError):
        return []


def _since(reason: str, now: int) -> int:
    """When the task was last known, in ms of the server's clock; without a time in the reason, a delay ago."""
    if reason == "unknown_task":
        return now - MIN_DELAY
    match = _REASON.match(reason)
    try:
        return int(datetime.fromisoformat(match[1]).timestamp() * 1000) if match else now
    except ValueError:
        return now


def _shown(moment: int) -> str:
    return datetime.fromtimestamp(moment / 1000, UTC).isoformat(timespec="milliseconds")


def _error(task: str, since: int) -> str:
    message = f"no live worker has known task {task!r} since {_shown(since)}: start one that does, then retry the job"
    return json.dumps({"type": "UnknownTask", "message": message, "traceback": ""})
