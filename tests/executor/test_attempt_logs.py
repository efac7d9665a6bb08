"""What a child does with the lines of its attempts, without a worker."""

import logging
from contextvars import copy_context
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.executor.attempt_logs import AttemptLines, handler_on_root, set_current_lines
from horsies.executor.protocol import LogLines, ReportUnpacker, pack
from horsies.model.attempt_log import FIRST_BYTES, FIRST_LINES, MAX_LINES, NEWEST_BYTES, KeptLines, LoggedLine
from horsies.model.errors import TaskCancelledError, TaskTimeoutError


def record(message: str) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": message, "args": ()})


def test_lines_wake_the_sender_once_until_they_are_taken() -> None:
    woken: list[AttemptLines] = []
    lines = AttemptLines(1, woken.append)
    lines.add(record("a"))
    lines.add(record("b"))
    assert woken == [lines]
    assert [(line.number, line.message) for line in lines.take()] == [(1, "a"), (2, "b")]
    assert lines.take() == []
    lines.add(record("c"))
    assert woken == [lines, lines]
    assert [line.number for line in lines.take(is_over=True)] == [3]


def test_an_attempt_that_has_ended_takes_no_more_lines() -> None:
    lines = AttemptLines(1, lambda _lines: None)
    lines.take(is_over=True)
    lines.add(record("too late"))
    assert lines.take() == []


def test_what_a_user_puts_into_a_record_can_be_sent() -> None:
    lines = AttemptLines(1, lambda _lines: None)
    lines.add(logging.makeLogRecord({"msg": "odd", "created": Decimal(7)}))
    (message,) = ReportUnpacker().feed(pack(LogLines(1, lines.take())))
    assert message == LogLines(1, [LoggedLine(1, 7.0, "Level None", "None", "odd", None)])


@pytest.mark.parametrize("stop", [TaskTimeoutError, TaskCancelledError])
def test_the_soft_stop_of_a_task_that_logs_is_not_lost(stop: type[Exception]) -> None:
    """It is raised once, wherever the task is at that moment. On a thread this may be in our handler."""

    class Stopped:
        def __str__(self) -> str:
            raise stop

    lines = AttemptLines(1, lambda _lines: None)
    context = copy_context()
    context.run(set_current_lines, lines)
    log = logging.getLogger("tests.soft_stop")
    with handler_on_root():
        log.propagate, log.handlers = False, logging.getLogger().handlers[-1:]  # those of pytest raise other errors
        with pytest.raises(stop):
            context.run(log.warning, "%s", Stopped())
        context.run(log.warning, "after it")
    assert [line.message for line in lines.take()] == ["after it"]


def test_forged_lines_with_equal_numbers_are_limited_too() -> None:
    kept = KeptLines(LoggedLine(1, 1.0, "", "", "", None) for _ in range(10_000))
    assert len(kept.in_order()) == MAX_LINES


texts = st.integers(0, 4_000).map("é".__mul__) | st.text(max_size=20)


@given(st.lists(texts, max_size=40), st.integers(1, 40), st.integers(1, 5))
def test_the_first_and_the_newest_lines_are_kept_whatever_their_sizes(
    messages: list[str], repeat: int, parts: int
) -> None:
    """Also if each message of a child was reduced before. The last line is never lost."""
    lines = [LoggedLine(n, 1.0, "", "", text, None) for n, text in enumerate(messages * repeat, 1)]
    kept = KeptLines()
    for part in range(parts):
        size = len(lines) // parts + 1
        kept.add(KeptLines(lines[part * size : (part + 1) * size]).in_order())
    found = kept.in_order()
    assert len(found) <= MAX_LINES
    assert sum(line.bytes for line in found) <= FIRST_BYTES + NEWEST_BYTES
    assert [line.number for line in found] == sorted({line.number for line in found})
    assert found[-1:] == lines[-1:]
    assert found[:1] == lines[:1]
    assert kept.to_stored(1).left_out == len(lines) - len(found)
    if len(lines) <= FIRST_LINES and sum(line.bytes for line in lines) <= FIRST_BYTES:
        assert found == lines
