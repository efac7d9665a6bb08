"""The options of a send, and those of the task that it creates. All problems are found together, before anything is sent."""

import math
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from horsies.model.payload_errors import short_repr
from horsies.model.retry_policy import RetryPolicy
from horsies.model.validation import number_problems

OnConflict = Literal["return", "raise", "replace"]
TaskId: TypeAlias = str

DEFAULT_PRIORITY: Final = 100
MAX_KEY_LENGTH: Final = 255
MAX_SPAN: Final = timedelta(days=3_650)
_MIN_PRIORITY, _MAX_PRIORITY = -(2**31), 2**31 - 1


class TaskOptions(NamedTuple):
    """How tasks are sent: everything except their ids and arguments, the same for a whole batch.

    `due` is a point in time, or a delay from now on the database's clock; None is now.
    """

    task_name: str
    queue_name: str
    priority: int = DEFAULT_PRIORITY
    timeout_ms: int | None = None
    retry: RetryPolicy | None = None
    due: datetime | timedelta | None = None
    good_until: datetime | None = None
    trace: str | None = None
    """The trace context of the send; see `horsies.events.Tracer`."""
    is_sensitive: bool = False
    on_failure: str | None = None
    """The task that is enqueued if this one fails, with its options, as JSON text."""


SENT_COLUMNS: Final[Mapping[str, str]] = {
    "task_name": "pg_catalog.text",
    "queue_name": "pg_catalog.text",
    "priority": "integer",
    "timeout_ms": "integer",
    "retry_delays_ms": "integer[]",
    "retry_jitter": "real",
    "retry_for": "pg_catalog.text[]",
    "trace": "pg_catalog.text",
    "is_sensitive": "boolean",
    "on_failure": "pg_catalog.text",
}
"""The columns that `TaskOptions` set, with their types, except the times. `tasks`, `finished` and `nodes` have all of them."""


def sent_values(options: TaskOptions) -> dict[str, object]:
    """Return the values of `SENT_COLUMNS`. A column is the option of the same name, with few exceptions."""
    retry = options.retry
    special: dict[str, object] = {
        "retry_delays_ms": list(retry.delays_ms) if retry else None,
        "retry_jitter": retry.jitter if retry else 0.0,
        "retry_for": list(retry.codes) if retry else None,
        "is_sensitive": options.is_sensitive or None,
    }
    return {name: special[name] if name in special else getattr(options, name) for name in SENT_COLUMNS}


class Key(NamedTuple):
    """An idempotency key: what to do if another task holds it, and how long it is held after its task has ended."""

    name: str
    on_conflict: OnConflict
    window: timedelta


class SendOptions(NamedTuple):
    """The arguments of `with_options`; None leaves the task's own setting unchanged."""

    good_until: datetime | None = None
    priority: int | None = None
    queue_name: str | None = None
    eta: datetime | None = None
    key: str | None = None
    on_conflict: OnConflict | None = None
    key_window: float | timedelta | None = None

    def problems(self) -> Iterator[str]:
        times = [*_time_problems("good_until", self.good_until), *_time_problems("eta", self.eta)]
        yield from times
        if not times and self.good_until and self.eta and self.good_until <= self.eta:
            yield f"good_until {self.good_until} is not after eta {self.eta}, so it could never run; move one of them"
        if self.priority is not None:
            yield from number_problems("priority", self.priority, _MIN_PRIORITY, _MAX_PRIORITY)
        if self.key is None:
            unused = [name for name in ("on_conflict", "key_window") if getattr(self, name) is not None]
            yield from (f"{name} requires key=...; add a key, or remove {name}" for name in unused)
        elif not _is_key(self.key):
            yield f"key must be a string of 1 to {MAX_KEY_LENGTH} characters without NUL, not {short_repr(self.key)}"
        if self.on_conflict not in (None, *get_args(OnConflict)):
            yield f'on_conflict must be "return", "raise" or "replace", not {self.on_conflict!r}'
        if self.key_window is not None:
            yield from span_problems("key_window", self.key_window)

    def to_key(self) -> Key | None:
        if self.key is None:
            return None
        return Key(self.key, self.on_conflict or "return", to_timedelta(self.key_window or 0))


def span_problems(name: str, value: object) -> Iterator[str]:
    """Yield what is wrong with a length of time, given in seconds or as a timedelta."""
    is_finite = not isinstance(value, float) or math.isfinite(value)
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta) or not is_finite:
        yield f"{name} must be a number of seconds or a timedelta, not {short_repr(value)} ({type(value).__name__})"
        return
    # Compared as given: a timedelta cannot hold every number.
    span: Any = value
    low, high = (timedelta(0), MAX_SPAN) if isinstance(value, timedelta) else (0, MAX_SPAN.total_seconds())
    if span < low:
        yield f"{name} is {value}, in the past; choose 0 or more"
    elif span > high:
        yield f"{name} is {value}; choose at most ten years ({MAX_SPAN.total_seconds():.0f} seconds)"


def to_timedelta(value: float | timedelta) -> timedelta:
    return value if isinstance(value, timedelta) else timedelta(seconds=value)


def _time_problems(name: str, value: object) -> Iterator[str]:
    if value is None:
        return
    if not isinstance(value, datetime):
        yield f"{name} must be a datetime with a time zone, not {short_repr(value)} ({type(value).__name__})"
    elif value.utcoffset() is None:
        yield f"{name} {value} has no time zone; use for example datetime.now(UTC) + timedelta(hours=1)"


def _is_key(key: object) -> bool:
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY_LENGTH or "\0" in key:
        return False
    return key.encode(errors="ignore").decode() == key  # half of a surrogate pair has no UTF-8 form
