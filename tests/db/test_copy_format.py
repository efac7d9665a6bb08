"""Rows are converted to lines that COPY reads."""

import json
from datetime import UTC, datetime

import psycopg
import pytest

from horsies.db.pipeline import COPY_LINES_AT_ONCE, copy_chunks, copy_field
from horsies.tasks.enqueue import SLICE_ROWS
from tests.fixtures.journey import column
from tests.fixtures.shops import Shop

ODD = [
    "",
    "\\",
    "\\N",
    "\\.",
    "a\tb",
    "a\nb",
    "a\rb",
    "\\t",
    '"',
    "'",
    "é ☃ \U0001f40e",
    "\x00",
    "{}",
    "\\\\n",
    "\u2028",
]


def test_every_field_arrives_as_it_was(sql: psycopg.Connection) -> None:
    values = [*(text for text in ODD if "\x00" not in text), None, 7, 0.25, True, datetime(2031, 2, 3, tzinfo=UTC)]
    sql.execute("set time zone 'UTC'")
    sql.execute("create table odd (place integer, value text)")
    with sql.cursor() as cursor, cursor.copy("copy odd from stdin") as copy:
        for piece in copy_chunks(f"{place}\t{copy_field(value)}\n" for place, value in enumerate(values)):
            copy.write(piece)
    expected = [*values[:-5], None, "7", "0.25", "t", "2031-02-03T00:00:00+00:00"]
    assert column(sql, "select value from odd order by place") == expected


@pytest.mark.parametrize("count", [0, 1, COPY_LINES_AT_ONCE, 2 * COPY_LINES_AT_ONCE + 1])
def test_no_line_is_lost_between_two_chunks(count: int) -> None:
    lines = [f"{number}\n" for number in range(count)]
    assert "".join(copy_chunks(lines)) == "".join(lines)


def test_tasks_sent_by_copy_have_their_arguments_and_options(shop: Shop, sql: psycopg.Connection) -> None:
    texts = [*ODD, *map(str, range(SLICE_ROWS))]
    shop.label.send_many(shop.label.call(text, {text: len(text)}) for text in texts)
    stored = [json.loads(str(args)) for args in column(sql, "select args::text from horsies.tasks order by id")]
    assert stored == [{"text": text, "lengths": {text: len(text)}} for text in texts]
    shop.pack.send_many(shop.pack.call(number) for number in range(SLICE_ROWS + 1))
    shop.pack.send(1)
    terms = "select count(*) from (select distinct timeout_ms, retry_delays_ms, retry_jitter, retry_for, good_until, ready from horsies.tasks where task_name = 'pack')"
    assert column(sql, f"{terms} as terms") == [1]
