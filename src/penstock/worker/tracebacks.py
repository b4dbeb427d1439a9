"""Tracebacks for people: from their code on, without the frames of the worker that called it."""

import sysconfig
import traceback
from pathlib import Path
from typing import Final

_OURS: Final = str(Path(__file__).parent)
_LIBRARY: Final = sysconfig.get_path("stdlib")


def trace_of(error: BaseException) -> str:
    """The traceback of an error and of what caused it; whole, if nothing but ours is in it: then the fault is ours."""
    told = traceback.TracebackException.from_exception(error)
    if _cut(told) or isinstance(error, TimeoutError):  # a time limit is ours, and its message says it all
        return "".join(told.format())
    return "".join(traceback.format_exception(error))


def _cut(told: traceback.TracebackException) -> bool:
    """Leave out our frames, here and in its causes; whether others are left."""
    left, rest = False, [told]
    while rest:
        one = rest.pop()
        frames = _theirs(one.stack)
        # None has no heading, either
        one.stack = traceback.StackSummary.from_list(frames) if frames else None  # type: ignore[assignment]
        left = left or bool(frames)
        rest += [below for below in (one.__cause__, one.__context__, *(one.exceptions or ())) if below is not None]
    return left


def _theirs(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """Without ours, and without those of the standard library through which we called theirs."""
    kept, within = [], True
    for frame in stack:
        ours = frame.filename.startswith(_OURS)
        within = ours or (within and _is_library(frame.filename))
        if not within:
            kept.append(frame)
    return kept


def _is_library(file: str) -> bool:
    return file.startswith((_LIBRARY, "<frozen ")) and "site-packages" not in file
