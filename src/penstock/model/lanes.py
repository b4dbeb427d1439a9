"""Locks and lanes as tasks declare them: what may run at once, how often, in which order."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from penstock.errors import BadOption
from penstock.model.durations import milliseconds
from penstock.model.printable import CONTROLS, NOT_PRINTABLE

MAX_LANES: Final = 16  #: locks and lanes of one job
_FREE = re.compile(rf"[^{CONTROLS}]{{1,200}}\Z")
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*/\s*(\d+(?:\.\d+)?)?\s*(ms|s|m|h|d)\Z")
_SEPARATOR: Final = "\x1f"
_MAX_STARTS: Final = 10**9  #: in the time of a rate


@dataclass(frozen=True, slots=True)
class Lane:
    """What jobs that name it share: at most `limit` run at once, `rate` start in a time, or one after the other.

    `rate="100/s"` with `burst` more at once after a pause; `ordered=True` keeps the order in which jobs were enqueued,
    through retries and crashes. When an ordered job dies, the next one follows; with `on_dead="hold"` none does until
    it is revived or removed. A lane with neither limit nor rate takes turns with the others of its priority.
    """

    name: str
    limit: int | None = None
    rate: str | None = None
    burst: int | None = None
    ordered: bool = False
    on_dead: Literal["continue", "hold"] = "continue"

    def __post_init__(self) -> None:
        lane_name(self.name, "lane")
        _check_count(self.limit, f"lane {self.name!r}: limit", least=0)
        _check_count(self.burst, f"lane {self.name!r}: burst", least=1)
        if self.rate is not None:
            parse_rate(self.rate)
        elif self.burst is not None:
            raise BadOption(f"lane {self.name!r}: burst goes with a rate; give one, or leave it out")
        if self.ordered and self.limit not in {None, 1}:
            raise BadOption(f"lane {self.name!r}: ordered jobs run one after the other, so limit can only be 1")
        if self.on_dead not in {"continue", "hold"}:
            raise BadOption(f'lane {self.name!r}: on_dead={self.on_dead!r}: use "continue" or "hold"')
        if self.on_dead == "hold" and not self.ordered:
            raise BadOption(f'lane {self.name!r}: on_dead="hold" is for ordered lanes')

    def spec(self, cost: int = 1) -> str:
        """The text for a job's header: name, limit, rate per ms, burst, kind, cost."""
        limit = 1 if self.ordered else "" if self.limit is None else self.limit
        rate = parse_rate(self.rate) if self.rate else 0.0
        burst = (self.burst or default_burst(rate)) if self.rate else ""
        kind = "" if not self.ordered else "hold" if self.on_dead == "hold" else "ordered"
        values = (f"lane:{self.name}", limit, f"{rate:.12g}" if rate else "", burst, kind, cost)
        return _SEPARATOR.join(map(str, values))

    def filled(self, fill: Callable[[str], str]) -> "Lane":
        """The lane with its name filled in for one call."""
        name = fill(self.name)
        return self if name == self.name else replace(self, name=name)


def lock_spec(name: str) -> str:
    return f"lock:{lane_name(name, 'lock')}"


def lane_name(value: object, what: str) -> str:
    if not isinstance(value, str) or not _FREE.match(value) or not value.strip():
        shown = repr(value)
        shown = shown if len(shown) < 60 else shown[:57] + "…"
        raise BadOption(f"{what}={shown}: use 1 to 200 printable characters, no {NOT_PRINTABLE}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadOption(f"{what}={value!r}: use characters that can be encoded") from None
    return value


def parse_rate(text: object) -> float:
    """`100/s`, `5/m`, `3/10s` as starts per millisecond."""
    match = _RATE.match(text.strip()) if isinstance(text, str) else None
    number = float(match[1]) if match else 0.0
    window = milliseconds(f"{match[2] or 1}{match[3]}", "rate") if match else 0
    if not 0 < number <= _MAX_STARTS or window <= 0:
        shown = repr(text)
        raise BadOption(
            f"rate={shown if len(shown) < 60 else shown[:57] + '…'}: use a number per time, up to {_MAX_STARTS:,}, like"
            ' "100/s", "5/m" or "3/10s"'
        )
    return number / window


def default_burst(rate: float) -> int:
    """The starts that the rate allows in 50 ms: enough to keep the rate up, and hardly a burst."""
    return max(1, round(rate * 50))


def _check_count(value: object, what: str, *, least: int) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 10**6):
        raise BadOption(f"{what}={value!r}: use a number from {least} to 1,000,000")


def several_locks(value: Any) -> tuple[str, ...]:
    """One lock or several, checked."""
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (value,)
    for name in names:
        lane_name(name, "lock")
    return tuple(dict.fromkeys(_few(names, "lock")))


def several_lanes(value: Any) -> tuple[Lane, ...]:
    """One lane or several, checked; at most one is ordered, so that no two jobs wait for each other."""
    several = isinstance(value, Iterable) and not isinstance(value, str)
    lanes = tuple(value) if several else (value,)
    for lane in lanes:
        if not isinstance(lane, Lane):
            raise BadOption(f"lane={lane!r}: use Lane(name, limit=…), or several")
    if sum(lane.ordered for lane in lanes) > 1:
        raise BadOption("lane: one job can be in one ordered lane only")
    if len({lane.name for lane in lanes}) < len(lanes):
        raise BadOption("lane: the same lane is named twice")
    return _few(lanes, "lane")


def check_cost(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**6:
        raise BadOption(f"cost={value!r}: use a number from 1 to 1,000,000")
    return value


def _few(values: tuple[Any, ...], what: str) -> tuple[Any, ...]:
    if len(values) > MAX_LANES:
        raise BadOption(f"{what}: {len(values)} are too many, a job has at most {MAX_LANES}")
    return values
