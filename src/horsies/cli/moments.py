"""Moments and durations as people type them: `2h`, or a date and time."""

import re
from datetime import datetime, timedelta
from typing import Final, TypeAlias

import click

Moment: TypeAlias = datetime | timedelta
"""An absolute one, or how long ago by the database's clock."""

_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d+)?)([smhdw])")


def moment(text: str) -> Moment:
    """For options. A date and time without a zone is in the machine's own, as those in tables are."""
    try:
        if _DURATION.fullmatch(text.strip()):
            return timedelta(seconds=seconds(text))
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is no moment; write 90s, 30m, 2h, 7d or 1w for so long ago, or 2030-12-31T18:00"
        ) from None


def seconds(text: str) -> float:
    """`90s`, `15m`, `2h`; a bare number is one of seconds, as in other options."""
    found = _DURATION.fullmatch(text.strip()) or _DURATION.fullmatch(f"{text.strip()}s")
    if found is None:
        raise click.BadParameter(f"{text!r} is no duration; write 90s, 15m, 2h or 7d")
    return float(found[1]) * _UNITS[found[2]]


def absolute(given: Moment | None, now: datetime) -> datetime | None:
    try:
        return now - given if isinstance(given, timedelta) else given
    except OverflowError:
        raise click.UsageError("that long ago there were no moments; take a shorter time") from None
