"""Faults of a whole server, on a server with the settings of production, where nothing else is wrong."""

import json
import secrets
from collections.abc import Generator
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from horsies.cli.main import main
from horsies.doctor.findings import FindingCode
from horsies.embedded.server import EmbeddedServer
from tests.doctor.conftest import Doctor
from tests.fixtures.journey import row
from tests.fixtures.workers import StartWorker

TASK = '@app.task("add")\ndef add(left: int, right: int) -> TaskResult[int, TaskError]:\n    return TaskResult(ok=left + right)\n'


def test_a_healthy_system_with_a_real_worker_has_no_findings(
    production_server: EmbeddedServer, worker: StartWorker, tmp_path: Path
) -> None:
    app = tmp_path / f"healthy_{secrets.token_hex(4)}.py"  # a new module: the apps of other tests use other databases
    app.write_text(
        f"from horsies import *\napp = Horsies(AppConfig.for_database_url({production_server.url()!r}))\n{TASK}"
    )
    worker(f"{app}:app", database_url=production_server.url())
    found = CliRunner().invoke(main, ["doctor", f"{app}:app", "--strict", "--json"])
    assert (found.exit_code, json.loads(found.stdout)["findings"]) == (0, [])


@pytest.fixture
def leaves_no_fault(production_server: EmbeddedServer, doctor: Doctor) -> Generator[None]:
    """Check that the fault is gone afterwards."""
    yield
    assert doctor(production_server.url()).codes == {FindingCode.NO_WORKERS}


def test_a_forgotten_prepared_transaction(
    production_server: EmbeddedServer, production: psycopg.Connection, doctor: Doctor, leaves_no_fault: None
) -> None:
    production.execute("begin; select txid_current(); prepare transaction 'forgotten'")
    try:
        found = doctor(production_server.url(), max_transaction_s=0.0)
        assert found.codes - {FindingCode.NO_WORKERS} == {FindingCode.PREPARED_TRANSACTION}
        assert found.data(FindingCode.PREPARED_TRANSACTION)["gid"] == "forgotten"
    finally:
        production.execute("rollback prepared 'forgotten'")


def test_an_unused_replication_slot(
    production_server: EmbeddedServer, production: psycopg.Connection, doctor: Doctor, leaves_no_fault: None
) -> None:
    production.execute("select pg_create_logical_replication_slot('forgotten', 'pgoutput')")
    try:
        production.execute("create table public.written as select generate_series(1, 1000)")
        production.execute("drop table public.written")
        found = doctor(production_server.url(), max_slot_lag_bytes=1000)
        assert found.codes - {FindingCode.NO_WORKERS} == {FindingCode.REPLICATION_SLOT_BEHIND}
        data = found.data(FindingCode.REPLICATION_SLOT_BEHIND)
        assert (data["slot"], data["active"]) == ("forgotten", False)
        assert data["bytes_behind"] > 1000
    finally:
        production.execute("select pg_drop_replication_slot('forgotten')")


def test_a_listener_in_a_transaction_fills_the_notification_queue(
    production_server: EmbeddedServer, production: psycopg.Connection, doctor: Doctor, leaves_no_fault: None
) -> None:
    if production.info.server_version < 170_000:
        pytest.skip("before PostgreSQL 17 the queue cannot be made small enough to be filled")
    with psycopg.connect(production_server.url()) as listener:
        listener.execute("listen anything")
        listener.commit()
        listener.execute("select 1")  # and stays in that transaction
        for number in range(20):
            production.execute("select pg_notify('other', %s)", [f"{number:07900}"])
        found = doctor(production_server.url())
        assert found.codes - {FindingCode.NO_WORKERS} == {FindingCode.NOTIFY_QUEUE_FILLING}
        data = found.data(FindingCode.NOTIFY_QUEUE_FILLING)
        assert data["usage"] > 0.1
        assert data["pids"] == [listener.info.backend_pid]
    with psycopg.connect(
        production_server.url(), autocommit=True
    ) as other:  # the next listener advances the tail of the queue
        other.execute("listen anything")
        other.execute("notify anything")
        assert row(other, "select pg_notification_queue_usage() < 0.1") == (True,)


def test_connections_in_use_by_others(
    production_server: EmbeddedServer, production: psycopg.Connection, doctor: Doctor, leaves_no_fault: None
) -> None:
    taken = [psycopg.connect(production_server.url()) for _ in range(22)]
    try:
        found = doctor(production_server.url())
    finally:
        for connection in taken:
            connection.close()
    assert found.codes - {FindingCode.NO_WORKERS} == {FindingCode.CONNECTIONS_SHORT}
    data = found.data(FindingCode.CONNECTIONS_SHORT)
    assert (data["of"], data["limit"]) == ("the server", 27)
    assert data["used"] > 22
