"""The options of a send: checked all together, before anything is sent."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from horsies.model.retry_policy import RetryPolicy
from horsies.model.validation import number_problems

OnConflict = Literal["return", "raise", "replace"]

MAX_KEY_LENGTH: Final = 255
MAX_SPAN: Final = timedelta(days=3_650)
_LOWEST, _HIGHEST = -(2**31), 2**31 - 1


@dataclass(frozen=True, slots=True)
class Key:
    """An idempotency key: what to do when another task has it, and how long it holds after its task's end."""

    name: str
    on_conflict: OnConflict
    window: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions:
    """What `with_options` takes; nothing is changed by what is None."""

    good_until: datetime | None = None
    priority: int | None = None
    queue_name: str | None = None
    eta: datetime | None = None
    key: str | None = None
    on_conflict: OnConflict | None = None
    key_window: float | timedelta | None = None

    def problems(self) -> Iterator[str]:
        moments = [*_moment_problems("good_until", self.good_until), *_moment_problems("eta", self.eta)]
        yield from moments
        if not moments and self.good_until and self.eta and self.good_until <= self.eta:
            yield f"good_until {self.good_until} is not after eta {self.eta}, so it could never run; move one of them"
        if self.priority is not None:
            yield from number_problems("priority", self.priority, _LOWEST, _HIGHEST)
        yield from self._key_problems()

    def as_key(self) -> Key | None:
        if self.key is None:
            return None
        return Key(self.key, self.on_conflict or "return", to_timedelta(self.key_window or 0))

    def _key_problems(self) -> Iterator[str]:
        if self.key is None:
            for name in ("on_conflict", "key_window"):
                if getattr(self, name) is not None:
                    yield f"{name} says nothing without a key; add key=..., or leave it out"
        elif not _is_key(self.key):
            yield f"key must be a text of 1 to {MAX_KEY_LENGTH} characters without NUL, not {_shown(self.key)}"
        if self.on_conflict not in (None, *get_args(OnConflict)):
            yield f'on_conflict must be "return", "raise" or "replace", not {self.on_conflict!r}'
        if self.key_window is not None:
            yield from span_problems("key_window", self.key_window)


def span_problems(name: str, value: object) -> Iterator[str]:
    """Of a length of time, given in seconds or as a timedelta."""
    match value:
        case bool():
            known = False
        case float():
            known = math.isfinite(value)
        case _:
            known = isinstance(value, int | timedelta)
    if not known:
        yield f"{name} must be a number of seconds or a timedelta, not {_shown(value)} ({type(value).__name__})"
    elif value < (timedelta(0) if isinstance(value, timedelta) else 0):  # pyright: ignore[reportOperatorIssue] - by now it is a number or a timedelta
        yield f"{name} is {value}, in the past; choose 0 or more"
    elif value > (MAX_SPAN if isinstance(value, timedelta) else MAX_SPAN.total_seconds()):  # pyright: ignore[reportOperatorIssue] - as above
        yield f"{name} is {value}; choose at most ten years ({MAX_SPAN.total_seconds():.0f} seconds)"


def to_timedelta(value: float | timedelta) -> timedelta:
    return value if isinstance(value, timedelta) else timedelta(seconds=value)


def _moment_problems(name: str, value: object) -> Iterator[str]:
    if value is None:
        return
    if not isinstance(value, datetime):
        yield f"{name} must be a datetime with a time zone, not {_shown(value)} ({type(value).__name__})"
    elif value.utcoffset() is None:
        yield f"{name} {value} has no time zone; use for example datetime.now(UTC) + timedelta(hours=1)"


def _is_key(key: object) -> bool:
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY_LENGTH or "\0" in key:
        return False
    return key.encode(errors="ignore").decode() == key  # half of a surrogate pair has no UTF-8 form


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_KEY_LENGTH else f"{text[:40]}..."


# --------
# On which terms tasks are sent.

TaskId: TypeAlias = str

DEFAULT_PRIORITY = 100


class TaskOptions(NamedTuple):
    """On which terms tasks are sent: all but what they are called with, the same for a whole batch.

    `due` is a moment, or how long from now on the database's clock; None is now.
    """

    task_name: str
    queue_name: str
    priority: int = DEFAULT_PRIORITY
    timeout_ms: int | None = None
    retry: RetryPolicy | None = None
    due: datetime | timedelta | None = None
    good_until: datetime | None = None
    trace: str | None = None
    """Of the trace in which they are sent; see `horsies.events.Tracer`."""
