"""Leaves out what users put into jobs, for those who may not read it: arguments, results, errors, logs.

What stays is what the queue itself says: states, times, the class of an error, how far a job is.
"""

from dataclasses import replace
from typing import Final

import msgspec

from penstock.api.events import Event
from penstock.http.schemas.responses import ErrorAnswer, JobAnswer

#: Why a job is dead, in the words of the queue. Any other text is what a task gave to Bury.
_OWN_REASONS: Final = frozenset(
    {"buried", "crash_loop", "given_up", "payload_lost", "retries_exhausted", "unreadable_header", ""}
)
_NOTES_OF_USERS: Final = frozenset({"progress", "bury"})  #: kinds of events whose note may have a user's text


def hide_contents(row: JobAnswer) -> JobAnswer:
    """The same job without its contents."""
    if row.state == "dead":
        row.explain = row.explain.replace(f": {row.reason}", "") if row.reason not in _OWN_REASONS else row.explain
        row.reason = hide_reason(row.reason)
    for attempt in row.attempts:
        attempt.error = _hide_error(attempt.error)
    if row.error is not msgspec.UNSET and row.state == "dead":
        row.error = _hide_error(row.error)
    if row.progress is not msgspec.UNSET:
        row.progress = (*row.progress[:2], "")
    row.arguments = row.result = msgspec.UNSET
    row.hidden = True
    return row


def hide_reason(reason: str) -> str:
    """Why a job is dead, without a text of its task."""
    return reason if reason in _OWN_REASONS else "buried"


def hide_note(event: Event) -> Event:
    """The same event without a text of its task."""
    if event.kind not in _NOTES_OF_USERS or (event.kind == "bury" and event.note in _OWN_REASONS):
        return event
    return replace(event, note="")


def _hide_error(error: ErrorAnswer) -> ErrorAnswer:
    return ErrorAnswer(error.type, "")
