"""When a failed attempt is followed by another."""

import math
from collections.abc import Iterator, Sequence
from typing import Self, cast

from horsies.model.record import Record
from horsies.model.result import is_error_code
from horsies.model.validation import raise_problems

MAX_RETRIES = 1_000
MAX_DELAY_S = 24 * 24 * 3600  # in milliseconds it must fit an integer of PostgreSQL


class RetryPolicy(Record):
    """How many retries, after which pauses, and for which errors. Make one with `fixed` or `exponential`.

    `auto_retry_for` lists error codes and exception classes. Codes travel with the task, so that a crash is retried also by a
    worker that does not know it; exceptions are matched where they are raised.
    """

    delays_ms: tuple[int, ...]
    jitter: float
    codes: tuple[str, ...]
    exceptions: tuple[type[BaseException], ...]

    @property
    def max_retries(self) -> int:
        """How often it is tried again: once after each pause."""
        return len(self.delays_ms)

    @classmethod
    def fixed(
        cls,
        delays_seconds: Sequence[float],
        *,
        auto_retry_for: Sequence[str | type[BaseException]],
        jitter: float = 0.0,
    ) -> Self:
        """One retry after each of these pauses."""
        problems = [*_delay_problems(delays_seconds), *_common_problems(jitter, auto_retry_for)]
        _refuse(problems)
        return cls._made([seconds * 1000 for seconds in delays_seconds], jitter, auto_retry_for)

    @classmethod
    def exponential(
        cls,
        base_seconds: float,
        max_retries: int,
        auto_retry_for: Sequence[str | type[BaseException]],
        max_delay_seconds: float = 3600.0,
        jitter: float = 0.25,
    ) -> Self:
        """Pauses that double, up to the longest; chance moves each by up to `jitter` of it, so that a crowd spreads out."""
        problems = [
            *_seconds_problems("base_seconds", base_seconds),
            *_seconds_problems("max_delay_seconds", max_delay_seconds),
            *_count_problems(max_retries),
            *_common_problems(jitter, auto_retry_for),
        ]
        _refuse(problems)
        longest_ms = max_delay_seconds * 1000
        delays_ms = [min(base_seconds * 1000 * 2.0 ** min(retry, 60), longest_ms) for retry in range(max_retries)]
        return cls._made(delays_ms, jitter, auto_retry_for)

    @classmethod
    def _made(cls, delays_ms: Sequence[float], jitter: float, retry_for: Sequence[str | type[BaseException]]) -> Self:
        return cls(
            delays_ms=tuple(round(delay) for delay in delays_ms),
            jitter=jitter,
            codes=tuple(str(item) for item in retry_for if isinstance(item, str)),
            exceptions=tuple(item for item in retry_for if not isinstance(item, str)),
        )


def _refuse(problems: Sequence[str]) -> None:
    raise_problems("RetryPolicy", problems)


def _delay_problems(delays: object) -> Iterator[str]:
    if not isinstance(delays, Sequence) or isinstance(delays, str):
        yield f"delays must be a list of seconds like [1, 5, 30], not {delays!r}"
        return
    listed = cast("Sequence[object]", delays)
    if not 1 <= len(listed) <= MAX_RETRIES:
        yield f"delays has {len(listed)} entries; give 1 to {MAX_RETRIES}, one for each retry"
    for position, delay in enumerate(listed):
        yield from _seconds_problems(f"delays[{position}]", delay)


def _seconds_problems(name: str, value: object) -> Iterator[str]:
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not math.isfinite(value)
        or not 0 <= value <= MAX_DELAY_S
    ):
        yield f"{name} is {value!r}; give seconds from 0 to {MAX_DELAY_S}"


def _count_problems(value: object) -> Iterator[str]:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_RETRIES:
        yield f"max_retries is {value!r}; give a whole number from 1 to {MAX_RETRIES}"


def _common_problems(jitter: object, retry_for: object) -> Iterator[str]:
    if not isinstance(jitter, int | float) or isinstance(jitter, bool) or not 0 <= jitter <= 1:
        yield f"jitter is {jitter!r}; give the share of a delay that chance may move it by, from 0 to 1"
    if not isinstance(retry_for, Sequence) or isinstance(retry_for, str) or not retry_for:
        yield 'auto_retry_for must list what is retried, like ["TASK_TIMEOUT", ConnectionError]'
        return
    for item in cast("Sequence[object]", retry_for):
        if isinstance(item, str):
            if not is_error_code(item):
                yield f"auto_retry_for has {item!r}; write error codes in upper snake case"
        elif not (isinstance(item, type) and issubclass(item, BaseException)):
            yield f"auto_retry_for has {item!r}; it takes error codes and exception classes"
