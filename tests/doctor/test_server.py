"""On a server as one has it in production: nothing is wrong there, until somebody plants what concerns the whole server."""

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


def test_a_healthy_system_with_a_live_worker_has_no_findings_at_all(
    sturdy_server: EmbeddedServer, worker: StartWorker, tmp_path: Path
) -> None:
    app = tmp_path / f"healthy_{secrets.token_hex(4)}.py"  # its own: the apps of other tests are at other databases
    app.write_text(f"from horsies import *\napp = Horsies(AppConfig.for_database_url({sturdy_server.url()!r}))\n{TASK}")
    worker(f"{app}:app", database_url=sturdy_server.url())
    found = CliRunner().invoke(main, ["doctor", f"{app}:app", "--strict", "--json"])
    assert (found.exit_code, json.loads(found.stdout)["findings"]) == (0, [])


@pytest.fixture
def codes(sturdy_server: EmbeddedServer, doctor: Doctor) -> Generator[None]:
    """What is planted is gone afterwards."""
    yield
    assert doctor(sturdy_server.url()).codes == {FindingCode.NO_WORKERS}


def test_a_prepared_transaction_that_nobody_ends(
    sturdy_server: EmbeddedServer, sturdy: psycopg.Connection, doctor: Doctor, codes: None
) -> None:
    sturdy.execute("begin; select txid_current(); prepare transaction 'forgotten'")
    try:
        found = doctor(sturdy_server.url(), max_transaction_s=0.0)
        assert found.codes - {FindingCode.NO_WORKERS} == {FindingCode.PREPARED_TRANSACTION}
        assert found.data(FindingCode.PREPARED_TRANSACTION)["gid"] == "forgotten"
    finally:
        sturdy.execute("rollback prepared 'forgotten'")


def test_a_replication_slot_that_nobody_reads(
    sturdy_server: EmbeddedServer, sturdy: psycopg.Connection, doctor: Doctor, codes: None
) -> None:
    sturdy.execute("select pg_create_logical_replication_slot('forgotten', 'pgoutput')")
    try:
        sturdy.execute("create table public.written as select generate_series(1, 1000)")
        sturdy.execute("drop table public.written")
        found = doctor(sturdy_server.url(), max_slot_lag_bytes=1000)
        assert found.codes - {FindingCode.NO_WORKERS} == {FindingCode.REPLICATION_SLOT_BEHIND}
        known = found.data(FindingCode.REPLICATION_SLOT_BEHIND)
        assert (known["slot"], known["active"]) == ("forgotten", False)
        assert known["bytes_behind"] > 1000
    finally:
        sturdy.execute("select pg_drop_replication_slot('forgotten')")


def test_notifications_that_a_listener_in_a_transaction_keeps(
    sturdy_server: EmbeddedServer, sturdy: psycopg.Connection, doctor: Doctor, codes: None
) -> None:
    if sturdy.info.server_version < 170_000:
        pytest.skip("before PostgreSQL 17 the queue cannot be made small enough to be filled")
    with psycopg.connect(sturdy_server.url()) as listener:
        listener.execute("listen anything")
        listener.commit()
        listener.execute("select 1")  # and stays in that transaction
        for number in range(20):
            sturdy.execute("select pg_notify('other', %s)", [f"{number:07900}"])
        found = doctor(sturdy_server.url())
        assert found.codes - {FindingCode.NO_WORKERS} == {FindingCode.NOTIFY_QUEUE_FILLING}
        known = found.data(FindingCode.NOTIFY_QUEUE_FILLING)
        assert known["usage"] > 0.1
        assert known["pids"] == [listener.info.backend_pid]
    with psycopg.connect(sturdy_server.url(), autocommit=True) as other:  # who comes next moves the tail on
        other.execute("listen anything")
        other.execute("notify anything")
        assert row(other, "select pg_notification_queue_usage() < 0.1") == (True,)


def test_connections_that_others_have_taken(
    sturdy_server: EmbeddedServer, sturdy: psycopg.Connection, doctor: Doctor, codes: None
) -> None:
    taken = [psycopg.connect(sturdy_server.url()) for _ in range(22)]
    try:
        found = doctor(sturdy_server.url())
    finally:
        for connection in taken:
            connection.close()
    assert found.codes - {FindingCode.NO_WORKERS} == {FindingCode.CONNECTIONS_SHORT}
    known = found.data(FindingCode.CONNECTIONS_SHORT)
    assert (known["of"], known["limit"]) == ("the server", 27)
    assert known["used"] > 22
