"""Schedules: when their ticks are, and which of them make a job. Pure rules; times in ms since 1970.

A rule gives *nominal* times that depend on nothing but the rule, so all nodes agree on them without asking each other.
Cron rules go by the local time of their zone. When that jumps they do as Debian's cron does: a rule for fixed
times (neither minute nor hour begins with a star) fires once for a time that happens twice, and at the first instant
after the gap for one that does not happen; any other rule fires whenever the wall clock matches.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, Literal, NamedTuple, get_args
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from penstock.errors import BadOption
from penstock.model.durations import Duration, milliseconds, show
from penstock.model.printable import CONTROLS, NOT_PRINTABLE

CatchUp = Literal["none", "latest", "all"]
Overlap = Literal["allow", "skip", "queue"]
Source = Literal["code", "set"]

MIN_PERIOD: Final = 100  #: ms between two ticks
MISSED_AFTER: Final = 10_000  #: ms after which a late tick counts as missed with catch_up="none"
MAX_CATCH_UP: Final = 50  #: ticks made up for in one step
NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_MAX_TEXT: Final = 200  #: characters of a rule
_STEP: Final = timedelta(hours=12)  # no zone changes its offset and back within it
_ID = re.compile(rf"[^\s{CONTROLS}{{}}*]{{1,90}}\Z")


@dataclass(frozen=True, slots=True)
class Cron:
    """A crontab's five fields, or six with seconds first, on the wall clock of a zone."""

    text: str
    tz: str = "UTC"

    def __str__(self) -> str:
        return f"cron {self.text} {self.tz}"

    def after(self, at: int) -> int:
        """The first nominal time after this one."""
        zone, start = zone_of(self.tz), datetime.fromtimestamp(at // 1000, UTC)
        at_next = self._fixed(start, zone) if _is_fixed(self.text) else self._matching(start, zone)
        return round(at_next.timestamp() * 1000)

    def explain(self) -> str:
        """The rule in words."""
        return f"{_sim(self.text, _EPOCH).explain()}, {self.tz}"

    def _fixed(self, after: datetime, zone: ZoneInfo) -> datetime:
        """Each time on the wall once: the first of two, or the first instant after the gap that it is in."""
        for wall in _sim(self.text, after.astimezone(zone).replace(tzinfo=None)):
            instant = _first_instant(wall, zone)
            if instant > after:
                return instant
        raise _never(self.text)

    def _matching(self, after: datetime, zone: ZoneInfo) -> datetime:
        """The next instant at which the wall clock matches, one stretch of constant offset after the other."""
        begin, offset = after, _offset(after, zone)
        wall = (begin + offset).replace(tzinfo=None)
        while True:
            match = next(_sim(self.text, wall), None)
            if match is None:
                raise _never(self.text)
            instant = match.replace(tzinfo=UTC) - offset
            change = _change(begin, instant, zone)
            if change is None:
                return instant
            begin, offset = change, _offset(change, zone)
            wall = (begin + offset).replace(tzinfo=None) - timedelta(seconds=1)  # the change itself may match


@dataclass(frozen=True, slots=True)
class Every:
    """Each multiple of a period since 1970, so that no restart and no deploy shifts it."""

    period: int

    def __str__(self) -> str:
        return f"every {self.period}"

    def after(self, at: int) -> int:
        return at // self.period * self.period + self.period

    def explain(self) -> str:
        return f"every {show(self.period)}"


Rule = Cron | Every
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001  (a wall clock's)


class ScheduleSpec(msgspec.Struct, array_like=True, frozen=True):
    """A schedule, stored whole, so that a worker without its code can make its jobs. The scripts do not read it."""

    kind: Literal["cron", "every"]
    text: str
    tz: str
    jitter: int
    catch_up: CatchUp
    overlap: Overlap
    task: str
    queue: str
    form: bytes  #: the header of its jobs, packed: fields that only another version knows stay in it, as in a record
    payload: bytes
    sealed_version: str = ""  #: the version before its arguments were sealed, which are never twice the same

    @property
    def rule(self) -> Rule:
        return Cron(self.text, self.tz) if self.kind == "cron" else Every(int(self.text))

    @property
    def pace(self) -> str:
        """What its ticks follow from: as long as this stays the same, so does the next tick."""
        return f"{self.rule} {self.jitter}"

    @property
    def version(self) -> str:
        """The same for the same content, whichever version of Penstock reads it."""
        return self.sealed_version or hashlib.sha256(pack(self)).hexdigest()[:16]


class Standing(msgspec.Struct, frozen=True):
    """The state of a schedule, as the scripts keep it."""

    version: str
    source: Source
    status: Literal["active", "paused", "orphaned"]
    pace: str
    overlap: str
    task: str
    queue: str
    next: int  #: nominal time of the next tick
    due: int  #: when that is due: the nominal time and its jitter
    look: int  #: when a timer reads it next: then, or earlier while a tick waits for the job before it
    last: str = ""  #: the last job that it made
    made: int = 0
    skipped: int = 0
    missed: int = 0
    line: list[str | int] = []  #: ticks that wait for the job before them: job id, nominal time, …
    history: list[tuple[int, int, str, str]] = []  #: the last ten ticks: nominal time, when, job id, outcome
    changed: int = 0


class Ticks(NamedTuple):
    """The ticks of a due schedule: the nominal times to run, and the first one that was missed."""

    run: list[int]
    missed: int
    next: int
    due: int


pack = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder(ScheduleSpec).decode
unpack_standing = msgspec.msgpack.Decoder(Standing).decode


def cron(text: str, tz: str = "UTC") -> Cron:
    """A checked rule: it can be read, its zone exists, and it fires some day."""
    if not isinstance(text, str) or len(text) > _MAX_TEXT:
        raise BadOption(f"cron {str(text)[:60]!r}: use five fields, such as '*/5 * * * *', or a name, such as '@daily'")
    zone_of(tz)
    rule = Cron(NICKNAMES.get(text.strip().lower(), " ".join(text.split())), tz)
    _sim(rule.text, _EPOCH)
    rule.after(0)
    return rule


def every(period: Duration) -> Every:
    length = milliseconds(period, "every")
    if length < MIN_PERIOD:
        raise BadOption(f"every={period!r}: use at least {MIN_PERIOD} ms")
    return Every(length)


def catch_up(value: object) -> CatchUp:
    if value not in get_args(CatchUp):
        raise BadOption(f"catch_up={value!r}: use one of {', '.join(map(repr, get_args(CatchUp)))}")
    return value  # type: ignore[return-value]


def overlap(value: object) -> Overlap:
    if value not in get_args(Overlap):
        raise BadOption(f"overlap={value!r}: use one of {', '.join(map(repr, get_args(Overlap)))}")
    return value  # type: ignore[return-value]


def jitter(value: Duration, rule: Rule) -> int:
    length = milliseconds(value, "jitter")
    if isinstance(rule, Every) and length >= rule.period:
        raise BadOption(f"jitter={value!r}: use less than the period, {show(rule.period)}")
    return length


def schedule_id(value: object) -> str:
    if not isinstance(value, str) or not _ID.match(value):
        raise BadOption(f"id={str(value)[:60]!r}: use 1 to 90 characters without spaces, braces, * and {NOT_PRINTABLE}")
    return value


@lru_cache(maxsize=1000)
def zone_of(name: str) -> ZoneInfo:
    """A zone by its name in the IANA database."""
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, TypeError, LookupError):
        raise BadOption(
            f"tz={str(name)[:60]!r}: no such time zone here; use a name such as 'Europe/Berlin', "
            "and install tzdata if this machine knows none"
        ) from None


def due_of(schedule: str, nominal: int, max_jitter: int) -> int:
    """When a tick is due: its nominal time and a share of the jitter that all nodes agree on."""
    if max_jitter == 0:
        return nominal
    drawn = hashlib.sha256(f"{schedule}@{nominal}".encode()).digest()
    return nominal + int.from_bytes(drawn[:8]) % (max_jitter + 1)


def job_of(schedule: str, nominal: int) -> str:
    """The id of a tick's job: the same whoever makes it."""
    at = datetime.fromtimestamp(nominal / 1000, UTC)
    fraction = f".{nominal % 1000:03d}" if nominal % 1000 else ""
    return f"{schedule}@{at:%Y-%m-%dT%H:%M:%S}{fraction}Z"


def first(schedule: str, spec: ScheduleSpec, now: int) -> tuple[int, int]:
    """Nominal and due time of the first tick of a schedule that begins now."""
    nominal = spec.rule.after(now)
    return nominal, due_of(schedule, nominal, spec.jitter)


def plan(schedule: str, spec: ScheduleSpec, expected: int, now: int) -> Ticks:
    """The ticks of a schedule to run now, and its next one."""
    rule = spec.rule

    def due(nominal: int) -> int:
        return due_of(schedule, nominal, spec.jitter)

    if due(expected) > now:
        return Ticks([], 0, expected, due(expected))
    if spec.catch_up == "all":
        run, following = [expected], rule.after(expected)
        while due(following) <= now and len(run) < MAX_CATCH_UP:
            run.append(following)
            following = rule.after(following)
        return Ticks(run, 0, following, due(following))
    latest = _latest(rule, expected, now, spec.jitter, due)
    following = rule.after(latest)
    run = [] if spec.catch_up == "none" and now - due(latest) > MISSED_AFTER else [latest]
    return Ticks(run, expected if run != [expected] else 0, following, due(following))


def _latest(rule: Rule, expected: int, now: int, jitter: int, due: Callable[[int], int]) -> int:
    """The last nominal time that is due, without going through all those missed."""
    window = 60_000
    while True:
        begin = max(expected, now - jitter - window)
        latest, nominal = None, expected if begin == expected else rule.after(begin)
        while nominal <= now:
            if due(nominal) <= now:
                latest = nominal
            nominal = rule.after(nominal)
        if latest is not None:
            return latest
        window *= 2


def upcoming(spec: ScheduleSpec, after: int, number: int) -> list[int]:
    """The next nominal times."""
    times = [after]
    for _ in range(number):
        times.append(spec.rule.after(times[-1]))
    return times[1:]


def _sim(text: str, wall: datetime) -> CronSim:
    try:
        return CronSim(text, wall)
    except (CronSimError, ValueError, AssertionError) as error:
        hint = "no month has such a day, or it cannot be read" if "day-of-month" in str(error) else "it cannot be read"
        raise BadOption(f"cron {text[:60]!r}: {error}: {hint}; use five fields, such as '*/5 * * * *'") from None


def _never(text: str) -> BadOption:
    return BadOption(f"cron {text!r} never fires: there is no such day")


def _is_fixed(text: str) -> bool:
    minute, hour = text.split()[-5:-3]
    return not minute.startswith("*") and not hour.startswith("*")


def _offset(at: datetime, zone: ZoneInfo) -> timedelta:
    return at.astimezone(zone).utcoffset() or timedelta()


def _change(after: datetime, until: datetime, zone: ZoneInfo) -> datetime | None:
    """The first instant in between at which the zone has another offset, to the second."""
    before, offset = after, _offset(after, zone)
    while before < until:
        later = min(before + _STEP, until)
        if _offset(later, zone) != offset:
            while later - before > timedelta(seconds=1):
                middle = before + timedelta(seconds=(later - before) // timedelta(seconds=2))
                before, later = (middle, later) if _offset(middle, zone) == offset else (before, middle)
            return later
        before = later
    return None


def _first_instant(wall: datetime, zone: ZoneInfo) -> datetime:
    """When local time shows this for the first time, or has just passed it."""
    instant = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == wall:
        return instant
    # In a gap: the earlier offset puts it after the change, the later one before it.
    early = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return _change(early, instant, zone) or instant
