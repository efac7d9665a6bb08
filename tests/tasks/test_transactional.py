"""Sends on the caller's own connection: a task comes and goes with their transaction, whatever library the connection is of."""

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, suppress

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from tests.fixtures.callers import Caller
from tests.fixtures.journey import column, new_task


class RegretError(Exception):
    """Why a caller rolls back."""


@contextmanager
def rolled_back(scope: AbstractContextManager[object]) -> Generator[None]:
    """The caller does it all, and then regrets it."""
    with suppress(RegretError), scope:
        yield
        raise RegretError


@pytest.fixture(autouse=True)
def orders(sql: psycopg.Connection) -> None:
    sql.execute("create table orders (n integer primary key)")


def committed(sql: psycopg.Connection) -> tuple[list[object], list[object]]:
    """What others see: the caller's own rows, and the tasks."""
    return column(sql, "select n from orders order by n"), column(sql, "select id::text from horsies.tasks order by id")


def test_a_task_appears_when_the_caller_commits(
    caller: Caller, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    sent = new_task(args='{"text": "100 % \\"é\\" \\u0000"}'), new_task()
    with caller.transaction():
        caller.send(broker, sent[0])
        caller.execute("insert into orders values (1)")
        caller.send(broker, sent[1])
        assert committed(sql) == ([], [])
    assert committed(sql) == ([1], [task.id for task in sent])
    assert column(sql, "select args::text from horsies.tasks order by id") == [task.args for task in sent]


def test_a_task_never_appears_when_the_caller_rolls_back(
    caller: Caller, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    with rolled_back(caller.transaction()):
        caller.send(broker, new_task())
        caller.execute("insert into orders values (1)")
    assert committed(sql) == ([], [])


def test_a_task_goes_with_the_savepoint_it_was_sent_in(
    caller: Caller, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    kept, lost, also_kept = new_task(), new_task(), new_task()
    with caller.transaction():
        caller.send(broker, kept)
        with rolled_back(caller.savepoint()):
            caller.execute("insert into orders values (1)")
            caller.send(broker, lost)
        with caller.savepoint():
            caller.execute("insert into orders values (2)")
            caller.send(broker, also_kept)
    assert committed(sql) == ([2], [kept.id, also_kept.id])
