"""How one run of a job ended, as data."""

import json
import logging
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.backoff import Backoff, Delays
from penstock.engine.answers import Lease
from penstock.options import exception_name
from penstock.steer import Bury, Retry, Snooze
from penstock.times import show
from penstock.worker.trace import trace_of

log = logging.getLogger("penstock.worker")

MESSAGE: Final = 2_000  #: characters of an error's message that are kept
TRACE: Final = 16_000  #: characters of its traceback


class Done(msgspec.Struct, frozen=True, gc=False):
    """It returned."""

    result: bytes


class Again(msgspec.Struct, frozen=True, gc=False):
    """It failed and is tried again after a delay in ms."""

    delay: int
    reason: str
    error: str


class Dead(msgspec.Struct, frozen=True, gc=False):
    """It failed for good."""

    reason: str
    error: str


class Later(msgspec.Struct, frozen=True, gc=False):
    """It was put off; no attempt used."""

    delay: int
    reason: str


class Crashed(msgspec.Struct, frozen=True, gc=False):
    """The process that ran it died."""

    cause: str


class Back(msgspec.Struct, frozen=True, gc=False):
    """It was stopped from outside, or never started; no attempt used."""


Outcome = Done | Again | Dead | Later | Crashed | Back


class NotStarted(Exception):
    """The worker stops, and this job's turn had not come."""


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
    """The outcome of a run that raised."""
    match error:
        case Snooze():
            return Later(getattr(error, "delay", 1_000), "snoozed")
        case Bury():
            return Dead(_clean(getattr(error, "reason", "")) or "buried", describe(error))
        case ProcessDied() | NotStarted():
            return Crashed(describe(error)) if isinstance(error, ProcessDied) else Back()
    failures, described = lease.ready.failures + 1, describe(error)
    asked = getattr(error, "delay", None) if isinstance(error, Retry) else None
    delay = policy.backoff.after(failures) if asked is None else int(asked)
    if not isinstance(error, Retry) and not _worth_another(error, policy):
        return Dead("given_up", described)
    if failures > lease.ready.retries:
        return Dead("retries_exhausted", described)
    kind = error.type if isinstance(error, Raised) else type(error).__name__
    return Again(delay, _clean(kind), described)


def tell(lease: Lease, outcome: Outcome) -> None:
    """One line in the log about how a run ended."""
    attempt, told = lease.attempt, {"job": lease.id, "task": lease.ready.task, "attempt": lease.attempt}
    match outcome:
        case Done():
            log.debug("attempt %d is done", attempt, extra=told)
        case Again(delay, _, error):
            log.warning("attempt %d failed, the next is in %s: %s", attempt, show(delay), _line(error), extra=told)
        case Dead(reason, error):
            log.error("attempt %d failed, the job is buried (%s): %s", attempt, reason, _line(error), extra=told)
        case Crashed(cause):
            log.error("attempt %d took its process with it: %s", attempt, _line(cause), extra=told)
        case Later(delay, reason):
            log.info("put off for %s (%s)", show(delay), reason, extra=told)
        case Back():
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
    if isinstance(error, Raised):
        return error.described
    try:
        message = str(error)
    except BaseException as broken:  # noqa: BLE001  (an exception whose __str__ raises is still an error to be shown)
        message = f"(its text cannot be shown: {type(broken).__name__})"
    try:
        trace = trace_of(error)
    except BaseException as broken:  # noqa: BLE001  (the same)
        trace = f"(its traceback cannot be shown: {type(broken).__name__})"
    return json.dumps(
        {"type": type(error).__name__, "message": _cut(message, MESSAGE), "traceback": _cut(trace, TRACE)},
        ensure_ascii=True,
    )


def _cut(text: str, most: int) -> str:
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= most else f"{text[: most // 4]}\n…\n{text[-most * 3 // 4 :]}"


def _clean(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in str(text))[:200]
