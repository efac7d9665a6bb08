"""The slots of a pattern, computed minute by minute in local time. Shares no code with the product."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

Wanted = Callable[[datetime], bool]
MINUTE = timedelta(minutes=1)

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def slots_between(wanted: Wanted, zone: str, after: datetime, until: datetime) -> Iterator[datetime]:
    """Return the slots later than `after` and not later than `until`.

    The loop runs in UTC: a local time that does not exist never occurs, and the second occurrence of one has `fold` set.
    """
    clock, moment = ZoneInfo(zone), after.astimezone(UTC).replace(second=0, microsecond=0) + MINUTE
    while moment <= until:
        local = moment.astimezone(clock)
        if local.fold == 0 and wanted(local):
            yield moment
        moment += MINUTE


def cron(expression: str) -> Wanted:
    """Parse a cron expression with numbers, names of days, lists, ranges and steps: what the tests use."""
    minute, hour, day, month, weekday = expression.split()
    minutes, hours, months = field(minute, 0, 59), field(hour, 0, 23), field(month, 1, 12)
    days = field(day, 1, 31)
    weekdays = field(weekday, 0, 6, DAYS)
    either = not day.startswith("*") and not weekday.startswith("*")

    def wanted(local: datetime) -> bool:
        if local.minute not in minutes or local.hour not in hours or local.month not in months:
            return False
        by_day, by_weekday = local.day in days, local.weekday() in weekdays
        return by_day or by_weekday if either else by_day and by_weekday

    return wanted


def field(text: str, low: int, high: int, names: tuple[str, ...] = ()) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, dash, last = span.partition("-")
        start = low if span == "*" else number(first, names)
        end = high if span == "*" or (step and not dash) else number(last if dash else first, names)
        found.update(range(start, end + 1, int(step or 1)))
    return found


def number(text: str, names: tuple[str, ...]) -> int:
    return names.index(text) if text in names else int(text)


def is_last_day(local: datetime) -> bool:
    return (local + timedelta(days=1)).day == 1
