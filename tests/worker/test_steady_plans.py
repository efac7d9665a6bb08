"""Cached plans are used by sessions that stay open for days: they must be right for a table of any size."""

import psycopg

from horsies.db.broker import PostgresBroker
from horsies.db.loop_connection import LoopConnection
from horsies.model.config import PostgresConfig
from horsies.model.status import TaskStatus
from horsies.model.task import Ending
from horsies.tasks.claim import EPOCH, NO_CAPS, ClaimFrom, ClaimRequest, Lane
from horsies.tasks.handle import get_results
from horsies.worker.batch import Batch, BatchResult, run_batch
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import ME, row

USES = 12  # the server may switch to a generic plan after five
ROWS = 3_000


def empty(sql: psycopg.Connection) -> None:
    """Empty the table, as after an idle night: a sequential scan of a table without pages costs nothing."""
    sql.execute("truncate horsies.tasks")
    sql.execute("vacuum analyze horsies.tasks")
    assert row(sql, "select relpages, reltuples from pg_class where oid = 'horsies.tasks'::regclass") == (0, 0)


def fill(sql: psycopg.Connection) -> None:
    sql.execute("alter table horsies.tasks set (autovacuum_enabled = off)")
    sql.execute(
        "insert into horsies.tasks (task_name, queue_name, args) select 'add', 'default', '{}' from generate_series(1, %s)",
        [ROWS],
    )


def full_reads(sql: psycopg.Connection) -> int:
    (count,) = row(sql, "select seq_scan from pg_stat_user_tables where relid = 'horsies.tasks'::regclass")
    return count


def batch(config: PostgresConfig, claim_from: ClaimFrom, endings: list[Ending]) -> Batch:
    request = ClaimRequest(ME, TaskStatus.RUNNING, 2, 60_000)
    lanes = [Lane("default", 100, EPOCH)]
    return Batch(ME, config, NO_CAPS, endings, claim_requests=[request], claim_from=claim_from, lanes=lanes)


def endings_for(result: BatchResult) -> list[Ending]:
    return [Ending(claim.id, claim.claim_no, TaskStatus.COMPLETED, "1") for claim in result.claimed[0]]


async def test_a_worker_that_was_idle_keeps_using_indexes_when_many_tasks_arrive(
    database: str, sql: psycopg.Connection
) -> None:
    config = PostgresConfig(database_url=database)
    empty(sql)
    connection = LoopConnection(config, "test")
    try:
        for claim_from in (ClaimFrom.WATERMARKS, ClaimFrom.QUEUES):
            for _ in range(USES):
                await connection.run(run_batch(batch(config, claim_from, [])))
        fill(sql)
        before, endings = full_reads(sql), list[Ending]()
        for _ in range(USES):
            for claim_from in (ClaimFrom.WATERMARKS, ClaimFrom.QUEUES):
                endings = endings_for(await connection.run(run_batch(batch(config, claim_from, endings))))
                assert len(endings) == 2
    finally:
        connection.close()  # its statistics are reported then
    eventually(
        lambda: row(sql, "select n_tup_upd >= %s from pg_stat_user_tables where relname = 'tasks'", 4 * USES) == (True,)
    )
    assert full_reads(sql) == before


def test_a_producer_that_was_idle_keeps_using_indexes_when_many_tasks_arrive(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    empty(sql)
    for _ in range(USES):
        broker.run(lambda: get_results([ME]))
    fill(sql)
    before = full_reads(sql)
    for _ in range(USES):
        broker.run(lambda: get_results([ME]))
    broker.close()
    assert full_reads(sql) == before
