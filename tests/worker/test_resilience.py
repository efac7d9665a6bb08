"""A database that answers, but not with what was hoped for: read-only, full, crowded, or on another host by now."""

import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.fixtures.journey import column, row
from tests.fixtures.proxies import Proxy
from tests.fixtures.roles import PlainUser
from tests.fixtures.workers import StartWorker
from tests.worker.steps import PATIENCE_MS, begun

NOT_SERVED = "the database does not serve"


def end_sessions(sql: psycopg.Connection, database: str) -> None:
    """Whoever comes back gets the settings of today."""
    name = conninfo_to_dict(database)["dbname"]
    sql.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s and pid <> pg_backend_pid()", [name]
    )


@pytest.mark.promise("W11")
def test_a_database_that_became_read_only_is_waited_for(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, database: str, tmp_path: Path
) -> None:
    """As a standby is, until its promotion is over."""
    name = str(conninfo_to_dict(database)["dbname"])
    running = worker("tests.apps.tuned:app", processes=1)
    gate = basic.gate.send(str(tmp_path / "begun"), str(tmp_path / "open"))
    pid = begun(tmp_path / "begun")
    sql.execute(f'alter database "{name}" set default_transaction_read_only = on'.encode())
    end_sessions(sql, database)
    (tmp_path / "open").touch()
    running.wait_for_log(f"{NOT_SERVED}.*read-only")
    sql.execute(f'alter database "{name}" reset default_transaction_read_only'.encode())
    end_sessions(sql, database)
    assert gate.get(PATIENCE_MS).ok_value == pid
    assert row(sql, "select attempts from horsies.finished where id = %s", gate.task_id) == (1,)


def rule_on_endings(body: str) -> bytes:
    """Made anew, it changes what the trigger does. To drop the trigger would lock the days before their parent, against
    the order of everybody who writes there."""
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
    running.wait_for_log("cannot be stored yet.*No space left on device")
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
    for grant in (
        "grant usage on schema horsies to {}",
        "grant select, insert, update, delete on all tables in schema horsies to {}",
        "grant usage on all sequences in schema horsies to {}",
    ):
        sql.execute(grant.format(plain_user.name).encode())
    running = worker("tests.apps.tuned:app", processes=1, database_url=plain_user.url(database))
    gate = basic.gate.send(str(tmp_path / "begun"), str(tmp_path / "open"))
    pid = begun(tmp_path / "begun")
    sql.execute(f"alter role {plain_user.name} connection limit 0".encode())
    sql.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", [plain_user.name])
    (tmp_path / "open").touch()
    running.wait_for_log(f"{NOT_SERVED}.*too many connections")
    sql.execute(f"alter role {plain_user.name} connection limit -1".encode())
    assert gate.get(PATIENCE_MS).ok_value == pid
    assert running.terminate() == 0


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
    """With the settings as they come: six times as long as a silent worker is given."""
    door = tmp_path / "open"
    running = [worker("tests.apps.tuned:app", processes=1, database_url=proxy.url) for _ in range(4)]
    gates = [basic.gate.send(str(tmp_path / str(n)), str(door)) for n in range(4)]
    pids = [begun(tmp_path / str(n)) for n in range(4)]
    before = sorted(map(str, column(sql, "select id::text from horsies.workers")))
    proxy.cut()
    time.sleep(60)  # the outage itself
    proxy.heal()
    door.touch()
    assert [gate.get(PATIENCE_MS).ok_value for gate in gates] == pids
    assert sorted(map(str, column(sql, "select id::text from horsies.workers"))) == before
    assert column(sql, "select distinct attempts from horsies.finished") == [1]
    assert [each.terminate() for each in running] == [0] * 4
