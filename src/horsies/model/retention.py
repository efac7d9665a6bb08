"""Settings for how long what is over is kept."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from horsies.model.problems import refuse
from horsies.model.value import Value

SHORTEST: Final = timedelta(hours=1)
LONGEST: Final = timedelta(days=36_500)
MOST_OFTEN: Final = timedelta(seconds=1)
SELDOM: Final = timedelta(days=1)


class RetentionConfig(Value):
    """How long what is over is kept; None keeps it for ever. The keeper sees to it `every` few minutes.

    Finished tasks go by whole days (UTC): at least as old as this, and at most a day older. A workflow goes with all runs below it, and their
    nodes' results with them.
    """

    finished: timedelta | None = timedelta(days=7)
    workflows: timedelta | None = timedelta(days=30)
    worker_states: timedelta | None = timedelta(days=1)
    schedule_runs: timedelta | None = timedelta(days=30)
    every: timedelta = timedelta(minutes=5)

    def __post_init__(self) -> None:
        refuse(self, self._problems())

    def _problems(self) -> Iterator[str]:
        for name, value in self._fields():
            if name == "every":
                yield from _span_problems("every", value, MOST_OFTEN, SELDOM, "timedelta(minutes=5)")
            elif value is not None:
                yield from _span_problems(name, value, SHORTEST, LONGEST, "timedelta(days=7), or None for ever")


def _span_problems(name: str, value: object, low: timedelta, high: timedelta, example: str) -> Iterator[str]:
    if not isinstance(value, timedelta):
        yield f"{name} must be a timedelta, not {value!r} ({type(value).__name__}); write {name}={example}"
    elif not low <= value <= high:
        yield f"{name} is {value}; choose from {low} to {high}, such as {name}={example}"
