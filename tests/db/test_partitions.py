import logging
import time
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.db.partitions import DAYS_AHEAD
from horsies.model.config import PostgresConfig
from horsies.tasks.finish import finish_tasks
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import ME, claim, column, completed, do, row, send_new
from tests.fixtures.roles import PlainUser

PARTITIONS = (
    "select relname from pg_inherits join pg_class on pg_class.oid = inhrelid "
    "where inhparent = 'horsies.finished'::regclass order by relname"
)


def days(sql: psycopg.Connection) -> list[object]:
    return [name for name in column(sql, PARTITIONS) if name != "finished_default"]


def drop_days(sql: psycopg.Connection, count: int) -> None:
    """Drop partitions, as if as many days had passed since the last worker started."""
    for name in days(sql)[-count:]:
        sql.execute(f"drop table horsies.{name}".encode())


def finish_at(sql: psycopg.Connection, moment: datetime) -> str:
    """Insert a finished row of that time; return its partition."""
    sql.execute(
        "insert into horsies.finished (id, task_name, queue_name, priority, status, args, sent_at, enqueued_at, attempts, "
        "claim_no, finished_at) values (gen_random_uuid(), 't', 'default', 100, 'COMPLETED', '{}', now(), now(), 1, 1, %s)",
        [moment],
    )
    found = row(sql, "select tableoid::regclass::text from horsies.finished where finished_at = %s", moment)
    return str(found[0])


def test_partitions_are_created_for_fourteen_days_from_today(sql: psycopg.Connection) -> None:
    today = datetime.now(UTC)
    assert days(sql) == [f"finished_{today + timedelta(days=ahead):%Y%m%d}" for ahead in range(DAYS_AHEAD)]


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "America/Anchorage"])
def test_a_row_goes_to_the_partition_of_its_day_in_any_time_zone(sql: psycopg.Connection, zone: str) -> None:
    sql.execute(f"set time zone '{zone}'".encode())
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=3)
    assert finish_at(sql, midnight) == f"horsies.finished_{midnight:%Y%m%d}"
    before = midnight - timedelta(microseconds=1)
    assert finish_at(sql, before) == f"horsies.finished_{before:%Y%m%d}"


def test_rows_without_a_partition_go_to_the_default_partition(sql: psycopg.Connection) -> None:
    assert finish_at(sql, datetime.now(UTC) + timedelta(days=40)) == "horsies.finished_default"
    assert finish_at(sql, datetime.now(UTC) - timedelta(days=40)) == "horsies.finished_default"


def test_partitions_are_created_again_when_less_than_a_week_is_left(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    before = days(sql)
    drop_days(sql, 7)
    broker.migrate()
    assert len(days(sql)) == 7, "a week in hand is enough"
    drop_days(sql, 1)
    broker.migrate()
    assert days(sql) == before


def test_a_new_partition_gets_its_rows_from_the_default_partition(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    before = days(sql)
    drop_days(sql, DAYS_AHEAD)
    assert finish_at(sql, datetime.now(UTC)) == "horsies.finished_default"
    broker.migrate()
    assert days(sql) == before
    assert column(sql, "select tableoid::regclass::text from horsies.finished") == [f"horsies.{before[0]}"]


def test_a_user_who_may_not_create_tables_works_without_partitions(
    database: str, sql: psycopg.Connection, plain_user: PlainUser, caplog: pytest.LogCaptureFixture
) -> None:
    drop_days(sql, DAYS_AHEAD)
    sql.execute(f"grant usage on schema horsies to {plain_user.name}".encode())
    sql.execute(f"grant select, insert, update, delete on all tables in schema horsies to {plain_user.name}".encode())
    with caplog.at_level(logging.INFO), PostgresBroker(PostgresConfig(database_url=plain_user.url(database))) as broker:
        assert broker.migrate() == []
        assert "now: permission denied" in caplog.text
        send_new(broker)
        (held,) = claim(broker)
        assert do(broker, finish_tasks(ME, [completed(held)])) == [[(held.id,)]]
    assert row(sql, "select tableoid::regclass::text from horsies.finished") == ("horsies.finished_default",)


def test_a_locked_table_does_not_delay_the_start(
    broker: PostgresBroker, database: str, sql: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    before = days(sql)
    drop_days(sql, DAYS_AHEAD)
    with psycopg.connect(database) as dump, caplog.at_level(logging.INFO):
        dump.execute("lock table horsies.finished_default in access share mode")  # as an open pg_dump does
        began = time.monotonic()
        assert broker.migrate() == []
        assert time.monotonic() - began < 2.0, "behind a waiting lock every finishing worker would queue up"
        assert "now: canceling statement due to lock timeout" in caplog.text
    assert days(sql) == []
    eventually(lambda: broker.migrate() == [] and days(sql) == before, what="the next start prepares them")
