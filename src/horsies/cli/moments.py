"""Moments as people type them: `2h` ago, or a date and time."""

import re
from datetime import datetime, timedelta
from typing import TypeAlias

import click

Moment: TypeAlias = datetime | timedelta
"""An absolute one, or how long ago."""

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


def moment(text: str) -> Moment:
    """For options. A date and time without a zone is in the machine's own, as those in tables are."""
    try:
        if ago := _AGO.fullmatch(text.strip()):
            return timedelta(**{_UNITS[ago[2]]: float(ago[1])})
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is no moment; write 90s, 30m, 2h, 7d or 1w for so long ago, or 2030-12-31T18:00"
        ) from None


def absolute(given: Moment | None, now: datetime) -> datetime | None:
    try:
        return now - given if isinstance(given, timedelta) else given
    except OverflowError:
        raise click.UsageError("that long ago there were no moments; take a shorter time") from None
