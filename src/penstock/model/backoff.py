"""How long to wait before the next attempt."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from penstock.errors import BadOption
from penstock.model.durations import Duration, milliseconds

MAX_DELAYS: Final = 100  #: in a list; each job carries its own
Kind = Literal["exponential", "linear", "fixed"]
Waits = tuple[str, int, int, bool] | tuple[int, ...]


@dataclass(frozen=True, slots=True, init=False)
class Backoff:
    """Waits between attempts: base·2ⁿ⁻¹, base·n or base after the n-th failure, never more than cap.

    The default cap is 10 minutes, or base if that is longer.

    With jitter the wait is drawn between half of it and all of it, so that jobs that failed together are not retried
    together.
    """

    kind: Kind
    base: int  #: ms
    cap: int  #: ms
    jitter: bool

    def __init__(
        self, kind: Kind = "exponential", *, base: Duration = "1s", cap: Duration | None = None, jitter: bool = True
    ) -> None:
        if kind not in get_args(Kind):
            raise BadOption(f"Backoff({kind!r}): use one of {', '.join(map(repr, get_args(Kind)))}")
        if not isinstance(jitter, bool):
            raise BadOption(f"Backoff(jitter={jitter!r}): use True or False")
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "base", milliseconds(base, "base"))
        object.__setattr__(self, "cap", max(self.base, 600_000) if cap is None else milliseconds(cap, "cap"))
        object.__setattr__(self, "jitter", jitter)

    def __repr__(self) -> str:
        return f"Backoff({self.kind!r}, base={self.base / 1000:g}, cap={self.cap / 1000:g}, jitter={self.jitter})"

    def after(self, failures: int) -> int:
        """Milliseconds to wait after the n-th failure."""
        match self.kind:
            case "exponential":
                wait = self.base * 2 ** min(failures - 1, 40)
            case "linear":
                wait = self.base * failures
            case "fixed":
                wait = self.base
        wait = min(wait, self.cap)
        return random.randint(wait // 2, wait) if self.jitter else wait  # noqa: S311  (not a secret)


@dataclass(frozen=True, slots=True)
class Delays:
    """Waits written out one by one; the last one repeats."""

    delays: tuple[int, ...]  #: ms

    def after(self, failures: int) -> int:
        return self.delays[min(failures, len(self.delays)) - 1]


def backoff(value: Backoff | Delays | Sequence[Duration]) -> Backoff | Delays:
    """A Backoff, or a list of delays."""
    if isinstance(value, Backoff | Delays):
        return value
    if isinstance(value, str | bytes) or not isinstance(value, Sequence) or not value:
        raise BadOption(f'backoff={value!r}: use Backoff("exponential", base="1s", cap="10m") or a list of delays')
    if len(value) > MAX_DELAYS:
        raise BadOption(f"backoff: {len(value):,} delays are too many, {MAX_DELAYS} is the limit; the last one repeats")
    return Delays(tuple(milliseconds(delay, "backoff") for delay in value))


def pack(value: Backoff | Delays) -> Waits:
    """As plain data, to travel with a job."""
    return value.delays if isinstance(value, Delays) else (value.kind, value.base, value.cap, value.jitter)


def unpack(value: Waits) -> Backoff | Delays:
    """From plain data."""
    match value:
        case (str(), int(), int(), bool()):
            kind, base, cap, jitter = value
            return Backoff(kind, base=base / 1000, cap=cap / 1000, jitter=jitter)  # type: ignore[arg-type]  # checked there
        case _:
            return Delays(tuple(int(delay) for delay in value))
