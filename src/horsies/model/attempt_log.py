"""The log lines of one attempt, and how many of them are kept."""

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, cast

MAX_LINE: Final = 4_000  # characters; of a traceback the last ones, because the exception is at its end
FIRST_LINES: Final = 100
NEWEST_LINES: Final = 400
MAX_LINES: Final = FIRST_LINES + NEWEST_LINES
FIRST_BYTES: Final = 32 * 1024
NEWEST_BYTES: Final = 96 * 1024
_MAX_UNREADABLE: Final = 1_000
MAX_TIME: Final = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


class LoggedLine(NamedTuple):
    """A line as its process reports it. `number` counts the lines of the attempt from 1, `at` is in seconds since 1970."""

    number: int
    at: float
    level: str
    logger: str
    message: str
    exception: str | None

    @property
    def bytes(self) -> int:
        """The size of its texts in UTF-8."""
        texts = self.level, self.logger, self.message, self.exception or ""
        return sum(len(text) if text.isascii() else len(text.encode()) for text in texts)


def is_logged_line(value: Any) -> bool:
    """Whether these fields, which a program of the user may have written, are those of a line that can be stored."""
    if not isinstance(value, list) or len(fields := cast("list[Any]", value)) != len(LoggedLine._fields):
        return False
    number, at, *texts, exception = fields
    is_numbered = type(number) is int and 0 < number < 1 << 31 and isinstance(at, int | float) and 0 <= at < MAX_TIME
    return is_numbered and all(map(_is_storable, texts)) and (exception is None or _is_storable(exception))


def _is_storable(text: object) -> bool:
    return isinstance(text, str) and len(text) <= MAX_LINE and text == to_storable(text)


def to_storable(text: str) -> str:
    """Return text that PostgreSQL can store: without NUL and without halves of surrogate pairs."""
    # Not `text.encode`: it may be of a subclass.
    return str.encode(text, errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


class KeptLines:
    """The first lines of an attempt and the newest ones, up to a number of lines and of bytes. Those between them are dropped."""

    def __init__(self, lines: Iterable[LoggedLine] = ()) -> None:
        self._first: list[LoggedLine] = []
        self._newest: deque[LoggedLine] = deque()
        self._first_bytes = self._newest_bytes = self._last_number = 0
        self.add(lines)

    def add(self, lines: Iterable[LoggedLine]) -> None:
        for line in lines:
            self._last_number = max(self._last_number, line.number)
            size = line.bytes
            if max(line.number, len(self._first) + 1) <= FIRST_LINES and self._first_bytes + size <= FIRST_BYTES:
                self._first.append(line)
                self._first_bytes += size
                continue
            self._newest.append(line)
            self._newest_bytes += size
            while len(self._newest) > NEWEST_LINES or self._newest_bytes > NEWEST_BYTES:
                self._newest_bytes -= self._newest.popleft().bytes

    def in_order(self) -> list[LoggedLine]:
        """Return what was kept, in the order of the numbers. Threads may have logged at the same time."""
        return sorted((*self._first, *self._newest), key=lambda line: line.number)

    def to_stored(self, attempt: int) -> "StoredLog":
        lines = self.in_order()
        records = [
            {name: value for name, value in line._asdict().items() if name != "exception" or value is not None}
            for line in lines
        ]
        return StoredLog(attempt, json.dumps(records, ensure_ascii=False), self._last_number - len(lines))


class StoredLog(NamedTuple):
    """The lines of one attempt in the database: a JSON array, and how many lines were left out of it."""

    attempt: int
    records: str
    left_out: int


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line that an attempt has logged. `number` counts from 1: after a line that was left out, the next number is missing."""

    number: int
    at: datetime | None
    level: str
    logger: str
    message: str
    exception: str | None = None
    """The traceback, if one was logged."""


def lines_from_json(text: str) -> list[LogLine]:
    """Decode stored lines. What other software has written is shown as far as it makes sense."""
    try:
        records: Any = json.loads(text)
        return [_line_from_json(record, number) for number, record in enumerate(records, 1)]
    except (TypeError, ValueError, AttributeError, RecursionError):
        return [LogLine(1, None, "", "", f"these lines were not stored by horsies: {text[:_MAX_UNREADABLE]}")]


def _line_from_json(record: dict[str, Any], position: int) -> LogLine:
    number, at, exception = record.get("number"), record.get("at"), record.get("exception")
    return LogLine(
        number if isinstance(number, int) else position,
        datetime.fromtimestamp(at, UTC) if isinstance(at, int | float) and 0 <= at < MAX_TIME else None,
        *(str(record.get(name, "")) for name in ("level", "logger", "message")),
        exception=None if exception is None else str(exception),
    )
