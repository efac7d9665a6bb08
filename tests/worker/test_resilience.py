"""A database that answers with errors: it is read-only, full, out of connections, or has moved to another host."""

import re
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column, row
from tests.fixtures.proxies import Proxy
from tests.fixtures.roles import PlainUser
from tests.fixtures.workers import StartWorker
from tests.recovery.steps import CLUSTER, FORKED, settings
from tests.worker.steps import PATIENCE_MS, begun, insert_lines, numbers, wait_until_ended

UNAVAILABLE = "database unavailable"


def end_sessions(sql: psycopg.Connection, database: str) -> None:
    """New sessions get the changed settings."""
    name = conninfo_to_dict(database)["dbname"]
    sql.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s and pid <> pg_backend_pid()", [name]
    )


@pytest.mark.promise("W11")
def test_a_database_that_became_read_only_is_waited_for(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, database: str, tmp_path: Path
) -> None:
    """Such as a standby before its promotion."""
    name = str(conninfo_to_dict(database)["dbname"])
    running = worker("tests.apps.tuned:app", processes=1)
    gate = basic.gate.send(str(tmp_path / "begun"), str(tmp_path / "open"))
    pid = begun(tmp_path / "begun")
    sql.execute(f'alter database "{name}" set default_transaction_read_only = on'.encode())
    end_sessions(sql, database)
    (tmp_path / "open").touch()
    running.wait_for_log(f"{UNAVAILABLE}.*read-only")
    sql.execute(f'alter database "{name}" reset default_transaction_read_only'.encode())
    end_sessions(sql, database)
    assert gate.get(PATIENCE_MS).ok_value == pid
    assert row(sql, "select attempts from horsies.finished where id = %s", gate.task_id) == (1,)


def rule_on_endings(body: str) -> bytes:
    """Replace the function to change what the trigger does. Dropping the trigger would lock the partitions before their parent,
    against the order of all writers."""
    return (
        "create or replace function rule_on_endings() returns trigger language plpgsql as "
        f"$$ begin {body}; end $$".encode()
    )


@pytest.mark.promise("W11")
def test_a_full_disk_is_waited_for_and_the_result_is_kept(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    running = worker("tests.apps.tuned:app", processes=1)
    gate = basic.gate.send(str(tmp_path / "begun"), str(tmp_path / "open"))
    pid = begun(tmp_path / "begun")
    sql.execute(rule_on_endings("raise disk_full using message = 'could not extend file: No space left on device'"))
    sql.execute(
        "create trigger full_disk before insert on horsies.finished for each row execute function rule_on_endings()"
    )
    (tmp_path / "open").touch()
    running.wait_for_log("not stored yet.*No space left on device")
    sql.execute(rule_on_endings("return new"))
    assert gate.get(PATIENCE_MS).ok_value == pid


@pytest.mark.promise("W11")
def test_a_server_without_a_free_connection_is_waited_for(
    basic: Any,
    worker: StartWorker,
    sql: psycopg.Connection,
    database: str,
    plain_user: PlainUser,
    tmp_path: Path,
) -> None:
    grant_everything(sql, plain_user)
    running = worker("tests.apps.tuned:app", processes=1, database_url=plain_user.url(database))
    gate = basic.gate.send(str(tmp_path / "begun"), str(tmp_path / "open"))
    pid = begun(tmp_path / "begun")
    sql.execute(f"alter role {plain_user.name} connection limit 0".encode())
    sql.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", [plain_user.name])
    (tmp_path / "open").touch()
    running.wait_for_log(f"{UNAVAILABLE}.*too many connections")
    sql.execute(f"alter role {plain_user.name} connection limit -1".encode())
    assert gate.get(PATIENCE_MS).ok_value == pid
    assert running.terminate() == 0


PATIENT = {"db_retry_initial_ms": 60_000, "db_retry_max_ms": 60_000, "notify_poll_interval_ms": 300_000}
"""A connection that waits for the end of its pause comes too late."""


def grant_everything(sql: psycopg.Connection, user: PlainUser) -> None:
    for grant in (
        "grant usage on schema horsies to {}",
        "grant select, insert, update, delete on all tables in schema horsies to {}",
        "grant usage on all sequences in schema horsies to {}",
    ):
        sql.execute(grant.format(user.name).encode())


@pytest.mark.promise("W11")
def test_with_no_free_connection_the_open_ones_continue_to_serve(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, database: str, plain_user: PlainUser, tmp_path: Path
) -> None:
    grant_everything(sql, plain_user)
    log = tmp_path / "log"
    running = worker(
        CLUSTER,
        processes=4,
        options=FORKED,
        env=settings(resilience=PATIENT, recovery={"heartbeat_ms": 3_000, "dead_after_ms": 60_000}),
        database_url=plain_user.url(database),
    )
    gates = [basic.gate.send(str(tmp_path / f"begun {n}"), str(tmp_path / f"open {n}")) for n in range(4)]
    pids = [begun(tmp_path / f"begun {n}") for n in range(4)]
    listening = "select count(*) from pg_stat_activity where usename = %s and application_name = 'horsies listener'"
    eventually(lambda: row(sql, listening, plain_user.name) == (1,))
    count = row(sql, "select count(*) from pg_stat_activity where usename = %s", plain_user.name)[0]
    sql.execute(f"alter role {plain_user.name} connection limit {count}".encode())
    blocked = "select count(*) from pg_stat_activity where usename = %s and wait_event_type = 'Lock'"
    failure = "continuing with the others.*too many connections"

    def fails() -> bool:
        return any(re.search(failure, line) for line in running.logs)

    with psycopg.connect(database) as blocker:  # every ending waits, and the next one needs another connection
        blocker.execute("lock table horsies.finished in share mode")
        for n in range(4):
            (tmp_path / f"open {n}").touch()
            eventually(lambda n=n: fails() or row(sql, blocked, plain_user.name) == (n + 1,))
        running.wait_for_log(failure)
    assert [gate.get(PATIENCE_MS).ok_value for gate in gates] == pids
    insert_lines(sql, log, 300)
    assert wait_until_ended(sql, 304) == {"COMPLETED": 304}
    assert sorted(numbers(log)) == list(range(300))
    assert not any(UNAVAILABLE in line for line in running.logs)
    sql.execute(f"alter role {plain_user.name} connection limit -1".encode())
    assert running.terminate() == 0


@pytest.mark.promise("W11", "T2")
def test_a_worker_whose_heartbeat_finds_no_free_connection_is_not_declared_dead(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, database: str, plain_user: PlainUser, tmp_path: Path
) -> None:
    grant_everything(sql, plain_user)
    waiting_worker = worker(CLUSTER, options=FORKED, env=settings(), database_url=plain_user.url(database))
    gate = basic.gate.send(str(tmp_path / "begun"), str(tmp_path / "open"))
    pid = begun(tmp_path / "begun")
    worker(CLUSTER, options=FORKED, env=settings(), until_ready=True)  # a leader, which gets its connections
    before = column(sql, "select id from horsies.workers order by id")
    sql.execute(f"alter role {plain_user.name} connection limit 0".encode())
    sql.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where usename = %s and application_name <> 'horsies worker'",
        [plain_user.name],
    )
    since = row(sql, "select clock_timestamp()")[0]
    beaten = "select count(*) from horsies.workers where heartbeat_at > %s::timestamptz + interval '5 s'"
    eventually(lambda: row(sql, beaten, since) == (2,), 20, what="both beat for much longer than dead_after_ms")
    assert column(sql, "select id from horsies.workers order by id") == before
    (tmp_path / "open").touch()
    assert gate.get(PATIENCE_MS).ok_value == pid
    assert not any("starting again" in line for line in waiting_worker.logs)
    sql.execute(f"alter role {plain_user.name} connection limit -1".encode())
    assert waiting_worker.terminate() == 0


