"""The columns of a task are listed once; the tables have the columns that the lists say."""

import psycopg

from horsies.model.send_options import SENT_COLUMNS, TaskOptions, sent_values
from horsies.model.task import CLAIM_EXPRESSIONS, MOVED_COLUMNS, Claim
from tests.fixtures.journey import column

ENDING = {"status", "attempts", "claimed_by", "claimed_at", "started_at"}
"""Set by the ending itself, each statement in its way."""
LIVE_ONLY = {
    "ready", "cancel_requested_at", "claimed_in", "lease_until", "takes_inputs", "child_deaths", "unknown_since", "refused_by", "refusal",
}  # fmt: skip
"""What has no meaning after the end of a task."""
RESULT = {"result", "error_code", "error", "finished_at", "child_pid"}


def columns_of(sql: psycopg.Connection, table: str) -> set[str]:
    found = column(
        sql,
        "select attname::text from pg_attribute where attnum > 0 and not attisdropped "
        f"and attrelid = 'horsies.{table}'::regclass",
    )
    return set(map(str, found))


def test_every_column_of_a_task_moves_to_finished_or_is_known_to_stay(sql: psycopg.Connection) -> None:
    assert columns_of(sql, "tasks") == {*MOVED_COLUMNS, *ENDING, *LIVE_ONLY}
    assert columns_of(sql, "finished") == {*MOVED_COLUMNS, *ENDING, *RESULT}
    assert columns_of(sql, "all_tasks") == columns_of(sql, "finished")


def test_what_a_send_sets_is_a_column_of_nodes_too(sql: psycopg.Connection) -> None:
    assert columns_of(sql, "nodes") >= SENT_COLUMNS.keys()
    assert list(sent_values(TaskOptions("add", "default"))) == list(SENT_COLUMNS)


def test_a_field_of_a_claim_is_a_column_or_an_expression(sql: psycopg.Connection) -> None:
    assert CLAIM_EXPRESSIONS.keys() <= set(Claim._fields)
    assert columns_of(sql, "tasks") >= set(Claim._fields) - CLAIM_EXPRESSIONS.keys()
