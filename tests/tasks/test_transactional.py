"""Sends on the caller's connection are part of its transaction, with every supported library."""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from horsies.model.error_codes import RetrievalCode
from horsies.model.errors import KeyConflictError, PayloadError
from tests.fixtures.callers import KINDS, Caller
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column, row
from tests.fixtures.proxies import Proxy
from tests.fixtures.roles import PlainUser
from tests.fixtures.workers import StartWorker

CUTS = 20  # at least, on each of a dozen kinds of connection: 240 in total
EVERY_OUTCOME = {(True, 0), (True, 1), (False, 1)}  # cut before the COMMIT, cut at its answer, not cut
ONE_OF_EACH = ["psycopg", "psycopg-async", "sqlalchemy-session", "django", "asyncpg"]


class RollbackError(Exception):
    """Makes a caller roll back."""


@contextmanager
def rolled_back(scope: AbstractContextManager[object]) -> Generator[None]:
    """Run the block in `scope`, then roll back."""
    with suppress(RollbackError), scope:
        yield
        raise RollbackError


@contextmanager
def calling(kind: str, url: str) -> Generator[Caller]:
    caller = KINDS[kind](url)
    try:
        yield caller
    finally:
        caller.close()


@pytest.fixture(autouse=True)
def orders(sql: psycopg.Connection) -> None:
    sql.execute("create table orders (n integer primary key)")


def committed(sql: psycopg.Connection) -> tuple[list[object], list[object]]:
    """Return what other sessions see: the caller's own rows, and the tasks."""
    return column(sql, "select n from orders order by n"), column(sql, "select id::text from horsies.tasks order by id")


def test_a_task_becomes_visible_when_the_caller_commits(caller: Caller, basic: Any, sql: psycopg.Connection) -> None:
    text = '100 % "é" $1 {schema} %(id)s'
    with caller.transaction():
        first = caller.send(basic.echo, text)
        caller.execute("insert into orders values (1)")
        second = caller.send(basic.echo, text)
        assert committed(sql) == ([], [])
    assert committed(sql) == ([1], [first.task_id, second.task_id])
    assert column(sql, "select args ->> 'value' from horsies.tasks") == [text, text]


def test_a_task_is_not_sent_when_the_caller_rolls_back(caller: Caller, basic: Any, sql: psycopg.Connection) -> None:
    with rolled_back(caller.transaction()):
        caller.send(basic.echo, 1)
        caller.execute("insert into orders values (1)")
    assert committed(sql) == ([], [])


def test_a_task_is_undone_with_its_savepoint(caller: Caller, basic: Any, sql: psycopg.Connection) -> None:
    with caller.transaction():
        kept = caller.send(basic.echo, 1)
        with rolled_back(caller.savepoint()):
            caller.execute("insert into orders values (1)")
            caller.send(basic.echo, 2)
        with caller.savepoint():
            caller.execute("insert into orders values (2)")
            also_kept = caller.send(basic.echo, 3)
    assert committed(sql) == ([2], [kept.task_id, also_kept.task_id])


def test_many_and_delayed_tasks_are_part_of_the_transaction_too(
    database: str, basic: Any, sql: psycopg.Connection
) -> None:
    with psycopg.connect(database) as connection:
        sender = basic.echo.with_options(connection=connection)
        sender.send_many(basic.echo.call(number) for number in range(3_000))  # more than one statement
        sender.schedule(60, "later")
        connection.rollback()
        handles = sender.send_many([basic.echo.call(1), basic.echo.call(2)])
        handles.append(sender.schedule(60, "later"))
        assert committed(sql) == ([], [])
    assert committed(sql) == ([], [handle.task_id for handle in handles])


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_a_key_is_taken_with_the_commit_and_free_after_a_rollback(
    kind: str, database: str, basic: Any, sql: psycopg.Connection
) -> None:
    with calling(kind, database) as caller:
        with rolled_back(caller.transaction()):
            caller.send(basic.echo, 1, key="k")
        with caller.transaction():
            first = caller.send(basic.echo, 2, key="k")
        with caller.transaction():
            second = caller.send(basic.echo, 2, key="k", on_conflict="return")
    assert second.task_id == first.task_id
    assert committed(sql) == ([], [first.task_id])


def test_a_refused_key_leaves_the_transaction_usable(database: str, basic: Any, sql: psycopg.Connection) -> None:
    basic.echo.with_options(key="k").send(1)
    with psycopg.connect(database) as connection:
        connection.execute("insert into orders values (1)")
        with pytest.raises(KeyConflictError):
            basic.echo.with_options(key="k", connection=connection).send(2)
    assert column(sql, "select n from orders") == [1]


def test_a_key_taken_after_the_snapshot_is_a_serialization_failure(database: str, basic: Any) -> None:
    with psycopg.connect(database) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("select * from orders")
        basic.echo.with_options(key="k").send(1)
        with pytest.raises(psycopg.errors.SerializationFailure):
            basic.echo.with_options(key="k", on_conflict="return", connection=connection).send(1)
        connection.rollback()


