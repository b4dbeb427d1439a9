"""How one run of a job ended, as data; and what decides whether a failed job is tried again."""

import json
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.engine.answers import Lease
from penstock.model import backoff
from penstock.model.backoff import Backoff, Delays
from penstock.model.codec import Envelope, decode_any, storable
from penstock.model.control_flow import Bury, Retry, Snooze
from penstock.model.durations import milliseconds, show
from penstock.model.options import TaskOptions, exception_name
from penstock.model.payload_codec import Codecs
from penstock.model.redaction import without_secrets
from penstock.worker.tracebacks import trace_of

log = logging.getLogger("penstock.worker")

NOT_STARTED_DELAY: Final = 5_000  #: ms until a job that could not be started is offered again
MAX_ERROR_TYPE: Final = 200  #: characters of the class's name of an error that are kept
MAX_ERROR_MESSAGE: Final = 2_000
MAX_TRACEBACK: Final = 16_000
MAX_REASON: Final = 200

# The name that a class was made with, whatever its metaclass says.
_class_name: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__


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
    """The job has not begun: its worker stops, or no longer holds it."""


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
        fields = json.loads(described)
        self.type: str = fields["type"]
        super().__init__(f"{fields['type']}: {fields['message']}")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Which errors are tried again, and after how long."""

    backoff: Backoff | Delays
    retry_on: tuple[str, ...] | None
    give_up_on: tuple[str, ...]


def retry_policy(options: TaskOptions, envelope: Envelope | None) -> RetryPolicy:
    """What the task says, unless the job says otherwise."""
    if envelope is None:
        return RetryPolicy(options.backoff, options.retry_on, options.give_up_on)
    return RetryPolicy(
        backoff.unpack(tuple(envelope.backoff)) if envelope.backoff else options.backoff,
        options.retry_on if envelope.retry_on is None else tuple(envelope.retry_on),
        options.give_up_on if envelope.give_up_on is None else tuple(envelope.give_up_on),
    )


Hide = Callable[[str], str]  #: hides in a text what nobody may read


def hide_nothing(text: str) -> str:
    return text


def hide_arguments(envelope: Envelope, redact: Collection[str]) -> Hide:
    """Hides the values of arguments that nobody may see, by `redact` of the job and its task, or by their names."""
    return without_secrets(lambda: decode_any(bytes(envelope.args)), {*redact, *envelope.redact})


def outcome_of(lease: Lease, error: BaseException, policy: RetryPolicy, hide: Hide = hide_nothing) -> Outcome:
    """The outcome of a run that raised, whatever the error's own attributes and methods do."""
    try:
        return _outcome_of(lease, error, policy, hide)
    except BaseException:  # noqa: BLE001  (an error that cannot be asked what it is, is a failure like any other)
        return _failed(lease, error, policy, hide)


def _outcome_of(lease: Lease, error: BaseException, policy: RetryPolicy, hide: Hide) -> Outcome:
    match error:
        case Snooze():
            return Snoozed(_delay(getattr(error, "delay", 1_000)), "snoozed")
        case Bury():
            return Buried(_clean(hide(str(getattr(error, "reason", "")))) or "buried", describe_error(error, hide))
        case ProcessDied():
            return Crashed(describe_error(error))
        case NotStarted() | NoProcess():
            return Snoozed(NOT_STARTED_DELAY, "no_process") if isinstance(error, NoProcess) else Released()
        case Retry():
            delay = getattr(error, "delay", None)
            return _failed(lease, error, policy, hide, None if delay is None else _delay(delay))
    is_retried = _is_retried(error, policy)
    return _failed(lease, error, policy, hide) if is_retried else Buried("given_up", describe_error(error, hide))


def _failed(lease: Lease, error: BaseException, policy: RetryPolicy, hide: Hide, delay: int | None = None) -> Outcome:
    failures, described = lease.ready.failures + 1, describe_error(error, hide)
    if failures > lease.ready.retries:
        return Buried("retries_exhausted", described)
    kind = error.type if type(error) is Raised else _class_name(type(error))
    return Retried(policy.backoff.after(failures) if delay is None else delay, _clean(kind), described)


