"""When a schedule is due: the slots that a pattern makes in a time zone. Pure; there is no clock in here.

A *slot* is a moment at which a schedule is due, in UTC, to the second. It follows from the pattern and the zone alone, so any two
schedulers find the same ones.

**Local times.** All patterns but intervals are cron expressions at heart, and are read on the wall clock, which knows nothing of offsets. Each
local time is then looked up in the zone: one that does not exist (the clock was put forward over it) is skipped, and one that occurs twice (the
clock was put back) is taken the first time only. That holds for every pattern alike, hourly ones included. Intervals are in absolute time,
counted from 1970-01-01 00:00 UTC: the clock may be changed, their pace does not.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from horsies.model.patterns import IntervalSchedule, Pattern

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
SECOND: Final = timedelta(seconds=1)

# Files beside the zones: each machine's own, or of clocks that count leap seconds.
_NO_ZONES: Final = re.compile(r"(posix|right)/.*|posixrules|localtime|Factory")


def zone_named(name: str) -> tzinfo:
    """Raises ValueError that says what to change. UTC is known also where there is no time zone database."""
    if name == "UTC":
        return UTC
    try:
        if not _NO_ZONES.fullmatch(name):
            return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        pass
    if not available_timezones():
        raise ValueError(
            f"timezone {name!r} cannot be looked up, because there is no time zone database here; install the package tzdata, "
            "with pip or with the system's package manager"
        )
    raise ValueError(f"timezone {name!r} is not known; choose an IANA name, such as 'Europe/Berlin' or 'UTC'")


@lru_cache(maxsize=4_096)  # those that are due together mostly go by the same clock
def next_slot(pattern: Pattern, zone: tzinfo, after: datetime) -> datetime | None:
    """The first slot later than this moment. None: there are none for the next 50 years."""
    if isinstance(pattern, IntervalSchedule):
        return EPOCH + ((after - EPOCH) // pattern.length + 1) * pattern.length
    local = after.astimezone(zone).replace(tzinfo=None, fold=0)
    found = (_moment(time, zone) for time in _local_times(pattern.cron, local))
    return next((slot for slot in found if slot is not None and slot > after), None)


def newest_slots(pattern: Pattern, zone: tzinfo, after: datetime, until: datetime, limit: int) -> list[datetime]:
    """The last so many slots later than `after` and not later than `until`, oldest first. Those before them are not looked at."""
    found: list[datetime] = []
    for slot in _slots_back(pattern, zone, until):
        if slot <= after or len(found) == limit:
            break
        found.append(slot)
    return found[::-1]


def _slots_back(pattern: Pattern, zone: tzinfo, until: datetime) -> Iterator[datetime]:
    if isinstance(pattern, IntervalSchedule):
        slot = EPOCH + (until - EPOCH) // pattern.length * pattern.length
        while True:
            yield slot
            slot -= pattern.length
    here = until.astimezone(zone)
    # When the clock was just put back, the local times that are still to come again have been, and count.
    repeated = _offset(here.replace(fold=0)) - _offset(here.replace(fold=1))
    start = here.replace(tzinfo=None, fold=0) + max(repeated, timedelta(0)) + SECOND
    for local in _local_times(pattern.cron, start, backwards=True):
        slot = _moment(local, zone)
        if slot is not None and slot <= until:
            yield slot


def _local_times(cron: str, start: datetime, *, backwards: bool = False) -> Iterator[datetime]:
    """What is on the wall clock, later (or earlier) than the start."""
    from cronsim import CronSim  # noqa: PLC0415 - a child that runs tasks needs no calendar

    return CronSim(cron, start, backwards)


def _moment(local: datetime, zone: tzinfo) -> datetime | None:
    """The first time that the clocks there show this; None if they never do."""
    slot = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    return slot if slot.astimezone(zone).replace(tzinfo=None) == local else None


def _offset(here: datetime) -> timedelta:
    return here.utcoffset() or timedelta(0)