def test_an_invalid_argument_does_not_affect_the_transaction(
    database: str, basic: Any, sql: psycopg.Connection
) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("insert into orders values (1)")
        with pytest.raises(PayloadError):
            basic.add.with_options(connection=connection).send("one", 2)
    assert committed(sql) == ([1], [])


def test_a_user_with_the_documented_grants_can_send(
    basic: Any, database: str, sql: psycopg.Connection, plain_user: PlainUser
) -> None:
    def grant(*grants: str) -> None:
        for granted in grants:
            sql.execute(f"grant {granted} to {plain_user.name}".encode())

    with psycopg.connect(plain_user.url(database)) as connection:
        sender = basic.echo.with_options(connection=connection)
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for schema horsies"):
            sender.send(1)
        connection.rollback()
        grant("usage on schema horsies", "insert on horsies.tasks")
        sent = [sender.send(1)]
        connection.commit()
        grant("select, insert, update on horsies.keys", "select, update on horsies.tasks", "select on horsies.finished")
        for value, on_conflict in ((2, "return"), (2, "return"), (3, "replace")):
            keyed = basic.echo.with_options(connection=connection, key="k", on_conflict=on_conflict)
            sent.append(keyed.send(value))
    assert committed(sql) == ([], [sent[0].task_id, sent[1].task_id])


async def test_a_blocking_session_inside_an_async_one_does_not_warn(
    database: str, basic: Any, sql: psycopg.Connection
) -> None:
    """`AsyncSession.run_sync` is how SQLAlchemy lets blocking code wait without blocking the loop."""
    engine = create_async_engine(
        "postgresql+psycopg://", async_creator=partial(psycopg.AsyncConnection.connect, database)
    )
    async with AsyncSession(engine) as session:
        handle = await session.run_sync(lambda inner: basic.echo.with_options(connection=inner).send(1))
        await session.commit()
    await engine.dispose()
    assert committed(sql) == ([], [handle.task_id])


# -- lost connections


def send_order(kind: str, proxy: Proxy, task: Any, *, number: int, cut_at: int) -> bool:
    """Insert an order and send its task in one transaction, on a connection that is cut at this chunk of data.

    Returns whether it was cut.
    """
    caller = KINDS[kind](proxy.url)
    try:
        with caller.transaction():
            caller.execute("select 1")  # some libraries connect at their first statement
        proxy.cut_at(cut_at)
        with caller.transaction():
            caller.execute(f"insert into orders values ({number})")
            caller.send(task, number)
    except Exception:  # noqa: BLE001 - each library has its own exceptions
        assert not proxy.disarm()
        return True
    else:
        return not proxy.disarm()
    finally:
        with suppress(Exception):
            caller.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_connection_leaves_order_and_task_both_committed_or_both_absent(
    kind: str, proxy: Proxy, basic: Any, sql: psycopg.Connection
) -> None:
    outcomes: list[tuple[bool, int]] = []
    chunk = 1
    # The chunks of a library may differ from run to run, so continue until each outcome has been seen.
    while sum(was_cut for was_cut, _ in outcomes) < CUTS or set(outcomes) != EVERY_OUTCOME:
        number = len(outcomes)
        was_cut = send_order(kind, proxy, basic.echo, number=number, cut_at=chunk)
        orders = column(sql, "select n from orders where n = %s", number)
        tasks = column(sql, "select id from horsies.tasks where args ->> 'value' = %s::text", number)
        assert len(tasks) == len(orders), f"cut at {chunk}"
        outcomes.append((was_cut, len(tasks)))
        chunk = chunk + 1 if was_cut else 1


# -- workers and waiters


def test_the_worker_wakes_at_the_commit(worker: StartWorker, basic: Any, database: str) -> None:
    worker("tests.apps.tuned:app", env={"HORSIES_TEST_POLL_MS": "300000"})
    for kind in KINDS:
        with calling(kind, database) as caller:
            with caller.transaction():
                handle = caller.send(basic.add, 1, 2)
            assert handle.get(20_000).unwrap() == 3, kind


def test_a_handle_waits_for_the_callers_commit(
    worker: StartWorker, basic: Any, database: str, sql: psycopg.Connection
) -> None:
    worker()
    with psycopg.connect(database) as connection, ThreadPoolExecutor(1) as thread:
        handle = basic.add.with_options(connection=connection).send(1, 2)
        waiting = thread.submit(handle.get, 20_000)
        eventually(lambda: "finished" in last_read(sql), what="the first read of a waiter")
        assert not waiting.done()
        connection.commit()
        assert waiting.result().unwrap() == 3


def last_read(sql: psycopg.Connection) -> str:
    queries = (
        "select coalesce(string_agg(query, ' '), '') from pg_stat_activity "
        "where datname = current_database() and application_name = 'horsies producer'"
    )
    return str(row(sql, queries)[0])


def test_an_uncommitted_task_is_unknown_at_the_timeout(basic: Any, database: str) -> None:
    with psycopg.connect(database) as connection:
        handle = basic.add.with_options(connection=connection).send(1, 2)
        assert handle.get(0).unwrap_err().error_code == RetrievalCode.TASK_NOT_FOUND
