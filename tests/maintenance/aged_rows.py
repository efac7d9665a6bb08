"""Helpers for tests of retention: old finished tasks, and the partitions that hold them."""

from datetime import UTC, datetime, timedelta
from functools import partial

import psycopg

from horsies.db.broker import PostgresBroker
from horsies.maintenance.isolate import FailedRows
from horsies.maintenance.retention import (
    DEFAULT_LIMITS,
    RetentionLimits,
    RetentionResult,
    delete_unused_keys,
    retention_duties,
)
from horsies.model.config import RetentionConfig
from tests.fixtures.journey import column

WEEK = RetentionConfig(finished=timedelta(days=7))


def ago(days: float) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)


def table_of(moment: datetime) -> str:
    return f"finished_{moment:%Y%m%d}"


def make_day(sql: psycopg.Connection, days_ago: int) -> str:
    """Create the partition of that day, and return its name."""
    first = ago(days_ago).date()
    table = table_of(ago(days_ago))
    sql.execute(
        f"create table horsies.{table} partition of horsies.finished "
        f"for values from ('{first} 00:00+00') to ('{first + timedelta(days=1)} 00:00+00')".encode()
    )
    return table


def finish(sql: psycopg.Connection, moment: datetime, count: int = 1) -> list[str]:
    """Insert rows that finished then, and return their ids."""
    found = sql.execute(
        "insert into horsies.finished (id, task_name, queue_name, priority, status, args, sent_at, enqueued_at, attempts, claim_no, "
        "finished_at) select gen_random_uuid(), 'pack', 'default', 100, 'COMPLETED', '{}', %(at)s, %(at)s, 1, 1, %(at)s "
        "from generate_series(1, %(count)s) returning id::text",
        {"at": moment, "count": count},
    )
    return [task_id for (task_id,) in found.fetchall()]


def age(sql: psycopg.Connection, task_id: str, days: float) -> None:
    """Change a row as if it had finished so long ago."""
    sql.execute("update horsies.finished set finished_at = %s where id = %s", [ago(days), task_id])


def days_of(sql: psycopg.Connection) -> list[object]:
    return column(
        sql,
        "select relname from pg_inherits join pg_class on pg_class.oid = inhrelid "
        "where inhparent = 'horsies.finished'::regclass and relname <> 'finished_default' order by relname",
    )


def places(sql: psycopg.Connection) -> dict[object, str]:
    """Return the partition of each finished task. Fail if one is in two."""
    found = sql.execute("select id::text, tableoid::regclass::text from horsies.finished").fetchall()
    placed = {task_id: table.removeprefix("horsies.") for task_id, table in found}
    assert len(placed) == len(found)
    return placed


def retained(
    broker: PostgresBroker, config: RetentionConfig = WEEK, limits: RetentionLimits = DEFAULT_LIMITS
) -> dict[str, RetentionResult]:
    """Do every duty once, including the keys."""
    duties = retention_duties(broker.config.schema, config, FailedRows(), limits)
    return {name: broker.run(duty) for name, duty in duties.items()} | {
        "keys": broker.run(partial(delete_unused_keys, limits.rows))
    }


def is_postponed(done: dict[str, RetentionResult]) -> bool:
    return any(result.postponed for result in done.values())
