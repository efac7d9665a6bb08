"""Sends on the caller's own connection: a task comes and goes with their transaction, whatever library the connection is of."""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.model.codes import RetrievalCode
from horsies.tasks.enqueue import enqueue
from horsies.tasks.handle import TaskHandle
from tests.fixtures.callers import KINDS, Caller
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column, new_task, row
from tests.fixtures.proxies import Proxy
from tests.fixtures.workers import StartWorker

CUTS = 20  # on each of a dozen kinds of connection: 240 in all


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


def send_order(kind: str, proxy: Proxy, broker: PostgresBroker, *, number: int, cut_at: int) -> bool:
    """An order and its task in one transaction, on a connection that breaks at this piece of data; whether it came so far."""
    caller = KINDS[kind](proxy.url)
    try:
        with caller.transaction():
            caller.execute("select 1")  # some connect at their first statement only
        proxy.cut_at(cut_at)
        with caller.transaction():
            caller.execute(f"insert into orders values ({number})")
            caller.send(broker, new_task(f"order {number}"))
    except Exception:  # noqa: BLE001 - each library has its own
        assert not proxy.disarm()
        return True
    else:
        return not proxy.disarm()
    finally:
        with suppress(Exception):
            caller.close()


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


# -- connections that are lost


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_committed_is_queued_once_and_what_was_not_is_absent_wherever_the_connection_breaks(
    kind: str, proxy: Proxy, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    outcomes: list[tuple[bool, int]] = []
    piece = 1
    while sum(was_cut for was_cut, _ in outcomes) < CUTS:
        number = len(outcomes)
        was_cut = send_order(kind, proxy, broker, number=number, cut_at=piece)
        orders = column(sql, "select n from orders where n = %s", number)
        tasks = column(sql, "select id from horsies.tasks where task_name = %s", f"order {number}")
        assert len(tasks) == len(orders), f"cut at {piece}"
        outcomes.append((was_cut, len(tasks)))
        piece = piece + 1 if was_cut else 1
    assert set(outcomes) == {(True, 0), (True, 1), (False, 1)}  # cut before the COMMIT, at its answer, never


# -- workers and waiters


def test_the_worker_wakes_at_the_commit(
    worker: StartWorker, basic: Any, broker: PostgresBroker, database: str, sql: psycopg.Connection
) -> None:
    worker("tests.apps.tuned:app", env={"HORSIES_TEST_POLL_MS": "300000"})
    for kind in KINDS:
        caller, sent = KINDS[kind](database), new_task(args='{"left": 1, "right": 2}')
        with caller.transaction():
            caller.send(broker, sent)
        caller.close()
        handle = TaskHandle(sent.id, basic.add.result, lambda: broker)
        assert handle.get(20_000).unwrap() == 3, kind


def test_a_handle_waits_for_a_commit_that_is_still_to_come(
    worker: StartWorker, basic: Any, broker: PostgresBroker, database: str, sql: psycopg.Connection
) -> None:
    worker()
    sent = new_task(args='{"left": 1, "right": 2}')
    handle = TaskHandle(sent.id, basic.add.result, lambda: broker)
    with psycopg.connect(database) as connection, ThreadPoolExecutor(1) as thread:
        broker.run_on(connection, partial(enqueue, [sent]))
        waiting = thread.submit(handle.get, 20_000)
        eventually(lambda: "horsies.finished" in last_read(sql).replace('"', ""), what="the first read of a waiter")
        assert not waiting.done()
        connection.commit()
        assert waiting.result().unwrap() == 3


def test_an_uncommitted_task_is_unknown_when_the_time_runs_out(
    basic: Any, broker: PostgresBroker, database: str
) -> None:
    sent = new_task()
    with psycopg.connect(database) as connection:
        broker.run_on(connection, partial(enqueue, [sent]))
        result = TaskHandle(sent.id, basic.add.result, lambda: broker).get(0)
    assert result.unwrap_err().error_code == RetrievalCode.TASK_NOT_FOUND


def last_read(sql: psycopg.Connection) -> str:
    return str(
        row(
            sql,
            "select coalesce(string_agg(query, ' '), '') from pg_stat_activity "
            "where datname = current_database() and application_name = 'horsies producer'",
        )[0]
    )
