"""Whatever a role or a database sets for its sessions, ours have the settings that our statements depend on."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.db.dedicated import DedicatedConnection
from horsies.db.loop_connection import LoopConnection
from horsies.db.pool import connect
from horsies.db.pooler import is_direct
from horsies.db.statement import Op, Statement, one
from horsies.model.config import PostgresConfig
from horsies.model.task import Ended
from horsies.tasks.finish import finish_tasks, notify_done
from tests.fixtures.apps import load_fresh
from tests.fixtures.journey import ME, claim, completed, do, row, send_new, wait_for
from tests.fixtures.scratch_server import scratch_server
from tests.fixtures.server import DatabaseServer
from tests.fixtures.web import free_port
from tests.fixtures.workers import StartWorker

TIMEOUT_MS = 20_000
SETTINGS = {
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "iso_8601",
    "TimeZone": "America/St_Johns",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "standard_conforming_strings": "off",
    "array_nulls": "off",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "idle_session_timeout": "300ms",
    "statement_timeout": "300ms",
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "300ms",
    "transaction_timeout": "300ms",
    "row_security": "off",
    "client_min_messages": "error",
    "quote_all_identifiers": "on",
    "transform_null_equals": "on",
    "exit_on_error": "off",
    "lc_messages": "C",
    "lc_numeric": "C",
    "lc_time": "C",
    "xmloption": "document",
    "enable_indexscan": "off",
    "plan_cache_mode": "force_custom_plan",
    "check_function_bodies": "off",
    "search_path": "nowhere",
}
FAST = {"fsync": "off", "full_page_writes": "off"}
LIMITS = ("statement_timeout", "lock_timeout", "idle_session_timeout", "transaction_timeout")
READ = Statement(
    "read",
    "select timestamptz '2026-01-02 03:04:05.000006+00', interval '1 day 02:00:00', 0.1::float8 + 0.2::float8, "
    "%(words)s::text[], '\\x', '\\000'::bytea, current_setting('search_path')",
)


def read() -> Op[Any]:
    return one(READ(words=["a", None]))


def set_for_sessions(sql: psycopg.Connection, server: DatabaseServer, **settings: str) -> None:
    """Set this for new sessions of the database."""
    for name, value in settings.items():
        if name == "transaction_timeout" and server.version < 17:
            continue
        words = value if name in {"search_path", "DateStyle"} else f"'{value}'"
        sql.execute(f'alter database "{sql.info.dbname}" set {name} = {words}'.encode())


def expect_read(found: Any) -> None:
    moment, span, third, words, backslash, zero, path = found
    assert moment.isoformat() == "2026-01-02T03:04:05.000006+00:00"
    assert span == timedelta(days=1, hours=2)
    assert third == 0.1 + 0.2
    assert words == ["a", None]
    assert backslash == "\\x"
    assert zero == b"\0"
    assert path == "pg_catalog, pg_temp"


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_the_database_changes_no_operation(
    name: str, database: str, sql: psycopg.Connection, server: DatabaseServer
) -> None:
    set_for_sessions(sql, server, **{name: SETTINGS[name]})
    with PostgresBroker(PostgresConfig(database_url=database)) as broker:
        assert broker.migrate() == []
        expect_read(broker.run(read))
        (sent,) = send_new(broker)
        (held,) = claim(broker)
        do(broker, finish_tasks(ME, [completed(held)]), notify_done([held.id]))
        assert isinstance(wait_for(broker, sent.id), Ended)


async def test_all_of_them_together_change_no_kind_of_session(
    database: str, sql: psycopg.Connection, server: DatabaseServer
) -> None:
    set_for_sessions(sql, server, **SETTINGS)
    config = PostgresConfig(database_url=database)
    broker, loop_connection, dedicated = (
        PostgresBroker(config),
        LoopConnection(config, "worker"),
        DedicatedConnection(config, "maintenance"),
    )
    for _ in range(3):  # prepared, too
        expect_read(broker.run(read))
        expect_read(await broker.run_async(read))
        expect_read(await loop_connection.run(read()))
        expect_read(dedicated.run(read()))
    loop_connection.close()
    dedicated.close()
    await broker.close_async()


@pytest.mark.parametrize("kind", ["loop", "dedicated"])
async def test_limits_of_the_role_do_not_stop_a_workers_statements(
    kind: str, database: str, sql: psycopg.Connection, server: DatabaseServer
) -> None:
    set_for_sessions(sql, server, **{name: SETTINGS[name] for name in LIMITS})
    config = PostgresConfig(database_url=database)
    slow = Statement("slow", "select pg_sleep(0.6), pg_backend_pid()")
    process = Statement("process", "select pg_backend_pid()")
    if kind == "loop":
        loop_connection = LoopConnection(config, "worker")
        worked, then = await loop_connection.run(one(slow())), await loop_connection.run(one(process()))
        loop_connection.close()
    else:
        dedicated = DedicatedConnection(config, "maintenance")
        worked, then = dedicated.run(one(slow())), dedicated.run(one(process()))
        dedicated.close()
    assert worked is not None
    assert then == (worked[1],)


def test_a_worker_runs_every_kind_of_task_with_all_of_them(
    database: str, sql: psycopg.Connection, server: DatabaseServer, worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {
        name: value for name, value in SETTINGS.items() if name not in LIMITS
    }  # of producers these are the user's choice
    set_for_sessions(sql, server, **own)
    monkeypatch.setenv("HORSIES_DATABASE_URL", database)
    graphs = load_fresh("graphs")
    running = worker("tests.apps.graphs:app")
    try:
        assert graphs.add.send(1, 2).get(TIMEOUT_MS).unwrap() == 3
        assert graphs.add.with_options(key="k").send(1, 2).get(TIMEOUT_MS).unwrap() == 3
        assert graphs.add.schedule(timedelta(milliseconds=200), 1, 2).get(TIMEOUT_MS).unwrap() == 3
        assert graphs.mapped.start().get(TIMEOUT_MS).unwrap() == sum(range(10, 15))
    finally:
        graphs.app.close()
    assert running.terminate() == 0
    assert not [line for line in running.logs if "WARNING" in line or "ERROR" in line]
    assert row(sql, "select max(claim_no) from horsies.finished") == (1,)


def test_the_server_ends_the_session_of_a_listener_whose_machine_is_gone() -> None:
    """Within a minute, because it holds slots. That of a heartbeat may live for longer: how long a worker may be silent is configured."""
    names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout")
    read_limits = f"select {', '.join(f'current_setting({name!r})' for name in names)}".encode()
    with scratch_server(settings=FAST, tcp_port=free_port()) as server:  # over a socket of Unix these have no effect
        config = PostgresConfig(database_url=server.url())
        with psycopg.connect(server.url()) as other:
            default = other.execute(read_limits).fetchone()
        dedicated = DedicatedConnection(config, "heartbeat")
        of_heartbeat = dedicated.run(one(Statement("read_limits", read_limits.decode())()))
        dedicated.close()
        with connect(config, "listener") as listener:
            assert is_direct(listener)
            assert listener.execute(read_limits).fetchone() == ("30", "10", "3", "60000")
    assert of_heartbeat == default
