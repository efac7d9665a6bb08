"""Durations as people type them: `90s`, `15m`, `2h`."""

import re
from typing import Final

import click

_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d+)?)([smhd])")


def seconds(text: str) -> float:
    """For options."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise click.BadParameter(f"{text!r} is no duration; write 90s, 15m, 2h or 7d")
    return float(found[1]) * _UNITS[found[2]]
