"""The command line, with PgBouncer in transaction mode between it and the database."""

import psycopg

from horsies.db.broker import PostgresBroker
from tests.cli.conftest import run
from tests.cli.test_tasks import end_all, register
from tests.fixtures.journey import ME, column, send_new
from tests.fixtures.pgbouncer import StartPgBouncer


def test_commands_work_the_same_through_a_pooler(
    pgbouncer: StartPgBouncer, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    url = pgbouncer(server_round_robin=1).url
    send_new(broker, 3)
    first, *_ = end_all(broker)
    register(sql, ME)
    for words in (["status"], ["tasks", "list"], ["tasks", "show", first], ["queues", "list"], ["workers", "list"]):
        ran = run(*words, database_url=url)
        assert (ran.code, ran.err) == (0, "")
    assert run("tasks", "retry", first, database_url=url).code == 0
    assert run("tasks", "retry", "--status=FAILED", "--yes", database_url=url).code == 0
    assert run("queues", "purge", "default", "--yes", database_url=url).out == "3: cancelled\n"
    assert run("tasks", "purge", "--all", "--yes", database_url=url).out == "3: deleted\n"
    assert run("workers", "ping", "--timeout=0.1", database_url=url).code == 1
    assert column(sql, "select id from horsies.all_tasks") == []