@pytest.mark.promise("W11")
def test_an_answered_heartbeat_ends_the_pause_of_the_others(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, proxy: Proxy, tmp_path: Path
) -> None:
    running = worker(CLUSTER, env=settings(resilience=PATIENT), options=FORKED, database_url=proxy.url)
    gate = basic.gate.send(str(tmp_path / "begun"), str(tmp_path / "open"))
    pid = begun(tmp_path / "begun")
    proxy.cut()
    (tmp_path / "open").touch()
    running.wait_for_log(rf"{UNAVAILABLE}, retrying in [4-6]\d\.\d s")
    proxy.heal()
    assert gate.get(PATIENCE_MS).ok_value == pid
    assert basic.add.send(1, 2).get(PATIENCE_MS).ok_value == 3, "notifications arrive again, too"


@pytest.fixture
def second_proxy(database: str) -> Generator[Proxy]:
    proxy = Proxy(database)
    yield proxy
    proxy.close()


@pytest.mark.promise("W11")
def test_the_next_host_of_the_url_takes_over(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, proxy: Proxy, second_proxy: Proxy, tmp_path: Path
) -> None:
    second_proxy.cut()
    first, second = (conninfo_to_dict(each.url) for each in (proxy, second_proxy))
    url = proxy.url.replace(f"127.0.0.1:{first['port']}", f"127.0.0.1:{first['port']},127.0.0.1:{second['port']}")
    running = worker("tests.apps.tuned:app", processes=1, database_url=url)
    gate = basic.gate.send(str(tmp_path / "begun"), str(tmp_path / "open"))
    pid = begun(tmp_path / "begun")
    proxy.cut()
    second_proxy.heal()
    (tmp_path / "open").touch()
    assert gate.get(PATIENCE_MS).ok_value == pid
    assert basic.add.send(1, 2).get(PATIENCE_MS).ok_value == 3  # notifications come from there too
    assert running.terminate() == 0
    assert second_proxy.connections == 0


@pytest.mark.promise("W11", "T2")
@pytest.mark.timeout(180)
def test_a_minute_without_the_database_ends_no_task_of_four_healthy_workers(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, proxy: Proxy, tmp_path: Path
) -> None:
    """With default settings: six times `dead_after_ms`."""
    gate_file = tmp_path / "open"
    running = [worker("tests.apps.tuned:app", processes=1, database_url=proxy.url) for _ in range(4)]
    gates = [basic.gate.send(str(tmp_path / str(n)), str(gate_file)) for n in range(4)]
    pids = [begun(tmp_path / str(n)) for n in range(4)]
    before = sorted(map(str, column(sql, "select id::text from horsies.workers")))
    proxy.cut()
    time.sleep(60)  # the outage itself
    proxy.heal()
    gate_file.touch()
    assert [gate.get(PATIENCE_MS).ok_value for gate in gates] == pids
    assert sorted(map(str, column(sql, "select id::text from horsies.workers"))) == before
    assert column(sql, "select distinct attempts from horsies.finished") == [1]
    assert [each.terminate() for each in running] == [0] * 4
