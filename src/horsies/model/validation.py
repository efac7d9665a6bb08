"""Helpers that configurations share: find problems, raise them all together, and format and parse durations."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, cast

from horsies.model.errors import ConfigError
from horsies.model.payload_errors import MAX_NAME, short_repr

_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d+)?)([smhdw])")


class Checked:
    """A dataclass that raises one ConfigError with all problems of its fields."""

    __slots__ = ()

    def __post_init__(self) -> None:
        raise_problems(self, self._problems())

    def _problems(self) -> Iterator[str]:
        raise NotImplementedError


def raise_problems(config: object, problems: Iterable[str]) -> None:
    """Raise one ConfigError with all problems, if there are any. `config` is the configuration, or its name."""
    if found := list(problems):
        raise ConfigError(config if isinstance(config, str) else type(config).__name__, found)


def number_problems(name: str, value: object, low: int, high: int) -> Iterator[str]:
    if not isinstance(value, int) or isinstance(value, bool):
        yield f"{name} must be a whole number from {low} to {high}, not {value!r} ({type(value).__name__})"
    elif not low <= value <= high:
        yield f"{name} is {value}; choose a whole number from {low} to {high}"


def range_problems(config: object, **ranges: tuple[int, int] | tuple[int, int, None]) -> Iterator[str]:
    """Check fields of a configuration that are whole numbers, each with its lowest and highest value, and None if it may be None."""
    for name, (low, high, *others) in ranges.items():
        if (value := getattr(config, name)) is not None or not others:
            yield from number_problems(name, value, low, high)


def name_problems(what: str, name: object) -> Iterator[str]:
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        yield f"{what} must be 1 to {MAX_NAME} printable characters, not {short_repr(name)}"


def instance_problems(name: str, value: object, wanted: type, example: str) -> Iterator[str]:
    # Do not show the value: a database URL passed in place of a PostgresConfig contains a password.
    if not isinstance(value, wanted):
        yield f"{name} must be of type {wanted.__name__}, not {type(value).__name__}; write {name}={example}"


def freeze_list(config: object, name: str) -> None:
    """Replace a list in a field by a tuple: the caller could change it. Anything else is left for `list_problems`."""
    given = getattr(config, name)
    if isinstance(given, Sequence) and not isinstance(given, str):
        object.__setattr__(config, name, tuple(cast("Sequence[object]", given)))


def list_problems(name: str, values: object, kind: type, counted: str) -> Iterator[str]:
    """Check a list of configurations with names. `counted` has a place for their number, such as `there are {} schedules`."""
    if not isinstance(values, tuple):
        yield f"{name} must be a list of {kind.__name__}, not {type(values).__name__}"
        return
    listed = cast("tuple[Any, ...]", values)
    for position, value in enumerate(listed):
        yield from instance_problems(f"{name}[{position}]", value, kind, f"{kind.__name__}(...)")
    names = Counter[str](value.name for value in listed if isinstance(value, kind))
    for each in sorted(each for each, count in names.items() if count > 1):
        yield f"{counted.format(names[each])} named {each!r}; give each its own name"


def format_duration(seconds: float) -> str:
    """Format a duration with its two largest units: `3m 12s`, `2d 4h`, `0.3s`."""
    if seconds < 10:  # noqa: PLR2004 - tenths are shown below
        return f"{seconds:.1f}s"
    left, parts = round(seconds), list[str]()
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def parse_duration(text: str) -> float | None:
    """Return the seconds of `90s`, `15m`, `2h`, `7d` or `1w`; None for any other text."""
    match = _DURATION.fullmatch(text.strip())
    return None if match is None else float(match[1]) * _UNITS[match[2]]
