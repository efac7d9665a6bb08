"""Logging, as the command line sets it up; a program that uses horsies as a library keeps its own.

Which task a line belongs to is read from the context of the code that logs it, so it is right in threads of `--concurrency`, in asyncio tasks
and in `asyncio.to_thread`, and it is there on every line: ours, the user's, a library's. Arguments of tasks are never logged by us.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Protocol

from horsies.tasks.current_task import current_task_if_any


class SupportsWrite(Protocol):
    """All that a handler needs of a stream."""

    def write(self, text: str, /) -> object: ...


def configure_logging(level: str, log_format: str, stream: SupportsWrite | None = None) -> None:
    """For a process that is ours. Where somebody has put a handler on the root logger, it is theirs, and nothing is changed."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root.addHandler(handler)
    root.setLevel(level)
    if log_format == "json":
        logging.captureWarnings(True)  # noqa: FBT003 - they would be written between the lines of JSON


def line_buffer_stdout() -> None:
    """What is printed goes out line by line, also into a pipe: many processes share it, and the last words before a crash count."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)  # whatever a program has put in its place
    if reconfigure is not None:
        reconfigure(line_buffering=True)


def task_fields() -> dict[str, Any]:
    """Of the task that the calling code runs in; empty outside of tasks."""
    current = current_task_if_any()
    if current is None:
        return {}
    fields: dict[str, Any] = {
        "task_id": current.task_id,
        "task_name": current.task_name,
        "attempt": current.attempt,
        "queue_name": current.queue_name,
    }
    return fields if current.root_id is None else fields | {"root_id": current.root_id}


class TaskFields(logging.Filter):
    """For handlers of your own: `%(task_id)s`, `%(task_name)s`, `%(attempt)s`, `%(queue_name)s` and `%(root_id)s` in their formats.

    Outside of tasks these are "-". What the record has already, by `extra=`, stays.
    """

    NAMES = ("task_id", "task_name", "attempt", "queue_name", "root_id")

    def filter(self, record: logging.LogRecord) -> bool:
        fields = task_fields()
        for name in self.NAMES:
            vars(record).setdefault(name, fields.get(name, "-"))
        return True


class TextFormatter(logging.Formatter):
    """For people: `… shop.mail: [task=… name=greet attempt=1 queue=default] hello`."""

    _SHORT = (("task", "task_id"), ("name", "task_name"), ("attempt", "attempt"), ("queue", "queue_name"))

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s [%(process)d] %(name)s: ")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        return f"{super().formatMessage(record)}{self._of_task()}{record.message}"

    def _of_task(self) -> str:
        fields = task_fields()
        if not fields:
            return ""
        words = [f"{short}={fields[name]}" for short, name in self._SHORT]
        if "root_id" in fields:
            words.append(f"workflow={fields['root_id']}")
        return f"[{' '.join(words)}] "


class JsonFormatter(logging.Formatter):
    """For programs: one object per line, whatever is in it. What was given by `extra=` is kept beside our own fields."""

    _USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

    def format(self, record: logging.LogRecord) -> str:
        fields = self._own_fields(record) | task_fields() | self._trouble(record)
        for name, value in vars(record).items():
            if name not in self._USUAL:
                # Named as one of ours: both are kept.
                fields[f"extra_{name}" if name in fields else name] = value
        # ASCII only: the stream may have any encoding.
        return "{" + ", ".join(f"{json.dumps(name)}: {_as_json(value)}" for name, value in fields.items()) + "}"

    def _own_fields(self, record: logging.LogRecord) -> dict[str, Any]:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return {
            "ts": moment.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
            "pid": record.process,
        }

    def _trouble(self, record: logging.LogRecord) -> dict[str, str]:
        found: dict[str, str] = {}
        if record.exc_info and record.exc_info[0] is not None:
            found["exc_info"] = record.exc_text or self.formatException(record.exc_info)
        elif record.exc_text:
            found["exc_info"] = record.exc_text
        if record.stack_info:
            found["stack_info"] = self.formatStack(record.stack_info)
        return found


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001 - the user's words and arguments, or an object's own __str__
        return f"{_printed(record.msg)} (its arguments could not be put in: {type(error).__name__})"


def _as_json(value: object) -> str:
    try:
        return json.dumps(value, default=_printed, allow_nan=False)
    except (TypeError, ValueError, RecursionError):  # keys that are no text, NaN, a circle
        return json.dumps(_printed(value))


def _printed(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - the user's own __str__
        return f"<{type(value).__name__}, which cannot be printed>"
