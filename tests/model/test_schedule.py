from datetime import UTC, datetime, time, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from horsies import (
    ConfigError,
    CronSchedule,
    DailySchedule,
    HourlySchedule,
    IntervalSchedule,
    MonthlySchedule,
    Weekday,
    WeeklySchedule,
)
from horsies.model import schedule
from horsies.model.schedule import Pattern, newest_slots, next_slot, pattern_from_json, pattern_to_json, zone_named
from tests.schedules.oracle import Wanted, cron, is_last_day, slots_between

# A few days around a change of the clocks, or around a month's end where there is none.
CHANGES = [
    ("Europe/Berlin", datetime(2026, 3, 29, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 25, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 3, 8, 7, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),  # by half an hour
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
    ("America/Sao_Paulo", datetime(2018, 11, 4, 3, tzinfo=UTC)),  # at midnight: a day without a 00:00
    ("America/Sao_Paulo", datetime(2018, 2, 18, 2, tzinfo=UTC)),
    ("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC)),  # a whole day left out
    ("Asia/Kolkata", datetime(2026, 2, 28, tzinfo=UTC)),
    ("UTC", datetime(2028, 2, 29, tzinfo=UTC)),
]

minutes = st.integers(0, 59)
times = st.builds(time, st.integers(0, 23), minutes)
numbers = st.sampled_from(["*", "*/5", "*/7", "0", "30", "15,45", "10-20", "0-59/20", "59"])
crons = st.builds(
    "{} {} {} {} {}".format,
    numbers,
    st.sampled_from(["*", "*/2", "0", "1", "2", "1-3", "0,23", "9-17"]),
    st.sampled_from(["*", "1", "28-31", "*/2", "30"]),
    st.sampled_from(["*", "2,3", "10-12", "4"]),
    st.sampled_from(["*", "mon-fri", "sun", "sat,sun", "wed"]),
)


def daily(at: time) -> tuple[Pattern, Wanted]:
    return DailySchedule(at), lambda local: (local.hour, local.minute) == (at.hour, at.minute)


def weekly(days: list[Weekday], at: time) -> tuple[Pattern, Wanted]:
    names = list(Weekday)
    return WeeklySchedule(
        days, at
    ), lambda local: names[local.weekday()] in days and (local.hour, local.minute) == (at.hour, at.minute)


def monthly(day: int, at: time) -> tuple[Pattern, Wanted]:
    return MonthlySchedule(day, at), lambda local: (local.day, local.hour, local.minute) == (day, at.hour, at.minute)


def at_the_end_of_the_month(at: time) -> tuple[Pattern, Wanted]:
    return MonthlySchedule(
        "last", at
    ), lambda local: is_last_day(local) and (local.hour, local.minute) == (at.hour, at.minute)


def hourly(minute: int) -> tuple[Pattern, Wanted]:
    return HourlySchedule(minute), lambda local: local.minute == minute


def by_cron(expression: str) -> tuple[Pattern, Wanted]:
    return CronSchedule(expression), cron(expression)


patterns = st.one_of(
    st.builds(daily, times),
    st.builds(weekly, st.lists(st.sampled_from(Weekday), min_size=1), times),
    st.builds(monthly, st.sampled_from([1, 28, 29, 30, 31]), times),
    st.builds(at_the_end_of_the_month, times),
    st.builds(hourly, minutes),
    st.builds(by_cron, crons),
)


@pytest.mark.promise("T4")
@settings(max_examples=70)
@given(
    made=patterns,
    change=st.sampled_from(CHANGES),
    before=st.timedeltas(timedelta(0), timedelta(days=1)),
    length=st.timedeltas(timedelta(hours=1), timedelta(days=2)),
    limit=st.integers(1, 50),
)
@example(daily(time(2, 30)), CHANGES[0], timedelta(hours=5), timedelta(days=2), 9)
@example(daily(time(2, 30)), CHANGES[1], timedelta(hours=5), timedelta(days=2), 9)
@example(by_cron("*/5 * * * *"), CHANGES[1], timedelta(0), timedelta(hours=1, minutes=20), 50)
@example(hourly(45), CHANGES[4], timedelta(hours=3), timedelta(hours=6), 9)
@example(daily(time(0, 0)), CHANGES[6], timedelta(days=1), timedelta(days=2), 9)
def test_slots_are_the_times_that_the_local_clock_shows(
    made: tuple[Pattern, Wanted], change: tuple[str, datetime], before: timedelta, length: timedelta, limit: int
) -> None:
    (pattern, wanted), (name, moment) = made, change
    zone, after = zone_named(name), moment - before
    until = after + length
    expected = list(slots_between(wanted, name, after, until))
    found, slot = list[datetime](), next_slot(pattern, zone, after)
    while slot is not None and slot <= until:
        found.append(slot)
        slot = next_slot(pattern, zone, slot)
    assert found == expected
    assert newest_slots(pattern, zone, after, until, limit) == expected[-limit:]


def test_a_time_that_does_not_exist_is_skipped_and_one_that_occurs_twice_is_used_once() -> None:
    berlin, at_half_past_two = zone_named("Europe/Berlin"), DailySchedule(time(2, 30))
    spring = next_slot(at_half_past_two, berlin, datetime(2026, 3, 28, 12, tzinfo=UTC))
    assert spring == datetime(2026, 3, 30, 0, 30, tzinfo=UTC)
    autumn = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert next_slot(at_half_past_two, berlin, datetime(2026, 10, 24, 12, tzinfo=UTC)) == autumn
    assert next_slot(at_half_past_two, berlin, autumn) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


def test_seconds_are_kept() -> None:
    assert next_slot(DailySchedule(time(9, 30, 15)), UTC, datetime(2026, 1, 1, 9, 30, 14, 999, tzinfo=UTC)) == datetime(
        2026, 1, 1, 9, 30, 15, tzinfo=UTC
    )
    assert next_slot(HourlySchedule(5, 7), UTC, datetime(2026, 1, 1, 9, 5, 7, tzinfo=UTC)) == datetime(
        2026, 1, 1, 10, 5, 7, tzinfo=UTC
    )


@given(
    length=st.integers(1, 90_000),
    after=st.datetimes(datetime(2026, 3, 28), datetime(2026, 3, 30), timezones=st.just(UTC)),  # noqa: DTZ001 - as hypothesis wants it
)
def test_intervals_do_not_change_when_the_clock_does(length: int, after: datetime) -> None:
    pattern, zone, pace = IntervalSchedule(seconds=length), zone_named("Europe/Berlin"), timedelta(seconds=length)
    slots = [after]
    for _ in range(5):
        slots.append(next_slot(pattern, zone, slots[-1]) or after)
    assert timedelta(0) < slots[1] - after <= pace
    assert {later - earlier for earlier, later in pairwise(slots[1:])} == {pace}
    assert newest_slots(pattern, zone, slots[1], slots[-1], 3) == slots[-3:]
    assert slots[1].timestamp() % length == 0


def test_old_missed_slots_are_not_computed_one_by_one() -> None:
    until = datetime(2026, 6, 1, tzinfo=UTC)
    slots = newest_slots(CronSchedule("* * * * *"), UTC, datetime(1990, 1, 1, tzinfo=UTC), until, 2)
    assert slots == [until - timedelta(minutes=1), until]


@given(made=patterns)
def test_a_pattern_can_be_stored_and_read_again(made: tuple[Pattern, Wanted]) -> None:
    assert pattern_from_json(pattern_to_json(made[0])) == made[0]
    assert pattern_from_json(pattern_to_json(IntervalSchedule(hours=2))) == IntervalSchedule(hours=2)


@pytest.mark.parametrize(
    "stored",
    [
        {"kind": "lunar"},
        {"kind": ["daily"]},
        {},
        [],
        {"kind": "daily"},
        {"kind": "daily", "time": ["09:00", "17:00"]},
        {"kind": "hourly", "minute": 77},
    ],
)
def test_a_pattern_of_another_release_is_refused(stored: Any) -> None:
    with pytest.raises(ValueError, match=r"not known|cannot be read"):
        pattern_from_json(stored)


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (IntervalSchedule, {}, "choose one of a second to ten years"),
        (IntervalSchedule, {"days": 4_000}, "choose one of a second to ten years"),
        (IntervalSchedule, {"seconds": -1}, "seconds is -1"),
        (IntervalSchedule, {"minutes": 1.5}, "minutes must be a whole number"),
        (HourlySchedule, {"minute": 60}, "minute is 60"),
        (DailySchedule, {"time": "9:30"}, r"write time\(9, 30\)"),
        (DailySchedule, {"time": time(9, 30, 0, 5)}, "everything below seconds"),
        (DailySchedule, {"time": time(9, 30, tzinfo=UTC)}, "leave out its zone"),
        (WeeklySchedule, {"days": [], "time": time(9)}, "at least one day"),
        (WeeklySchedule, {"days": "mon", "time": time(9)}, "at least one day"),
        (WeeklySchedule, {"days": ["monday"], "time": time(9)}, "days has 'monday'; choose from 'mon'"),
        (MonthlySchedule, {"day": 0, "time": time(9)}, "day is 0"),
        (MonthlySchedule, {"day": "first", "time": time(9)}, 'or "last"'),
        (CronSchedule, {"expression": "* * * *"}, "has 4 fields"),
        (CronSchedule, {"expression": "@daily"}, "has 1 fields"),
        (CronSchedule, {"expression": "61 * * * *"}, "Bad minute"),
        (CronSchedule, {"expression": "* * * * fri-mon"}, "Bad day-of-week"),
        (CronSchedule, {"expression": "0 0 30 2 *"}, "Bad day-of-month"),
        (CronSchedule, {"expression": "*/60 * * * *"}, "has a step in its minute that is above 59"),
        (
            CronSchedule,
            {"expression": "0 9-17,*/99999999999999999999 * * *"},
            "has a step in its hour that is above 23",
        ),
        (CronSchedule, {"expression": 5}, "expression must be a string"),
    ],
)
def test_an_invalid_pattern_is_refused(kind: Any, values: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        kind(**values)


@given(st.text("0123456789*/-,#LWlmonsuea@ ", max_size=20))
def test_any_text_is_a_cron_expression_or_a_config_error(text: str) -> None:
    try:
        pattern = CronSchedule(text)
    except ConfigError:
        return
    assert next_slot(pattern, UTC, datetime(2026, 1, 1, tzinfo=UTC)) is not None


@pytest.mark.parametrize(
    "name", ["Europe/Atlantis", "Europe", "../UTC", "", "Mars", "a\0b", 7, "posixrules", "localtime", "right/UTC"]
)
def test_an_unknown_zone_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not known; choose an IANA name"):
        zone_named(name)


def test_without_a_time_zone_database_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> set[str]:
        return set()

    monkeypatch.setattr(schedule, "available_timezones", none)
    assert zone_named("UTC") is UTC
    with pytest.raises(ValueError, match="install the package tzdata"):
        zone_named("Europe/Atlantis")
