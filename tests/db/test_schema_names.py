from datetime import timedelta
from functools import partial

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.db.channels import Channel
from horsies.db.migrate import migration_script, migrations
from horsies.model.config import PostgresConfig
from horsies.model.errors import ConfigError
from horsies.model.send_options import Key
from horsies.model.task import Ended, TaskOptions
from horsies.tasks.enqueue import SLICE_ROWS, enqueue, enqueue_within, new_tasks
from horsies.tasks.finish import finish_tasks, notify_done
from tests.fixtures.journey import ME, claim, completed, do, new_task, row, send_new, wait_for

COPIED = TaskOptions("add", "default")

ODD = [
    "Two Words", "100% %s %(x)s", "it's", "{schema} {new_channel}", "{schema_text}", "käfer; drop schema horsies", "a$$b", "$horsies$ $horsies_0$",
    "back\\slash", "dot.ted", "select", "%(schema)s", "é" * 31, "x" * 40, "日本", "-- name: x", "/* open", "$user", "public",
]  # fmt: skip


@pytest.mark.parametrize("schema", ODD)
def test_any_schema_name_works_beside_the_default_one(schema: str, database: str, sql: psycopg.Connection) -> None:
    config = PostgresConfig(database_url=database, schema=schema)
    with PostgresBroker(config) as broker:
        assert broker.migrate() == [migration.name for migration in migrations()]
        assert broker.migrate() == []
        (sent,) = send_new(broker)
        (held,) = claim(broker)
        do(broker, finish_tasks(ME, [completed(held)]), notify_done([held.id]))
        assert isinstance(wait_for(broker, sent.id), Ended)
        broker.run(partial(enqueue, new_tasks(["{}"] * (SLICE_ROWS + 1), COPIED)))  # by COPY
    quoted = '"' + schema.replace("%", "%%") + '"'
    assert row(sql, f"select count(*) from {quoted}.all_tasks") == (SLICE_ROWS + 2,)
    assert row(sql, "select count(*) from horsies.all_tasks") == (0,)
    assert row(sql, "select count(*) from pg_inherits where inhparent = %s::regclass", f'"{schema}".finished') == (15,)


@pytest.mark.parametrize("schema", ODD)
def test_the_script_of_the_migrations_works_for_any_schema_name(schema: str, empty_database: str) -> None:
    config = PostgresConfig(database_url=empty_database, schema=schema)
    with psycopg.connect(empty_database, autocommit=True) as sql:
        sql.execute(migration_script(schema, 0).encode())
    with PostgresBroker(config) as broker:
        assert broker.migrate() == []
        send_new(broker)
        assert len(claim(broker)) == 1


@pytest.mark.parametrize("schema", ODD)
def test_a_send_in_a_callers_transaction_notifies_waiters_under_any_schema_name(
    schema: str, database: str, sql: psycopg.Connection
) -> None:
    """The name of the channel is derived from the schema's name, not from its quoted form."""
    with PostgresBroker(PostgresConfig(database_url=database, schema=schema)) as broker:
        broker.migrate()
        sql.execute(f'listen "{Channel.NEW.name_in(schema)}"'.encode())
        keep, replace = (Key("k", conflict, timedelta(seconds=60)) for conflict in ("return", "replace"))
        with psycopg.connect(database) as connection:
            broker.run_on(connection, partial(enqueue_within, [new_task()], keep))
        assert len(list(sql.notifies(timeout=5.0, stop_after=1))) == 1
        with psycopg.connect(database) as connection:
            broker.run_on(connection, partial(enqueue_within, [new_task()], replace))
        assert len(list(sql.notifies(timeout=5.0, stop_after=1))) == 1


@pytest.mark.parametrize("schema", ["", "x" * 41, "é" * 40, 'a"b', "pg_tasks", "a\nb", "a\0b"])
def test_a_name_that_cannot_work_is_refused_at_once(schema: str) -> None:
    with pytest.raises(ConfigError, match="schema"):
        PostgresConfig(database_url="postgresql://localhost/db", schema=schema)


def test_two_installations_in_one_database_do_not_wake_each_other(database: str, sql: psycopg.Connection) -> None:
    for channel in (Channel.NEW, Channel.DONE):
        sql.execute(f'listen "{channel.name_in("horsies")}"'.encode())
    with PostgresBroker(PostgresConfig(database_url=database, schema="second")) as second:
        second.migrate()
        send_new(second)
        (held,) = claim(second)
        do(second, finish_tasks(ME, [completed(held)]), notify_done([held.id]))
    with PostgresBroker(PostgresConfig(database_url=database)) as first:
        send_new(first)
    received = [notify.channel for notify in sql.notifies(timeout=1.0, stop_after=1)]
    assert received == [Channel.NEW.name_in("horsies")]
