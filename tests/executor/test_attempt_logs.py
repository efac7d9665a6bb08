"""What a child does with the lines of its attempts, without a worker."""

import logging

from hypothesis import given
from hypothesis import strategies as st

from horsies.executor.attempt_logs import AttemptLines
from horsies.model.attempt_log import FIRST_BYTES, FIRST_LINES, MAX_LINES, NEWEST_BYTES, KeptLines, LoggedLine


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
