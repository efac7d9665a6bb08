"""Prepared statements, and other clients in our sessions."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psycopg
import pytest
from psycopg import errors
from psycopg_pool import ConnectionPool

from horsies.db.broker import PostgresBroker
from horsies.db.dedicated import DedicatedConnection
from horsies.db.statement import Statement, one
from horsies.model.config import PostgresConfig
from horsies.tasks.inspect import TaskFilter, list_tasks
from tests.fixtures.journey import row, send_new

PREPARED = "select count(*) from pg_prepared_statements"
SLOW = Statement("slow", "select 1 from pg_sleep(0.02)")
FORGET = Statement("forget", "do $$ begin execute 'deallocate all'; end $$")  # the driver does not notice
COUNT = Statement("count", "select count(*) from horsies.tasks")


def borrowed(pool: ConnectionPool) -> list[psycopg.Connection]:
    return [pool.getconn() for _ in range(pool.get_stats()["pool_size"])]


def test_producers_prepare_frequent_statements(broker: PostgresBroker) -> None:
    for _ in range(4):
        send_new(broker)
    with broker.pools.blocking_pool().connection() as connection:
        assert row(connection, PREPARED) > (0,)


def test_producers_have_statements_planned_once_and_lists_for_their_values(broker: PostgresBroker) -> None:
    for _ in range(3):
        send_new(broker)
        broker.run(partial(list_tasks, TaskFilter(), limit=1))
    with broker.pools.blocking_pool().connection() as connection:
        found = connection.execute(
            "select statement like '%is_match%', sum(custom_plans), sum(generic_plans) > 0 "
            "from pg_prepared_statements where statement ~ '(insert into|is_match)' group by 1 order by 1"
        ).fetchall()
    assert found == [(False, 0, True), (True, 3, False)]


def test_a_producer_recovers_when_its_prepared_statements_are_discarded(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    with ThreadPoolExecutor(10) as threads:
        for _ in range(5):
            for done in [threads.submit(broker.run, lambda: one(SLOW())) for _ in range(10)]:
                done.result()
    connections = borrowed(broker.pools.blocking_pool())
    assert len(connections) > 5
    for connection in connections:
        for _ in range(3):
            connection.execute(COUNT.for_schema("horsies"))
        connection.execute(FORGET.text.encode())
        broker.pools.blocking_pool().putconn(connection)
    for _ in range(20):
        assert broker.run(lambda: one(COUNT())) == (0,)
    send_new(broker)
    assert row(sql, "select count(*) from horsies.tasks") == (1,)


async def test_an_asyncio_producer_recovers_too(async_broker: PostgresBroker) -> None:
    count = partial(async_broker.run_async, lambda: one(COUNT()))
    for _ in range(5):
        await asyncio.gather(*(count() for _ in range(10)))
    pool = await async_broker.pools.async_pool()
    connections = [await pool.getconn() for _ in range(pool.get_stats()["pool_size"])]
    for connection in connections:
        for _ in range(3):
            await connection.execute(COUNT.for_schema("horsies"))
        await connection.execute(FORGET.text.encode())
        await pool.putconn(connection)
    for _ in range(20):
        assert await count() == (0,)


def test_a_statement_of_the_same_name_by_another_client_does_no_harm(broker: PostgresBroker) -> None:
    """Two clients of a pooler share one session, and both give their first statement the same name."""
    with broker.pools.blocking_pool().connection() as connection:
        for number in range(3):
            connection.execute(f"do $$ begin execute 'prepare _pg3_{number} as select 1'; end $$".encode())
    for _ in range(10):
        assert broker.run(lambda: one(COUNT())) == (0,)


def test_a_dedicated_connection_raises_the_error_and_does_not_prepare_again(database: str) -> None:
    """A worker's batch may have been committed before the error: the caller must find out."""
    connection = DedicatedConnection(PostgresConfig(database_url=database), "worker")
    for _ in range(4):
        connection.run(one(COUNT()))
    connection.run(one(FORGET()))
    with pytest.raises(errors.InvalidSqlStatementName):
        connection.run(one(COUNT()))
    for _ in range(4):
        assert connection.run(one(COUNT())) == (0,)
    assert connection.run(one(Statement("prepared", PREPARED)())) == (0,)
    connection.close()
