import re
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from horsies.db import migrate as migrating
from horsies.db.broker import PostgresBroker
from horsies.db.dedicated import DedicatedConnection
from horsies.db.migrate import Migration, library_version, migrations
from horsies.model.config import PostgresConfig
from horsies.model.errors import SchemaError
from horsies.tasks.finish import finish_tasks
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import ME, claim, column, completed, do, row, send_new
from tests.fixtures.roles import PlainUser
from tests.fixtures.schema_dump import SCHEMA_SQL, dump
from tests.fixtures.server import DatabaseServer

ALL = [migration.name for migration in migrations()]
AT_ONCE = 8


def migrate(url: str, schema: str = "horsies") -> list[str]:
    return PostgresBroker(PostgresConfig(database_url=url, schema=schema)).migrate()


@pytest.mark.promise("W16")
def test_an_empty_database_gets_every_migration_and_a_second_time_none(empty_database: str) -> None:
    assert migrate(empty_database) == ALL
    assert migrate(empty_database) == []
    with psycopg.connect(empty_database, autocommit=True) as sql:
        assert column(sql, "select name from horsies.schema_versions order by version") == ALL


@pytest.mark.promise("W16")
async def test_asyncio_code_can_migrate(empty_database: str) -> None:
    broker = PostgresBroker(PostgresConfig(database_url=empty_database))
    assert await broker.migrate_async() == ALL
    await broker.ensure_schema_initialized_async()


@pytest.mark.promise("W16")
def test_a_broker_without_an_app_is_enough(empty_database: str) -> None:
    with PostgresBroker.connect_with(PostgresConfig(database_url=empty_database)) as broker:
        broker.ensure_schema_initialized()
        send_new(broker)


@pytest.mark.promise("W16")
def test_concurrent_migrations_apply_everything_once(empty_database: str) -> None:
    with psycopg.connect(empty_database, autocommit=True) as sql, ThreadPoolExecutor(AT_ONCE) as threads:
        # All of them have seen an empty database, and wait for the lock, before any of them goes on.
        with psycopg.connect(empty_database) as holder:
            holder.execute("select pg_advisory_xact_lock(hashtextextended('horsies migrations horsies', 0))")
            results = [threads.submit(migrate, empty_database) for _ in range(AT_ONCE)]
            waiting = (
                "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'advisory'"
            )
            eventually(lambda: row(sql, waiting) == (AT_ONCE,), what="all wait for the lock")
        applied = [result.result() for result in results]
        assert sorted(applied) == [[]] * (AT_ONCE - 1) + [ALL]
        assert row(sql, "select count(*) from horsies.schema_versions") == (len(ALL),)


def test_concurrent_migrations_of_a_current_schema_change_nothing(database: str) -> None:
    ready = threading.Barrier(AT_ONCE)

    def meet_and_migrate() -> list[str]:
        ready.wait()
        return migrate(database)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        results = [threads.submit(meet_and_migrate) for _ in range(AT_ONCE)]
        assert [result.result() for result in results] == [[]] * AT_ONCE


