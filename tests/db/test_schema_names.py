import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.db.channels import Channel
from horsies.db.migrate import migrations
from horsies.model.config import PostgresConfig
from horsies.model.task import Ended
from horsies.tasks.finish import finish, notify_done
from tests.fixtures.journey import ME, claim, completed, do, row, send_new, wait_for

ODD = ["Two Words", "100% %s %(x)s", "it's", "{schema} {new_channel}", "käfer; drop schema horsies"]


@pytest.mark.parametrize("schema", ODD)
def test_any_schema_name_works_beside_the_default_one(schema: str, database: str, sql: psycopg.Connection) -> None:
    config = PostgresConfig(database_url=database, schema=schema)
    with PostgresBroker(config) as broker:
        assert broker.migrate() == [migration.name for migration in migrations()]
        assert broker.migrate() == []
        (sent,) = send_new(broker)
        (held,) = claim(broker)
        do(broker, finish(ME, [completed(held)]), notify_done([held.id]))
        assert isinstance(wait_for(broker, sent.id), Ended)
    quoted = '"' + schema.replace("%", "%%") + '"'
    assert row(sql, f"select count(*) from {quoted}.all_tasks") == (1,)
    assert row(sql, "select count(*) from horsies.all_tasks") == (0,)
    assert row(sql, "select count(*) from pg_inherits where inhparent = %s::regclass", f'"{schema}".finished') == (15,)


def test_two_installations_in_one_database_do_not_wake_each_other(database: str, sql: psycopg.Connection) -> None:
    for channel in (Channel.NEW, Channel.DONE):
        sql.execute(f'listen "{channel.name_in("horsies")}"'.encode())
    with PostgresBroker(PostgresConfig(database_url=database, schema="second")) as second:
        second.migrate()
        send_new(second)
        (held,) = claim(second)
        do(second, finish(ME, [completed(held)]), notify_done([held.id]))
    with PostgresBroker(PostgresConfig(database_url=database)) as first:
        send_new(first)
    heard = [notify.channel for notify in sql.notifies(timeout=1.0, stop_after=1)]
    assert heard == [Channel.NEW.name_in("horsies")]
