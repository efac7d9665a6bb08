import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from threading import enumerate as enumerate_threads

import psycopg
import pytest

from horsies.db.dedicated import DedicatedConnection, ThreadedConnection
from horsies.db.errors import ErrorKind, classify
from horsies.db.statement import Statement, rows
from horsies.model.config import PostgresConfig
from tests.fixtures.eventually import eventually
from tests.fixtures.exhaustion import no_free_descriptor
from tests.fixtures.journey import column

PROBE = Statement("probe", "select 1::int")


async def test_a_cancelled_close_leaves_neither_thread_nor_connection(database: str, sql: psycopg.Connection) -> None:
    aside = ThreadedConnection(PostgresConfig(database_url=database), "duty")
    assert await aside.run(rows(PROBE())) == [(1,)]
    busy = Event()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    elsewhere = asyncio.create_task(asyncio.to_thread(busy.wait))
    closing = asyncio.create_task(aside.close(None))
    await asyncio.sleep(0)  # it has begun, and waits for a thread
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    busy.set()
    await elsewhere
    await asyncio.to_thread(eventually, lambda: "horsies-duty_0" not in [thread.name for thread in enumerate_threads()])
    eventually(lambda: column(sql, "select pid from pg_stat_activity where application_name ~ 'duty'") == [])


def test_without_a_free_descriptor_the_database_counts_as_unreachable(database: str) -> None:
    """Services survive errors of the driver, and no others: a worker would end."""
    connection = DedicatedConnection(PostgresConfig(database_url=database), "duty")
    with no_free_descriptor(), pytest.raises(psycopg.OperationalError) as caught:
        connection.run(rows(PROBE()))
    assert classify(caught.value) is ErrorKind.CONNECTION_LOST
    assert connection.run(rows(PROBE())) == [(1,)]
    connection.close()
