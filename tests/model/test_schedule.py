"""The rules of schedules: cron compared with every minute of two years, clock changes, missed ticks, bad input."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadOption
from penstock.model import schedule
from penstock.model.schedule import Every, Ticks, due_of, job_of, plan
from tests.engine.factories import new_spec

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Chatham", "America/Santiago")
SHORT = {"Europe/Berlin", "Australia/Lord_Howe"}  # the others are for the long run
TEXTS = (
    "30 2 * * *",
    "0 0 * * *",
    "15,45 1-3 * * *",
    "0 3 * * 0",
    "59 23 31 * *",
    "0 0 29 2 *",
    "45 2 1-7 4,10,11 *",
    "*/20 * * * *",
    "0 * * * *",
    "7 */2 * * *",
    "*/30 2 * * *",
    "10 0-3 * 3,4,9,10,11 6,0",
)


def at(text: str, zone: str = "UTC") -> int:
    """Milliseconds of a time on the wall of a zone."""
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def instants(rule: schedule.Rule, after: int, number: int, zone: str = "UTC") -> list[str]:
    times = []
    for _ in range(number):
        after = rule.after(after)
        times.append(f"{datetime.fromtimestamp(after / 1000, ZoneInfo(zone)):%Y-%m-%d %H:%M:%S %z}")
    return times


# The oracle: it looks at every minute, and knows nothing of how the rule is reckoned


def _values(field: str, low: int, high: int) -> set[int]:
    values: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        values |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return values


def _matcher(text: str) -> Callable[[datetime], bool]:
    minutes, hours, days, months, weekdays = (
        _values(field, low, high)
        for field, (low, high) in zip(text.split(), ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6)), strict=True)
    )
    either = "*" not in (text.split()[2][0], text.split()[4][0])

    def matches(wall: datetime) -> bool:
        by_date, by_weekday = wall.day in days, wall.isoweekday() % 7 in weekdays
        day = by_date or by_weekday if either else by_date and by_weekday
        return wall.minute in minutes and wall.hour in hours and wall.month in months and day

    return matches


class World:
    """Every minute of a while: the instant and what the wall of a zone shows, and the times that it does not show."""

    def __init__(self, zone: str, begin: datetime, end: datetime) -> None:
        info, now = ZoneInfo(zone), begin
        self.first, self.last = (round(edge.timestamp() * 1000) for edge in (begin, end))
        self.by_minute: dict[int, list[tuple[int, datetime]]] = {minute: [] for minute in range(60)}
        self.skipped: list[tuple[int, list[datetime]]] = []
        before = begin.astimezone(info).replace(tzinfo=None) - timedelta(minutes=1)
        while now < end:
            wall, instant = now.astimezone(info), round(now.timestamp() * 1000)
            shown = wall.replace(tzinfo=None)
            self.by_minute[wall.minute].append((instant, wall))
            missing = round((shown - before).total_seconds() / 60) - 1
            if missing > 0:
                self.skipped.append((instant, [before + timedelta(minutes=n + 1) for n in range(missing)]))
            before, now = shown, now + timedelta(minutes=1)

    def fires(self, text: str) -> list[int]:
        matches, minute, hour = _matcher(text), *text.split()[:2]
        fixed = not minute.startswith("*") and not hour.startswith("*")
        walls = [row for value in _values(minute, 0, 59) for row in self.by_minute[value]]
        times = {instant for instant, wall in walls if matches(wall) and not (fixed and wall.fold)}
        return sorted(times | {instant for instant, walls in self.skipped if fixed and any(map(matches, walls))})


@pytest.mark.parametrize(
    "zone", [pytest.param(zone, marks=[] if zone in SHORT else pytest.mark.long) for zone in ZONES]
)
def test_cron_agrees_with_a_look_at_every_minute_of_two_years(zone: str) -> None:
    world = World(zone, datetime(2026, 12, 31, tzinfo=UTC), datetime(2029, 1, 2, tzinfo=UTC))
    assert len(world.skipped) == 2
    for text in TEXTS:
        rule, times, now = schedule.cron(text, zone), list[int](), world.first - 1_000
        while (now := rule.after(now)) < world.last:
            times.append(now)
        assert times == world.fires(text), text


@settings(max_examples=300, deadline=None)
@given(
    zone=st.sampled_from(ZONES),
    text=st.sampled_from(TEXTS),
    begin=st.integers(at("2026-01-01"), at("2030-01-01")),
)
def test_the_next_time_is_the_same_from_any_moment_before_it(zone: str, text: str, begin: int) -> None:
    rule = schedule.cron(text, zone)
    following = rule.after(begin)
    assert following > begin
    assert rule.after(following - 1) == following
    assert rule.after((begin + following) // 2) == following


# Jumps of the clock on the wall


@pytest.mark.parametrize(
    ("text", "zone", "day", "want"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-03-29", ["2026-03-29 03:00:00 +0200", "2026-03-30 02:30:00 +0200"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25", ["2026-10-25 02:30:00 +0200", "2026-10-26 02:30:00 +0100"]),
        ("30 2 * * *", "America/New_York", "2026-03-08", ["2026-03-08 03:00:00 -0400", "2026-03-09 02:30:00 -0400"]),
        ("30 1 * * *", "America/New_York", "2026-11-01", ["2026-11-01 01:30:00 -0400", "2026-11-02 01:30:00 -0500"]),
        ("0,30 2 * * *", "Europe/Berlin", "2026-03-29", ["2026-03-29 03:00:00 +0200", "2026-03-30 02:00:00 +0200"]),
        ("0 2,3 * * *", "Europe/Berlin", "2026-03-29", ["2026-03-29 03:00:00 +0200", "2026-03-30 02:00:00 +0200"]),
        (
            "0 0 * * *",
            "America/Santiago",
            "2026-09-05T12:00",
            ["2026-09-06 01:00:00 -0300", "2026-09-07 00:00:00 -0300"],
        ),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-04", ["2026-10-04 02:30:00 +1100", "2026-10-05 02:15:00 +1100"]),
    ],
)
def test_a_time_that_happens_twice_fires_once_and_a_missing_one_right_after(
    text: str, zone: str, day: str, want: list[str]
) -> None:
    assert instants(schedule.cron(text, zone), at(day, zone), 2, zone) == want


def test_a_rule_of_every_few_minutes_continues_through_both_jumps() -> None:
    rule = schedule.cron("*/30 * * * *", "Europe/Berlin")
    for day in ("2026-03-29T00:10", "2026-10-25T00:10"):
        times = [at(day, "Europe/Berlin")]
        for _ in range(12):
            times.append(rule.after(times[-1]))
        assert {later - earlier for earlier, later in pairwise(times[1:])} == {1_800_000}


def test_leap_days_and_last_days_of_months() -> None:
    assert instants(schedule.cron("0 0 29 2 *"), at("2026-01-01"), 2) == [
        "2028-02-29 00:00:00 +0000",
        "2032-02-29 00:00:00 +0000",
    ]
    last = instants(schedule.cron("0 12 L * *", "America/New_York"), at("2028-01-15"), 3, "America/New_York")
    assert [text[:10] for text in last] == ["2028-01-31", "2028-02-29", "2028-03-31"]
    assert [text[:10] for text in instants(schedule.cron("0 0 31 * *"), at("2026-01-01"), 3)] == [
        "2026-01-31",
        "2026-03-31",
        "2026-05-31",
    ]


def test_seconds_come_first_and_names_are_known() -> None:
    assert instants(schedule.cron("*/20 * * * * *"), at("2026-01-01"), 2) == [
        "2026-01-01 00:00:20 +0000",
        "2026-01-01 00:00:40 +0000",
    ]
    assert schedule.cron("@daily", "Europe/Berlin") == schedule.cron(" 0 0  * * * ", "Europe/Berlin")
    assert schedule.cron("0 9 * * MON-FRI").explain() == "At 09:00 on Monday through Friday, UTC"


def test_ticks_of_every_are_multiples_since_1970() -> None:
    rule = schedule.every("90s")
    assert rule == Every(90_000)
    assert {rule.after(90_000 * 7 + late) for late in (0, 1, 45_000, 89_999)} == {90_000 * 8}


# Bad input


@pytest.mark.parametrize(
    "text",
    [
        "",
        "* * * *",
        "* * * * * * *",
        "60 * * * *",
        "0 0 30 2 *",
        "0 0 31 4,6 *",
        "1--100000000 * * * *",
        "a b c d e",
        "1-100000000 * * * *",
        "*/0 * * * *",
        "* * * * 9",
        "9" * 150 + " * * * *",
        "* " * 300,
        "²L * * * *",
        "@never",
        "0 0 * 2 MON#6",
        "5-1 * * * *",
        "1,,2 * * * *",
        "٣ * * * *",
        "1/2/3 * * * *",
        7,
        None,
    ],
)
def test_a_text_that_does_not_parse_or_never_fires_is_refused_at_once(text: Any) -> None:
    began = time.monotonic()
    with pytest.raises(BadOption, match="cron"):
        schedule.cron(text)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "zone", ["Mars/Base", "", "../../etc/passwd", "/etc/localtime", "Europe", 5, None, "a" * 5000, "\0"]
)
def test_a_zone_that_does_not_exist_is_refused(zone: Any) -> None:
    with pytest.raises(BadOption, match="no such time zone"):
        schedule.cron("* * * * *", zone)


@pytest.mark.parametrize(
    "make",
    [
        lambda: schedule.every(0),
        lambda: schedule.every("99ms"),
        lambda: schedule.every(-5),
        lambda: schedule.every("soon"),
        lambda: schedule.every("4000d"),
        lambda: schedule.catch_up("some"),
        lambda: schedule.overlap(None),
        lambda: schedule.jitter(-1, Every(1_000)),
        lambda: schedule.jitter("1s", Every(1_000)),
        lambda: schedule.schedule_id("a b"),
        lambda: schedule.schedule_id(""),
        lambda: schedule.schedule_id("x" * 91),
        lambda: schedule.schedule_id("a\x1fb"),
    ],
)
def test_other_bad_options_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(BadOption):
        make()


# Which ticks run

NOW = at("2026-05-05 12:00")


@pytest.mark.parametrize(
    ("catch_up", "late", "want"),
    [
        ("all", -1, Ticks([], 0, NOW, NOW)),
        ("all", 0, Ticks([NOW], 0, NOW + 1_000, NOW + 1_000)),
        ("all", 2_500, Ticks([NOW, NOW + 1_000, NOW + 2_000], 0, NOW + 3_000, NOW + 3_000)),
        ("latest", 0, Ticks([NOW], 0, NOW + 1_000, NOW + 1_000)),
        ("latest", 2_500, Ticks([NOW + 2_000], NOW, NOW + 3_000, NOW + 3_000)),
        ("none", 999, Ticks([NOW], 0, NOW + 1_000, NOW + 1_000)),
        ("none", 2_500, Ticks([NOW + 2_000], NOW, NOW + 3_000, NOW + 3_000)),
    ],
)
def test_catch_up_says_which_of_the_missed_ones_run(catch_up: str, late: int, want: Ticks) -> None:
    assert plan("s", new_spec(1_000, catch_up=catch_up), NOW, NOW + late) == want


def test_none_and_latest_differ_for_what_is_long_past() -> None:
    missed = Ticks([], NOW, NOW + 3_600_000, NOW + 3_600_000)
    assert plan("s", new_spec(3_600_000, catch_up="none"), NOW, NOW + 10_001) == missed
    assert plan("s", new_spec(3_600_000, catch_up="none"), NOW, NOW + 10_000).run == [NOW]
    assert plan("s", new_spec(3_600_000, catch_up="latest"), NOW, NOW + 10_001).run == [NOW]


@pytest.mark.parametrize("catch_up", ["none", "latest", "all"])
def test_ten_years_of_missed_seconds_are_no_work(catch_up: str) -> None:
    began, years = time.monotonic(), 10 * 365 * 86_400_000
    ticks = plan("s", new_spec(1_000, catch_up=catch_up), NOW, NOW + years + 500)
    assert time.monotonic() - began < 5
    assert ticks.run == ([NOW + n * 1_000 for n in range(50)] if catch_up == "all" else [NOW + years])


@given(st.integers(0, 10**13), st.text(max_size=20))
def test_jitter_is_a_share_that_everybody_agrees_on(nominal: int, name: str) -> None:
    assert nominal <= due_of(name, nominal, 5_000) <= nominal + 5_000
    assert due_of(name, nominal, 5_000) == due_of(name, nominal, 5_000)
    assert due_of(name, nominal, 0) == nominal


def test_jitter_spreads_the_ticks() -> None:
    assert len({due_of("s", n * 60_000, 30_000) % 60_000 for n in range(100)}) > 90


@settings(deadline=None)
@given(st.integers(0, 300_000), st.sampled_from(["none", "latest", "all"]), st.integers(0, 900))
def test_workers_that_follow_the_plans_run_each_tick_at_most_once_and_in_order(
    step: int, catch_up: str, jitter: int
) -> None:
    spec, expected, now, ran = new_spec(1_000, catch_up=catch_up, jitter=jitter), NOW, NOW - 5_000, list[int]()
    for n in range(30):
        now += (step * (n + 1)) % 7_001
        ticks = plan("s", spec, expected, now)
        assert all(due_of("s", nominal, jitter) <= now for nominal in ticks.run)
        assert expected <= ticks.next
        assert ticks.due > now or len(ticks.run) == 50
        ran += ticks.run
        expected = ticks.next
    assert ran == sorted(set(ran))
    assert catch_up != "all" or ran == list(range(NOW, expected, 1_000))


def test_a_job_is_named_after_schedule_and_nominal_time() -> None:
    assert job_of("nightly", at("2026-05-05 12:00")) == "nightly@2026-05-05T12:00:00Z"
    assert job_of("fast", at("2026-05-05 12:00") + 250) == "fast@2026-05-05T12:00:00.250Z"


def test_the_version_follows_the_content() -> None:
    spec = new_spec()
    assert spec.version == new_spec().version
    others = [
        new_spec(2_000),
        new_spec(payload=b"x"),
        new_spec(priority=1),
        new_spec(overlap="skip"),
        new_spec(jitter=1),
    ]
    assert len({other.version for other in (spec, *others)}) == 6
    assert schedule.unpack(schedule.pack(spec)) == spec
