"""How one run of a job ended, as data."""

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.engine.answers import Lease
from penstock.model.backoff import Backoff, Delays
from penstock.model.codec import storable
from penstock.model.control_flow import Bury, Retry, Snooze
from penstock.model.durations import milliseconds, show
from penstock.model.options import exception_name
from penstock.worker.tracebacks import trace_of

log = logging.getLogger("penstock.worker")

MESSAGE: Final = 2_000  #: characters of an error's message that are kept
AGAIN: Final = 5_000  #: ms until a job that could not be started is offered again
TRACE: Final = 16_000  #: characters of its traceback
NAME: Final = 200  #: characters of its class's name

# The name that a class was made with, whatever its metaclass says.
_name_of: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__


class Completed(msgspec.Struct, frozen=True, gc=False):
    """It returned."""

    result: bytes


class Retried(msgspec.Struct, frozen=True, gc=False):
    """It failed and is tried again after a delay in ms."""

    delay: int
    reason: str
    error: str


class Buried(msgspec.Struct, frozen=True, gc=False):
    """It failed for good."""

    reason: str
    error: str


class Snoozed(msgspec.Struct, frozen=True, gc=False):
    """It was put off; no attempt used."""

    delay: int
    reason: str


class Crashed(msgspec.Struct, frozen=True, gc=False):
    """The process that ran it died."""

    cause: str


class Released(msgspec.Struct, frozen=True, gc=False):
    """It was stopped from outside, or never started; no attempt used."""


Outcome = Completed | Retried | Buried | Snoozed | Crashed | Released


class NotStarted(Exception):
    """The job has not begun: its worker stops, or does not have it any more."""


class NoProcess(Exception):
    """No process could be started for this job."""


class NotFound(Exception):
    """The process of a job does not find its task."""


class ProcessDied(Exception):
    """The process of a job ended without an answer."""


class Raised(Exception):
    """What a job raised in a process of its own: the names of its classes, and its description."""

    def __init__(self, names: frozenset[str], described: str) -> None:
        self.names, self.described = names, described
        found = json.loads(described)
        self.type: str = found["type"]
        super().__init__(f"{found['type']}: {found['message']}")


@dataclass(frozen=True, slots=True)
class Policy:
    """What decides between another try and the dead letter."""

    backoff: Backoff | Delays
    retry_on: tuple[str, ...] | None
    give_up_on: tuple[str, ...]


def judge(lease: Lease, error: BaseException, policy: Policy) -> Outcome:
    """The outcome of a run that raised, whatever the error's own attributes and methods do."""
    try:
        return _judged(lease, error, policy)
    except BaseException:  # noqa: BLE001  (an error that cannot be asked what it is, is a failure like any other)
        return _failed(lease, error, policy)


def _judged(lease: Lease, error: BaseException, policy: Policy) -> Outcome:
    match error:
        case Snooze():
            return Snoozed(_delay(getattr(error, "delay", 1_000)), "snoozed")
        case Bury():
            return Buried(_clean(getattr(error, "reason", "")) or "buried", describe(error))
        case ProcessDied():
            return Crashed(describe(error))
        case NotStarted() | NoProcess():
            return Snoozed(AGAIN, "no_process") if isinstance(error, NoProcess) else Released()
    if isinstance(error, Retry):
        asked = getattr(error, "delay", None)
        return _failed(lease, error, policy, None if asked is None else _delay(asked))
    return _failed(lease, error, policy) if _worth_another(error, policy) else Buried("given_up", describe(error))


def _failed(lease: Lease, error: BaseException, policy: Policy, asked: int | None = None) -> Outcome:
    failures, described = lease.ready.failures + 1, describe(error)
    if failures > lease.ready.retries:
        return Buried("retries_exhausted", described)
    kind = error.type if type(error) is Raised else _name_of(type(error))
    return Retried(policy.backoff.after(failures) if asked is None else asked, _clean(kind), described)


def _delay(value: object) -> int:
    """What was checked when the error was made, and may have been changed since."""
    return milliseconds(int(value) / 1000, "delay")  # type: ignore[call-overload]


def tell(lease: Lease, outcome: Outcome) -> None:
    """One line in the log about how a run ended; a program whose logging fails loses no more than the line."""
    with suppress(Exception):
        _tell(lease, outcome)


def _tell(lease: Lease, outcome: Outcome) -> None:
    attempt, told = lease.attempt, {"job": lease.id, "task": lease.ready.task, "attempt": lease.attempt}
    match outcome:
        case Completed():
            log.debug("attempt %d is done", attempt, extra=told)
        case Retried(delay, _, error):
            log.warning("attempt %d failed, the next is in %s: %s", attempt, show(delay), _line(error), extra=told)
        case Buried(reason, error):
            log.error("attempt %d failed, the job is buried (%s): %s", attempt, reason, _line(error), extra=told)
        case Crashed(cause):
            log.error("attempt %d took its process with it: %s", attempt, _line(cause), extra=told)
        case Snoozed(delay, reason):
            log.info("put off for %s (%s)", show(delay), reason, extra=told)
        case Released():
            log.info("attempt %d was stopped, the job goes back", attempt, extra=told)


def _line(error: str) -> str:
    found = json.loads(error)
    return _clean(f"{found['type']}: {found['message']}")


def _worth_another(error: BaseException, policy: Policy) -> bool:
    names = names_of(error)
    if names & set(policy.give_up_on):
        return False
    return policy.retry_on is None or bool(names & set(policy.retry_on))


def names_of(error: BaseException) -> frozenset[str]:
    """How its class and the parents of that are named across processes."""
    return error.names if isinstance(error, Raised) else frozenset(map(exception_name, type(error).__mro__))


def describe(error: BaseException) -> str:
    """An error as bounded JSON, whatever its own methods do."""
    if type(error) is Raised:
        return error.described
    told = {
        "type": _shown("name", lambda: _name_of(type(error)), NAME),
        "message": _shown("text", lambda: str(error), MESSAGE),
        "traceback": _shown("traceback", lambda: trace_of(error), TRACE),
    }
    return json.dumps(told, ensure_ascii=True)


def _shown(what: str, make: Callable[[], str], most: int) -> str:
    """A text that the error gives: bounded, such that it can be stored, and something else if it cannot be given."""
    try:
        return _cut(make(), most)
    except BaseException as broken:  # noqa: BLE001  (an exception whose __str__ raises is still an error to be shown)
        return f"(its {what} cannot be shown: {_name_of(type(broken))})"


def _cut(text: str, most: int) -> str:
    if len(text) > most:
        text = f"{text[: most // 4]}\n…\n{text[-most * 3 // 4 :]}"
    return storable(text, most + 3)


def _clean(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in storable(str(text), 200))[:200]
