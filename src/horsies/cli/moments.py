"""Moments and durations as they are typed: `2h`, `2026-11-15T09:00`."""

import re
from datetime import datetime, timedelta
from typing import Final

import click

_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d+)?)([smhdw])")


def moment(text: str) -> datetime | timedelta:
    """A duration, which counts back from now by the database's clock, or a date and time; without a zone, this machine's."""
    if _DURATION.fullmatch(text):
        return timedelta(seconds=seconds(text))
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no moment; write 90s, 15m, 2h or 7d, or a date such as 2026-11-15T09:00"
        ) from None


def seconds(text: str) -> float:
    """`90s`, `15m`, `2h`."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is no duration; write 90s, 15m, 2h or 7d")
    return float(found[1]) * _UNITS[found[2]]
