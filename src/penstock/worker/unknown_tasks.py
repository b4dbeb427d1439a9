"""Jobs that this worker cannot run and another may: it does not know their task, or lacks the key of their arguments.

They are snoozed and not charged. A job is buried once no live worker has known its task, or has had the key, for ten
minutes. The start of that time is kept in the job's reason, so that it survives a change of workers.
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
KEY_DELAY: Final = 1_000  #: the same if another worker has the key; it takes the job, or by chance this one does again
MAX_WAIT: Final = 600_000  #: ms until it is buried
WORKERS_TTL: Final = 5.0  #: seconds for which the list of tasks that other workers know is used again
_REASON = re.compile(r"(unknown_task|unknown_key) since (\S+)\Z")


class UnknownTasks:
    """Decides the outcome of jobs whose task, or the key of whose arguments, is not known here."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self._tasks: frozenset[str] = frozenset()  #: that live workers know
        self._keys: frozenset[str] = frozenset()
        self._asked_at = float("-inf")

    async def outcome(self, lease: Lease) -> Outcome:
        task, now = lease.header.task, lease.header.started
        await self._ask()
        if task in self._tasks:
            return Snoozed(MIN_DELAY, "unknown_task")
        since = _since(lease.header.reason, now, "unknown_task")
        if since == now:
            log.warning("job %s: no live worker knows task %r; the job waits for one that does", lease.id, task)
            return Snoozed(MIN_DELAY, "unknown_task")
        if now - since >= MAX_WAIT:
            return Buried("unknown_task", _error(task, since))
        return _snoozed(now - since, since, "unknown_task")

    async def without_key(self, lease: Lease, key: str) -> Outcome:
        """The outcome of a job whose arguments are sealed with a key that this worker does not have."""
        now = lease.header.started
        await self._ask()
        if key in self._keys:
            return Snoozed(KEY_DELAY, "unknown_key")
        since = _since(lease.header.reason, now, "unknown_key")
        if since == now:
            log.warning("job %s: no live worker has key %r; the job waits for one that does", lease.id, key)
            return Snoozed(MIN_DELAY, "unknown_key")
        if now - since >= MAX_WAIT:
            return Buried("undecodable", _key_error(key, since))
        return _snoozed(now - since, since, "unknown_key")

    async def _ask(self) -> None:
        """Find out what live workers know, unless that was done a moment ago."""
        if time.monotonic() - self._asked_at > WORKERS_TTL:
            self._asked_at = time.monotonic()
            try:
                infos = [node.info for node in await self._views.workers()]
                self._tasks, self._keys = (
                    frozenset(name for info in infos for name in _names_in(info, what)) for what in ("tasks", "keys")
                )
            except PenstockError as error:
                log.debug("what other workers know could not be listed: %s", error)


def _snoozed(waited: int, since: int, why: str) -> Outcome:
    return Snoozed(min(max(waited, MIN_DELAY), MAX_DELAY), f"{why} since {_shown(since)}")


def _names_in(info: str, what: str) -> list[str]:
    try:
        names: Any = json.loads(info).get(what, ())
        return [name for name in names if isinstance(name, str)]
    except (ValueError, TypeError, AttributeError):
        return []


def _since(reason: str, now: int, why: str) -> int:
    """Since when it is put off for this, in ms of the server's clock; without a time in the reason, a delay ago."""
    if reason == why:
        return now - MIN_DELAY
    match = _REASON.match(reason)
    try:
        return int(datetime.fromisoformat(match[2]).timestamp() * 1000) if match and match[1] == why else now
    except ValueError:
        return now


def _shown(moment: int) -> str:
    return datetime.fromtimestamp(moment / 1000, UTC).isoformat(timespec="milliseconds")


def _error(task: str, since: int) -> str:
    message = f"no live worker has known task {task!r} since {_shown(since)}: start one that does, then retry the job"
    return _described("UnknownTask", message)


def _key_error(key: str, since: int) -> str:
    message = f"its arguments are sealed with key {key!r}, which no live worker has had since {_shown(since)}"
    return _described("UnknownKey", f"{message}: give it to the workers, then retry the job")


def _described(kind: str, message: str) -> str:
    return json.dumps({"type": kind, "message": message, "traceback": ""})
