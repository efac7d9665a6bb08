"""`RetryPolicy`: which failed attempts are followed by another, and after which delays."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self, TypeAlias, cast

from horsies.model.result import is_error_code
from horsies.model.validation import number_problems, raise_problems

RetryFor: TypeAlias = Sequence[str | type[BaseException]]

MAX_RETRIES: Final = 1_000
MAX_DELAY_S: Final = 24 * 24 * 3600  # in milliseconds it must fit an integer of PostgreSQL


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How many retries, after which delays, and for which errors. Create one with `fixed` or `exponential`.

    `auto_retry_for` lists error codes and exception classes. Codes are stored with the task, so that a crash is retried also by a
    worker that does not know the task. Exceptions are matched in the child, where they are raised.
    """

    delays_ms: tuple[int, ...]
    jitter: float
    codes: tuple[str, ...]
    exceptions: tuple[type[BaseException], ...]

    @property
    def max_retries(self) -> int:
        """The number of retries: one after each delay."""
        return len(self.delays_ms)

    @classmethod
    def fixed(cls, delays_seconds: Sequence[float], *, auto_retry_for: RetryFor, jitter: float = 0.0) -> Self:
        """Retry once after each of these delays."""
        raise_problems("RetryPolicy", [*_delays_problems(delays_seconds), *_common_problems(jitter, auto_retry_for)])
        return cls._from_delays([seconds * 1000 for seconds in delays_seconds], jitter, auto_retry_for)

    @classmethod
    def exponential(
        cls,
        base_seconds: float,
        max_retries: int,
        auto_retry_for: RetryFor,
        max_delay_seconds: float = 3600.0,
        jitter: float = 0.25,
    ) -> Self:
        """Retry after delays that double, up to the longest. Each is moved at random by up to `jitter` of it, to spread retries out."""
        problems = [
            *_seconds_problems("base_seconds", base_seconds),
            *_seconds_problems("max_delay_seconds", max_delay_seconds),
            *number_problems("max_retries", max_retries, 1, MAX_RETRIES),
            *_common_problems(jitter, auto_retry_for),
        ]
        raise_problems("RetryPolicy", problems)
        longest_ms = max_delay_seconds * 1000
        delays_ms = [min(base_seconds * 1000 * 2.0 ** min(retry, 60), longest_ms) for retry in range(max_retries)]
        return cls._from_delays(delays_ms, jitter, auto_retry_for)

    @classmethod
    def _from_delays(cls, delays_ms: Sequence[float], jitter: float, retry_for: RetryFor) -> Self:
        return cls(
            delays_ms=tuple(round(delay) for delay in delays_ms),
            jitter=jitter,
            codes=tuple(str(item) for item in retry_for if isinstance(item, str)),
            exceptions=tuple(item for item in retry_for if not isinstance(item, str)),
        )


def _delays_problems(delays: object) -> Iterator[str]:
    if not isinstance(delays, Sequence) or isinstance(delays, str):
        yield f"delays must be a list of seconds like [1, 5, 30], not {delays!r}"
        return
    listed = cast("Sequence[object]", delays)
    if not 1 <= len(listed) <= MAX_RETRIES:
        yield f"delays has {len(listed)} entries; give 1 to {MAX_RETRIES}, one for each retry"
    for position, delay in enumerate(listed):
        yield from _seconds_problems(f"delays[{position}]", delay)


def _seconds_problems(name: str, value: object) -> Iterator[str]:
    if not _is_number(value) or not 0 <= cast("float", value) <= MAX_DELAY_S:  # NaN fails both comparisons
        yield f"{name} is {value!r}; give seconds from 0 to {MAX_DELAY_S}"


def _common_problems(jitter: object, retry_for: object) -> Iterator[str]:
    if not _is_number(jitter) or not 0 <= cast("float", jitter) <= 1:
        yield f"jitter is {jitter!r}; give the fraction of a delay that it may be moved by, from 0 to 1"
    if not isinstance(retry_for, Sequence) or isinstance(retry_for, str) or not retry_for:
        yield 'auto_retry_for must list what is retried, like ["TASK_TIMEOUT", ConnectionError]'
        return
    for item in cast("Sequence[object]", retry_for):
        if isinstance(item, str):
            if not is_error_code(item):
                yield f"auto_retry_for has {item!r}; write error codes in upper snake case"
        elif not (isinstance(item, type) and issubclass(item, BaseException)):
            yield f"auto_retry_for has {item!r}; it takes error codes and exception classes"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