def _delay(value: object) -> int:
    """The delay of a Retry or Snooze, checked again: the attribute may have been changed since."""
    return milliseconds(int(value) / 1000, "delay")  # type: ignore[call-overload]


def sealed(outcome: Outcome, codecs: Codecs, lease: Lease) -> Outcome:
    """The outcome as it is stored; to be called after it was logged."""
    task, job_id = lease.ready.task, lease.id
    try:
        if type(outcome) is Completed:
            return Completed(codecs.seal("result", outcome.result, task, job_id)) if outcome.result else outcome
        if isinstance(outcome, Retried | Buried):
            reason = codecs.seal_reason(outcome.reason, "failed" if isinstance(outcome, Retried) else "buried")
            error = codecs.seal_error(outcome.error, outcome.reason, task, job_id)
            return msgspec.structs.replace(outcome, reason=reason, error=error)
    except Exception as error:  # noqa: BLE001  (whatever a codec raises: nothing is stored that should have been sealed)
        return Buried("not_sealed", describe_error(error))
    return outcome


def log_outcome(lease: Lease, outcome: Outcome) -> None:
    """Log one line about how a run ended; if logging fails, only the line is lost."""
    with suppress(Exception):
        _log_outcome(lease, outcome)


def _log_outcome(lease: Lease, outcome: Outcome) -> None:
    attempt, extra = lease.attempt, {"job": lease.id, "task": lease.ready.task, "attempt": lease.attempt}
    match outcome:
        case Completed():
            log.debug("attempt %d is done", attempt, extra=extra)
        case Retried(delay, _, error):
            log.warning("attempt %d failed, the next is in %s: %s", attempt, show(delay), _line(error), extra=extra)
        case Buried(reason, error):
            log.error("attempt %d failed, the job is buried (%s): %s", attempt, reason, _line(error), extra=extra)
        case Crashed(cause):
            log.error("attempt %d took its process with it: %s", attempt, _line(cause), extra=extra)
        case Snoozed(delay, reason):
            log.info("put off for %s (%s)", show(delay), reason, extra=extra)
        case Released():
            log.info("attempt %d was stopped, the job goes back", attempt, extra=extra)


def _line(described: str) -> str:
    error = json.loads(described)
    return _clean(f"{error['type']}: {error['message']}")


def _is_retried(error: BaseException, policy: RetryPolicy) -> bool:
    names = names_of(error)
    if names & set(policy.give_up_on):
        return False
    return policy.retry_on is None or bool(names & set(policy.retry_on))


def names_of(error: BaseException) -> frozenset[str]:
    """How its class and the parents of that are named across processes."""
    return error.names if isinstance(error, Raised) else frozenset(map(exception_name, type(error).__mro__))


def describe_error(error: BaseException, hide: Hide = hide_nothing) -> str:
    """An error as JSON of bounded size, whatever the error's own methods do."""
    if type(error) is Raised:
        return error.described
    fields = {
        "type": _shown("name", lambda: _class_name(type(error)), MAX_ERROR_TYPE),
        "message": _shown("text", lambda: hide(str(error)), MAX_ERROR_MESSAGE),
        "traceback": _shown("traceback", lambda: hide(trace_of(error)), MAX_TRACEBACK),
    }
    return json.dumps(fields, ensure_ascii=True)


def _shown(what: str, make: Callable[[], str], max_length: int) -> str:
    """The error as text of bounded length; if the error cannot be shown, a text that says so."""
    try:
        return _shorten(make(), max_length)
    except BaseException as broken:  # noqa: BLE001  (an exception whose __str__ raises is still an error to be shown)
        return f"(its {what} cannot be shown: {_class_name(type(broken))})"


def _shorten(text: str, max_length: int) -> str:
    if len(text) > max_length:
        text = f"{text[: max_length // 4]}\n…\n{text[-max_length * 3 // 4 :]}"
    return storable(text, max_length + 3)


def _clean(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in storable(str(text), MAX_REASON))[:MAX_REASON]
