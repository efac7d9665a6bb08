"""What configurations share: finding problems, and refusing with all of them together."""

from collections.abc import Iterable, Iterator

from horsies.model.errors import ConfigError


def raise_problems(config: object, problems: Iterable[str]) -> None:
    """Raises one ConfigError for all the problems, if there are any. `config` may be its name."""
    if found := list(problems):
        raise ConfigError(config if isinstance(config, str) else type(config).__name__, found)


def number_problems(name: str, value: object, low: int, high: int) -> Iterator[str]:
    if not isinstance(value, int) or isinstance(value, bool):
        yield f"{name} must be a whole number from {low} to {high}, not {value!r} ({type(value).__name__})"
    elif not low <= value <= high:
        yield f"{name} is {value}; choose a whole number from {low} to {high}"


def instance_problems(name: str, value: object, wanted: type, example: str) -> Iterator[str]:
    # The value itself is not shown: a database URL given in place of a PostgresConfig carries a password.
    if not isinstance(value, wanted):
        yield f"{name} must be of type {wanted.__name__}, not {type(value).__name__}; write {name}={example}"


# --------
# How long something takes, as a person reads it.

SHORT_S = 10


def format_duration(seconds: float) -> str:
    """The two largest units: `3m 12s`, `2d 4h`, `0.3s`."""
    if seconds < SHORT_S:
        return f"{seconds:.1f}s"
    left, parts = round(seconds), list[str]()
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])
