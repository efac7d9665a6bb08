"""Helpers that configurations share: find problems, raise them all together, and format durations."""

from collections.abc import Iterable, Iterator, Sequence

from horsies.model.errors import ConfigError

_TENTHS_BELOW_S = 10


def raise_problems(config: object, problems: Iterable[str]) -> None:
    """Raise one ConfigError with all problems, if there are any. `config` is the configuration, or its name."""
    if found := list(problems):
        raise ConfigError(config if isinstance(config, str) else type(config).__name__, found)


def number_problems(name: str, value: object, low: int, high: int) -> Iterator[str]:
    if not isinstance(value, int) or isinstance(value, bool):
        yield f"{name} must be a whole number from {low} to {high}, not {value!r} ({type(value).__name__})"
    elif not low <= value <= high:
        yield f"{name} is {value}; choose a whole number from {low} to {high}"


def range_problems(config: object, **ranges: tuple[int, int]) -> Iterator[str]:
    """Check fields of a configuration that are whole numbers, each with its lowest and highest value."""
    for name, (low, high) in ranges.items():
        yield from number_problems(name, getattr(config, name), low, high)


def instance_problems(name: str, value: object, wanted: type, example: str) -> Iterator[str]:
    # Do not show the value: a database URL passed in place of a PostgresConfig contains a password.
    if not isinstance(value, wanted):
        yield f"{name} must be of type {wanted.__name__}, not {type(value).__name__}; write {name}={example}"


def duplicate_problems(counted: str, names: Sequence[str]) -> Iterator[str]:
    """Report names that occur more than once. `counted` has a place for their number, such as `there are {} schedules`."""
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{counted.format(names.count(name))} named {name!r}; give each its own name"


def format_duration(seconds: float) -> str:
    """Format a duration with its two largest units: `3m 12s`, `2d 4h`, `0.3s`."""
    if seconds < _TENTHS_BELOW_S:
        return f"{seconds:.1f}s"
    left, parts = round(seconds), list[str]()
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])
