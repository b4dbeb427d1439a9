"""Durations and instants as users write them, in milliseconds."""

import math
import re
import time
from datetime import datetime, timedelta
from typing import Final

from penstock.errors import BadOption

#: Upper bounds, in seconds, of the histograms of waits and runs.
DURATION_BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 3600.0)

Duration = int | float | timedelta | str

_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\Z")
EARLIEST_INSTANT: Final = 10**12  #: in 2001; an earlier time is due now, and the engine reads smaller numbers as delays
MAX_DURATION: Final = 3_650 * 86_400_000  #: ten years


def milliseconds(value: Duration, what: str = "duration") -> int:
    """A duration in whole milliseconds; BadOption for anything else, or for more than ten years."""
    length = _parse(value)
    if length is None or math.isnan(length):
        raise BadOption(f'{what}={value!r}: use seconds, a timedelta, or a text like "250ms", "30s", "10m", "2h", "3d"')
    if length < 0:
        raise BadOption(f"{what}={value!r}: a time cannot be negative")
    if length > MAX_DURATION:
        raise BadOption(f"{what}={value!r}: more than ten years")
    return round(length)


def timeout_seconds(value: Duration | None) -> float | None:
    """A time-out in seconds; None waits without end, 0 or less does not wait at all."""
    if value is None or value == math.inf:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return milliseconds(value, "timeout") / 1_000
    return value


def _parse(value: object) -> float | None:
    match value:
        case bool():
            return None
        case int() | float():
            return value * 1_000
        case timedelta():
            return value / timedelta(milliseconds=1)
        case str() if match := _TEXT.match(value.strip()):
            return float(match[1]) * _UNITS[match[2]]
        case _:
            return None


def instant(value: datetime, what: str = "at") -> int:
    """An aware datetime in milliseconds since 1970; a naive one is refused, as it means another time elsewhere."""
    if not isinstance(value, datetime):
        raise BadOption(f"{what}={value!r}: use an aware datetime, such as datetime.now(UTC) + timedelta(hours=1)")
    if value.tzinfo is None or value.utcoffset() is None:
        raise BadOption(f"{what}={value!r} has no time zone: add tzinfo=UTC or another zone")
    timestamp = round(value.timestamp() * 1_000)
    if timestamp > time.time() * 1_000 + MAX_DURATION:
        raise BadOption(f"{what}={value!r}: more than ten years from now")
    return max(timestamp, EARLIEST_INSTANT)


def show(milliseconds: int) -> str:
    """A duration as a person writes it."""
    for unit, size in reversed(_UNITS.items()):
        if milliseconds >= size and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"
