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
LONG_AGO: Final = 10**12  #: in 2001; what is due before is due now, and numbers below are delays to the engine
LONGEST: Final = 3_650 * 86_400_000  #: ten years


def milliseconds(value: Duration, what: str = "duration") -> int:
    """A duration in whole milliseconds; anything else, or beyond ten years, is refused with what is valid."""
    found = _parse(value)
    if found is None or math.isnan(found):
        raise BadOption(f'{what}={value!r}: use seconds, a timedelta, or a text like "250ms", "30s", "10m", "2h", "3d"')
    if found < 0:
        raise BadOption(f"{what}={value!r}: a time cannot be negative")
    if found > LONGEST:
        raise BadOption(f"{what}={value!r}: more than ten years")
    return round(found)


def patience(value: Duration | None) -> float | None:
    """A time-out in seconds; None is to wait for ever, and nothing or less not to wait at all."""
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
        case str() if found := _TEXT.match(value.strip()):
            return float(found[1]) * _UNITS[found[2]]
        case _:
            return None


def instant(value: datetime, what: str = "at") -> int:
    """An aware datetime in milliseconds since 1970; a naive one is refused, for it means another time elsewhere."""
    if not isinstance(value, datetime):
        raise BadOption(f"{what}={value!r}: use an aware datetime, such as datetime.now(UTC) + timedelta(hours=1)")
    if value.tzinfo is None or value.utcoffset() is None:
        raise BadOption(f"{what}={value!r} has no time zone: add tzinfo=UTC or another zone")
    found = round(value.timestamp() * 1_000)
    if found > time.time() * 1_000 + LONGEST:
        raise BadOption(f"{what}={value!r}: more than ten years from now")
    return max(found, LONG_AGO)


def show(milliseconds: int) -> str:
    """A duration as a person writes it."""
    for unit, size in reversed(_UNITS.items()):
        if milliseconds >= size and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"