@pytest.mark.parametrize(
    ("lock", "prepared"),
    [
        ("select pg_advisory_xact_lock(hashtextextended('horsies migrations horsies', 0))", ""),
        (
            "lock table horsies.tasks in access share mode",
            "create schema horsies; create table horsies.tasks (n integer)",
        ),
    ],
    ids=["its own lock", "a table"],
)
def test_a_waiting_migration_logs_who_holds_the_lock_and_continues_when_it_is_free(
    lock: str, prepared: str, empty_database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(migrating, "LOCK_TIMEOUT", "100ms")
    if prepared:  # something whose table must be locked first: an older version of it
        monkeypatch.setattr(
            migrating, "migrations", lambda: [Migration(1, "one", 1, "alter table {schema}.tasks add m integer")]
        )
    with psycopg.connect(empty_database, autocommit=True) as sql, ThreadPoolExecutor(1) as thread:
        if prepared:
            sql.execute(prepared.encode())
        with psycopg.connect(empty_database, application_name="a forgotten psql") as holder:
            holder.execute(lock.encode())
            done = thread.submit(apply, empty_database)
            waits = rf"waits for a lock \(canceling.*held by pid {holder.info.backend_pid} \(user .*'a forgotten psql'"
            eventually(lambda: re.search(waits, caplog.text), what="the holder is logged", seen=lambda: caplog.text)
        assert done.result()[0] in {"one", "initial"}


def apply(url: str) -> list[str]:
    """Apply migrations without creating partitions."""
    connection = DedicatedConnection(PostgresConfig(database_url=url), "migrations")
    try:
        return connection.run(migrating.apply_pending("horsies"))
    finally:
        connection.close()


def test_a_migration_that_fails_leaves_nothing_behind(empty_database: str) -> None:
    with psycopg.connect(empty_database, autocommit=True) as sql:
        sql.execute("create schema horsies")
        sql.execute("create view horsies.workers as select 1")  # in the way of a table
        with pytest.raises(Exception, match='relation "workers" already exists'):
            migrate(empty_database)
        assert row(
            sql, "select to_regclass('horsies.tasks') is null and to_regclass('horsies.schema_versions') is null"
        ) == (True,)
        sql.execute("drop view horsies.workers")
        assert migrate(empty_database) == ALL


# -- versions


def test_a_library_older_than_the_schema_is_refused_naming_both_versions(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    sql.execute("insert into horsies.schema_versions (version, name, compatible_since) values (901, 'later', 900)")
    expected = (
        rf"at version 901, which needs a library of schema version 900 or newer; this one has {library_version()}\."
    )
    with pytest.raises(SchemaError, match=expected):
        broker.migrate()


def test_a_library_older_than_the_schema_runs_if_the_schema_is_compatible(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    sql.execute(
        "insert into horsies.schema_versions (version, name, compatible_since) values (901, 'later', %s)",
        [library_version()],
    )
    assert broker.migrate() == []
    send_new(broker)


# -- privileges


def test_at_the_current_version_a_user_without_ddl_rights_works(
    database: str, sql: psycopg.Connection, plain_user: PlainUser
) -> None:
    sql.execute(f"grant usage on schema horsies to {plain_user.name}".encode())
    sql.execute(f"grant select, insert, update, delete on all tables in schema horsies to {plain_user.name}".encode())
    with PostgresBroker(PostgresConfig(database_url=plain_user.url(database))) as broker:
        assert broker.migrate() == []
        send_new(broker)
        (held,) = claim(broker)
        assert do(broker, finish_tasks(ME, [completed(held)])) == [[(held.id,)]]


def test_the_error_for_a_user_who_may_not_create_the_schema_states_what_to_grant(
    server: DatabaseServer, empty_database: str, plain_user: PlainUser
) -> None:
    with pytest.raises(
        SchemaError, match=r"permission denied.*Run `horsies migrate`.*USAGE.*SELECT, INSERT, UPDATE, DELETE"
    ):
        migrate(plain_user.url(empty_database))


def test_the_error_for_a_user_who_may_not_use_the_schema_states_what_to_grant(
    database: str, plain_user: PlainUser
) -> None:
    with pytest.raises(SchemaError, match=r"schema 'horsies' \(permission denied.*grant this one USAGE"):
        migrate(plain_user.url(database))


def test_a_user_who_owns_a_schema_made_for_it_needs_no_right_to_create_schemas(
    empty_database: str, plain_user: PlainUser
) -> None:
    with psycopg.connect(empty_database, autocommit=True) as sql:
        sql.execute(f"create schema horsies authorization {plain_user.name}".encode())
        assert migrate(plain_user.url(empty_database)) == ALL
        sql.execute(f"drop owned by {plain_user.name} cascade".encode())


# -- the dump


def test_the_committed_dump_is_what_the_migrations_make(server: DatabaseServer, database: str) -> None:
    if not server.is_ours:
        pytest.skip("the dump is of the embedded server's version")
    assert dump(database) == SCHEMA_SQL.read_text("utf-8"), "regenerate it: python -m tests.fixtures.schema_dump"


@pytest.mark.promise("W16")
def test_a_later_migration_is_applied_to_a_schema_in_use(
    broker: PostgresBroker, sql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sent,) = send_new(broker)
    later = Migration(library_version() + 1, "later", 1, "alter table {schema}.tasks add column note text")
    all_of_them = (*migrations(), later)
    monkeypatch.setattr(migrating, "migrations", lambda: all_of_them)
    assert broker.migrate() == ["later"]
    assert broker.migrate() == []
    assert column(sql, "select name from horsies.schema_versions order by version") == [*ALL, "later"]
    assert sql.execute("select id::text, note from horsies.tasks").fetchall() == [(sent.id, None)]


@pytest.mark.promise("D6")
@pytest.mark.parametrize(
    "statement",
    [
        "insert into tasks (task_name, attempts) values ('a', -1)",
        "insert into tasks (task_name, attempts) values ('a', 2147483647)",
        "insert into tasks (task_name, queue_name) values ('a', repeat('q', 10000))",
        "insert into tasks (task_name, enqueued_at) values ('a', '-infinity')",
        "insert into tasks (task_name, enqueued_at) values ('a', '20000-01-01')",
        (
            "insert into keys (task_name, key, task_id, send_id, args_hash, key_window) "
            "values ('a', 'k', gen_random_uuid(), gen_random_uuid(), '', '100000000 years')"
        ),
        "insert into maintenance_lease (holder, expires_at) values (gen_random_uuid(), 'infinity')",
        (
            "insert into workers (id, hostname, pid, processes, concurrency, queues, library_version, heartbeat_at) "
            "values (gen_random_uuid(), '', 1, 1, 1, '{}', '', 'infinity')"
        ),
    ],
)
def test_rows_that_would_make_a_statement_over_many_rows_fail_are_refused(
    statement: str, sql: psycopg.Connection
) -> None:
    sql.execute("set search_path = horsies, pg_catalog")
    with pytest.raises(psycopg.errors.CheckViolation):
        sql.execute(statement.encode())
