"""Tracebacks for users: they begin with the user's code, without the worker's frames above it."""

import sysconfig
import traceback
from pathlib import Path
from typing import Final

_OUR_FILES: Final = str(Path(__file__).parent)
_STANDARD_LIBRARY: Final = sysconfig.get_path("stdlib")


def trace_of(error: BaseException) -> str:
    """The traceback of an error and of its causes. If all frames are ours, the fault is ours, and it is left whole."""
    summary = traceback.TracebackException.from_exception(error)
    if _cut(summary) or isinstance(error, TimeoutError):  # a time limit is ours, and its message says it all
        return "".join(summary.format())
    return "".join(traceback.format_exception(error))


def _cut(summary: traceback.TracebackException) -> bool:
    """Remove our frames, here and in the causes; whether others are left."""
    any_left, pending = False, [summary]
    while pending:
        error = pending.pop()
        frames = _user_frames(error.stack)
        # With None instead of an empty stack, the heading is left out, too.
        error.stack = traceback.StackSummary.from_list(frames) if frames else None  # type: ignore[assignment]
        any_left = any_left or bool(frames)
        causes = (error.__cause__, error.__context__, *(error.exceptions or ()))
        pending += [cause for cause in causes if cause is not None]
    return any_left


def _user_frames(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """Frames without ours, and without the standard library's through which we called the user's."""
    kept, is_inside = [], True
    for frame in stack:
        is_ours = frame.filename.startswith(_OUR_FILES)
        is_inside = is_ours or (is_inside and _is_library(frame.filename))
        if not is_inside:
            kept.append(frame)
    return kept


def _is_library(file: str) -> bool:
    return file.startswith((_STANDARD_LIBRARY, "<frozen ")) and "site-packages" not in file
