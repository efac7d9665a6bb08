"""The format of a log line, whatever its message and fields."""

import json
import logging
import math
import re
import subprocess
import sys
from typing import Any

import pytest

from horsies.logs import JsonFormatter, TaskFields, TextFormatter
from horsies.tasks.current_task import CurrentTask, set_current_task


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


def record(message: Any = "hello", *args: Any, **extra: Any) -> logging.LogRecord:
    return logging.getLogger("shop").makeRecord("shop", logging.INFO, "shop.py", 7, message, args, None, extra=extra)


def parsed(found: logging.LogRecord) -> dict[str, Any]:
    line = JsonFormatter().format(found)
    assert "\n" not in line
    assert line.isascii()

    def refuse(word: str) -> None:
        pytest.fail(f"{word} is no JSON")

    return json.loads(line, parse_constant=refuse)


def in_a_task(root_id: str | None = None) -> None:
    set_current_task(
        CurrentTask(
            task_id="an id",
            task_name="greet",
            queue_name="mail",
            attempt=2,
            root_id=root_id,
            deadline=None,
            until=None,
            is_cancelled=lambda: False,
            report=lambda _fraction, _message: None,
        )
    )


def test_json_has_the_time_in_utc_the_level_the_logger_and_the_message() -> None:
    found = record("hello %s", "world")
    found.created = 0.25
    fields = parsed(found)
    assert fields.pop("pid") == found.process
    assert fields == {"ts": "1970-01-01T00:00:00.250Z", "level": "INFO", "logger": "shop", "message": "hello world"}


def test_extra_fields_are_kept() -> None:
    fields = parsed(record(basket={"pears": [1, 2]}, customer="Zoë", paid=None))
    assert (fields["basket"], fields["customer"], fields["paid"]) == ({"pears": [1, 2]}, "Zoë", None)


def circle() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def deep() -> list[Any]:
    made: list[Any] = []
    for _ in range(100_000):
        made = [made]
    return made


@pytest.mark.parametrize(
    "value",
    [
        object(),
        Unprintable(),
        [Unprintable()],
        {(1, 2): 3},
        math.nan,
        [math.inf],
        b"\xff",
        "\ud800",
        "a\nb\x00",
        circle(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_extra_value_breaks_a_line(value: Any) -> None:
    assert "value" in parsed(record(value=value))


def test_a_deeply_nested_value_does_not_break_a_line() -> None:
    assert "value" in parsed(record(value=deep()))


@pytest.mark.parametrize(
    ("message", "args"),
    [("%d apples", ("no",)), ("%s %s", (1,)), ("nothing", (1, 2)), (Unprintable(), ()), ("%s", (Unprintable(),))],
)
def test_a_message_that_cannot_be_formatted_is_logged_as_far_as_possible(message: Any, args: tuple[Any, ...]) -> None:
    assert "could not be put in" in parsed(record(message, *args))["message"]


def test_a_traceback_is_one_field_of_one_line() -> None:
    found, error = record(), ValueError("two\nlines")
    found.exc_info = (ValueError, error, error.__traceback__)
    text = parsed(found)["exc_info"]
    assert text == "ValueError: two\nlines"


def test_extra_fields_do_not_replace_our_own() -> None:
    fields = parsed(record(level="high", ts="noon", pid=0, task_id="mine"))
    assert fields["level"] == "INFO"
    assert (fields["extra_level"], fields["extra_ts"], fields["extra_pid"]) == ("high", "noon", 0)
    assert fields["task_id"] == "mine"  # outside of tasks there is no other


async def test_inside_a_task_json_names_it() -> None:
    in_a_task(root_id="a root")
    fields = parsed(record(task_id="mine"))
    named = {name: fields[name] for name in TaskFields.NAMES}
    assert named == {"task_id": "an id", "task_name": "greet", "queue_name": "mail", "attempt": 2, "root_id": "a root"}
    assert fields["extra_task_id"] == "mine"


async def test_inside_a_task_text_names_it_before_the_message() -> None:
    assert re.fullmatch(r"\S+ \S+ INFO \[\d+\] shop: hello", TextFormatter().format(record()))
    in_a_task()
    assert TextFormatter().format(record()).endswith("shop: [task=an id name=greet attempt=2 queue=mail] hello")
    in_a_task("a root")
    assert TextFormatter().format(record()).endswith("attempt=2 queue=mail workflow=a root] hello")
    assert TextFormatter().format(record(task_id=Unprintable())).endswith("workflow=a root] hello")


def test_a_line_of_a_worker_as_text_names_the_task_that_it_is_about() -> None:
    line = record(task_id="an id", task_name="greet", attempt=2)
    assert TextFormatter().format(line).endswith("shop: hello")
    line.name = "horsies.worker"
    assert TextFormatter().format(line).endswith("horsies.worker: [task=an id name=greet attempt=2] hello")


async def test_other_handlers_can_name_the_task_too() -> None:
    def shown(found: logging.LogRecord) -> str:
        TaskFields().filter(found)
        return logging.Formatter("%(task_id)s %(task_name)s %(attempt)s %(queue_name)s %(root_id)s").format(found)

    assert shown(record()) == "- - - - -"
    in_a_task()
    assert shown(record()) == "an id greet 2 mail -"
    assert shown(record(task_id="mine")) == "mine greet 2 mail -"


def test_importing_horsies_configures_no_logging() -> None:
    program = """if True:
        import logging
        import horsies, horsies.testing, horsies.worker.run, horsies.cli.main
        loggers = [logging.getLogger(), *map(logging.getLogger, logging.root.manager.loggerDict)]
        assert [logger for logger in loggers if logger.handlers] == []
        assert logging.root.level == logging.WARNING and logging.getLogRecordFactory() is logging.LogRecord
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
