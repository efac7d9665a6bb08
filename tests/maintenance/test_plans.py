"""The leader queries every second, so it must not read tasks that only wait: neither in its own session nor in one of a pooler."""

from collections.abc import Callable
from typing import Any, TypeAlias

import psycopg
import pytest

from horsies.db.dedicated import DedicatedConnection
from horsies.db.driver import drive, execute_on
from horsies.db.statement import Op
from horsies.maintenance import rescue
from horsies.model.config import PostgresConfig
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import ME, column, row

SESSION = "maintenance"
LOOKS = 12  # the server makes a plan for all parameters after five
WAITING = 6_000
DUTIES: tuple[Callable[[], Op[object]], ...] = (
    rescue.rescue_orphans,
    rescue.release_expired_claims,
    rescue.cancel_pending_tasks,
    rescue.expire_tasks,
    rescue.end_overdue_workflows,
    rescue.resolve_lost_nodes,
    rescue.settle_workflows,
)

Run: TypeAlias = Callable[[Op[Any]], object]


def fill(sql: psycopg.Connection) -> None:
    """Half of them are due, some have an end; and one is in flight, which is looked at."""
    sql.execute("alter table horsies.tasks set (autovacuum_enabled = off)")
    sql.execute(
        "insert into horsies.tasks (task_name, args, ready, good_until) "
        "select 'add', '{}', n %% 2 = 0, case when n %% 3 = 0 then now() + interval '1 day' end from generate_series(1, %s) as n",
        [WAITING],
    )
    sql.execute(
        "insert into horsies.workers (id, hostname, pid, processes, concurrency, queues, library_version) "
        "values (%s, 'here', 1, 1, 1, '{}', '1')",
        [ME],
    )
    sql.execute(
        "insert into horsies.tasks (task_name, args, status, claimed_by, claim_no) values ('add', '{}', 'RUNNING', %s, 1)",
        [ME],
    )


def rows_read(sql: psycopg.Connection) -> int:
    """Sessions that have ended: a session reports its counts at its end."""
    here = "select pid from pg_stat_activity where datname = current_database() and application_name ~ %s"
    eventually(lambda: not column(sql, here, SESSION))
    (count,) = row(
        sql, "select seq_tup_read + idx_tup_fetch from pg_stat_user_tables where relid = 'horsies.tasks'::regclass"
    )
    return count


def look(run: Run) -> None:
    for _ in range(LOOKS):
        for duty in DUTIES:
            run(duty())


@pytest.mark.parametrize("first", [b"select", b"analyze horsies.tasks"], ids=["never analysed", "analysed"])
def test_a_leader_reads_nothing_of_what_only_waits(first: bytes, database: str, sql: psycopg.Connection) -> None:
    fill(sql)
    sql.execute(first)
    before = rows_read(sql)
    link = DedicatedConnection(PostgresConfig(database_url=database), SESSION)
    look(link.run)
    link.close()
    assert rows_read(sql) - before == LOOKS


def test_a_leader_behind_a_pooler_reads_nothing_of_what_only_waits(database: str, sql: psycopg.Connection) -> None:
    fill(sql)
    before = rows_read(sql)
    with psycopg.connect(database, autocommit=True, application_name=SESSION, prepare_threshold=None) as lent:
        look(lambda op: drive(op, lambda request: execute_on(lent, request, "horsies")))
    assert rows_read(sql) - before == LOOKS
