"""Configure logging for the command line. A program that uses horsies as a library keeps its own configuration.

The task of a line is read from the context of the code that logs it. So it is correct in threads of `--concurrency`, in asyncio tasks
and in `asyncio.to_thread`, and on every line: ours, the user's and those of libraries. We never log the arguments of tasks.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Protocol

from horsies.model.errors import TaskCancelledError, TaskTimeoutError
from horsies.tasks.current_task import current_task_if_any


class SupportsWrite(Protocol):
    """What a handler needs of a stream."""

    def write(self, text: str, /) -> object: ...


def configure_logging(level: str, log_format: str, stream: SupportsWrite | None = None) -> None:
    """Configure the root logger of a process of ours. If it has a handler already, the app has configured logging: change nothing."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root.addHandler(handler)
    root.setLevel(level)
    if log_format == "json":
        logging.captureWarnings(True)  # noqa: FBT003 - else they are written between the lines of JSON


def line_buffer_stdout() -> None:
    """Write printed text line by line, also into a pipe: many processes share it, and the last lines before a crash matter."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)  # a program may have replaced it by any object
    if reconfigure is not None:
        reconfigure(line_buffering=True)


def task_fields() -> dict[str, Any]:
    """Return the fields of the task that the calling code runs in; an empty dict outside of tasks."""
    current = current_task_if_any()
    fields = {name: getattr(current, name) for name in TaskFields.NAMES} if current else {}
    return {name: value for name, value in fields.items() if value is not None}


class TaskFields(logging.Filter):
    """A filter for your own handlers, for `%(task_id)s`, `%(task_name)s`, `%(attempt)s`, `%(queue_name)s` and `%(root_id)s` in their formats.

    Outside of tasks these are "-". Fields that the record already has, from `extra=`, are kept.
    """

    NAMES = ("task_id", "task_name", "attempt", "queue_name", "root_id")

    def filter(self, record: logging.LogRecord) -> bool:
        fields = task_fields()
        for name in self.NAMES:
            vars(record).setdefault(name, fields.get(name, "-"))
        return True


class TextFormatter(logging.Formatter):
    """Lines for people: `… shop.mail: [task=… name=greet attempt=1 queue=default] hello`."""

    _SHORT_NAMES = ("task", "name", "attempt", "queue", "workflow")  # of TaskFields.NAMES

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s [%(process)d] %(name)s: ")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        # A worker names the tasks of its children by `extra=`. Of other loggers the extra fields may be anything.
        given = vars(record) if record.name.startswith("horsies.") else {}
        head, fields = super().formatMessage(record), given | task_fields()
        names = zip(self._SHORT_NAMES, TaskFields.NAMES, strict=True)
        parts = [f"{short}={fields[name]}" for short, name in names if name in fields]
        return f"{head}[{' '.join(parts)}] {record.message}" if parts else f"{head}{record.message}"


class JsonFormatter(logging.Formatter):
    """Lines for programs: one JSON object per line, whatever is in it. Fields from `extra=` are added to our own."""

    _STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

    def format(self, record: logging.LogRecord) -> str:
        timestamp = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, Any] = {
            "ts": timestamp.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": message_of(record),
            "pid": record.process,
            **task_fields(),
        }
        if record.exc_text:
            fields["exc_info"] = record.exc_text
        elif record.exc_info and record.exc_info[0] is not None:
            fields["exc_info"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack_info"] = self.formatStack(record.stack_info)
        for name, value in vars(record).items():
            if name not in self._STANDARD:
                # If it has the name of one of ours, keep both.
                fields[f"extra_{name}" if name in fields else name] = value
        # ASCII only: the stream may have any encoding.
        return "{" + ", ".join(f"{json.dumps(name)}: {_to_json(value)}" for name, value in fields.items()) + "}"


def message_of(record: logging.LogRecord) -> str:
    """Return the text of a record, whatever its format and its arguments are."""
    try:
        return record.getMessage()
    except (TaskTimeoutError, TaskCancelledError):  # raised in a task, and only once
        raise
    except Exception as error:  # noqa: BLE001 - the format and arguments are the user's, or an object's __str__
        return f"{_to_text(record.msg)} (its arguments could not be put in: {type(error).__name__})"


def _to_json(value: object) -> str:
    try:
        return json.dumps(value, default=_to_text, allow_nan=False)
    except (TypeError, ValueError, RecursionError):  # keys that are not strings, NaN, a cycle
        return json.dumps(_to_text(value))


def _to_text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - the user's own __str__
        return f"<{type(value).__name__}, which cannot be printed>"
