"""The roles of deploy/postgres: each can do what it is for, and nothing else."""

import secrets
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from horsies import AppConfig, Horsies, NotPermittedError, RetentionConfig
from horsies.db.broker import PostgresBroker
from horsies.db.dedicated import DedicatedConnection
from horsies.doctor.findings import CheckContext, FindingCode
from horsies.doctor.run import run_doctor
from horsies.maintenance.isolate import FailedRows
from horsies.maintenance.minutes import roll_up_minutes
from horsies.maintenance.retention import delete_unused_keys, retention_duties
from horsies.model.config import PostgresConfig
from horsies.web import dashboard
from tests.fixtures.apps import load_fresh
from tests.fixtures.everything import Everything, fill
from tests.fixtures.server import DatabaseServer

FOLDER = Path(__file__).parents[2] / "deploy" / "postgres"
ROLES = ("owner", "worker", "producer", "reader")


@dataclass(frozen=True)
class Roles:
    """A database in which the roles of the files exist, under names that no other test uses."""

    database: str
    prefix: str

    def url(self, role: str) -> str:
        given = {key: str(value) for key, value in conninfo_to_dict(self.database).items() if value is not None}
        return make_conninfo("", **given | {"user": f"{self.prefix}{role}", "password": "secret"})

    def run(self, file: str, url: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute((FOLDER / file).read_text().replace("horsies_", self.prefix).encode())


@pytest.fixture
def roles(server: DatabaseServer, empty_database: str) -> Generator[Roles]:
    """What the comments of the files say, step by step."""
    made = Roles(empty_database, f"horsies_test_{secrets.token_hex(4)}_")
    made.run("roles.sql", empty_database)
    try:
        for role in ROLES:
            server.admin.execute(f"alter role {made.prefix}{role} password 'secret'".encode())
        with PostgresBroker(PostgresConfig(database_url=made.url("owner"))) as broker:
            broker.migrate()
        made.run("grants.sql", made.url("owner"))
        yield made
    finally:
        with psycopg.connect(empty_database, autocommit=True) as connection:
            for role in ROLES:
                connection.execute(f"drop owned by {made.prefix}{role} cascade".encode())
        for role in ROLES:
            server.admin.execute(f"drop role {made.prefix}{role}".encode())


def test_producers_and_workers_can_do_everything(roles: Roles, capsys: pytest.CaptureFixture[str]) -> None:
    """Tasks and workflows in every state, schedules, dead workers, and all that operators do."""
    fill(
        roles.database,
        hostile=False,
        producer_url=roles.url("producer"),
        worker_url=roles.url("worker"),
    )
    logs = capsys.readouterr().err
    assert "is ready on queues" in logs
    assert "denied" not in logs
    assert "InsufficientPrivilege" not in logs


def test_workers_can_apply_retention_and_compute_statistics(roles: Roles) -> None:
    fill(roles.database, hostile=False)
    connection = DedicatedConnection(PostgresConfig(database_url=roles.url("worker")), "test")
    with closing(connection), psycopg.connect(roles.database, autocommit=True) as sql:
        sql.execute("update horsies.finished set finished_at = finished_at - interval '40 days'")
        sql.execute("update horsies.workflows set finished_at = finished_at - interval '40 days'")
        sql.execute("update horsies.worker_states set snapshot_at = snapshot_at - interval '40 days'")
        connection.run(roll_up_minutes())
        deleted = {
            name: connection.run(duty()).count
            for name, duty in retention_duties("horsies", RetentionConfig(), FailedRows()).items()
        }
        connection.run(delete_unused_keys())
        assert sql.execute("select count(*) from horsies.finished").fetchone() == (0,)
    assert {name for name, count in deleted.items() if count} >= {"finished tasks", "workflows", "worker states"}


def test_workers_that_are_members_of_the_owner_create_and_drop_partitions(roles: Roles, server: DatabaseServer) -> None:
    assert FindingCode.PARTITION_PRIVILEGE_MISSING in findings(roles, "worker")
    server.admin.execute(f"grant {roles.prefix}owner to {roles.prefix}worker".encode())
    assert FindingCode.PARTITION_PRIVILEGE_MISSING not in findings(roles, "worker")


def findings(roles: Roles, role: str) -> set[FindingCode]:
    report = run_doctor(PostgresConfig(database_url=roles.url(role)), CheckContext(schema="horsies"))
    return {finding.code for finding in report.findings}


def test_the_doctor_finds_what_each_role_lacks(roles: Roles) -> None:
    lacks = {FindingCode.PRIVILEGES_MISSING, FindingCode.ROLE_READ_ONLY, FindingCode.CHECK_NOT_PERMITTED}
    assert findings(roles, "worker") & lacks == set()
    assert findings(roles, "reader") & lacks == {FindingCode.ROLE_READ_ONLY}


def test_the_grants_hold_for_tables_of_later_migrations_and_may_be_run_again(roles: Roles) -> None:
    with psycopg.connect(roles.url("owner"), autocommit=True) as owner:
        owner.execute("create table horsies.notes (note text)")
    roles.run("grants.sql", roles.url("owner"))
    with psycopg.connect(roles.url("worker"), autocommit=True) as worker:
        worker.execute("insert into horsies.notes values ('x')")
    with psycopg.connect(roles.url("reader"), autocommit=True) as reader:
        reader.execute("select from horsies.notes")


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        ("worker", "create table horsies.mine (id integer)"),
        ("worker", "drop table horsies.tasks"),
        ("worker", "truncate horsies.tasks"),
        ("worker", "delete from horsies.schema_versions"),
        ("producer", "delete from horsies.finished"),
        ("producer", "update horsies.workflows set status = 'COMPLETED'"),
        ("producer", "select from horsies.audit"),
        ("producer", "delete from horsies.workers"),
        ("reader", "update horsies.tasks set priority = 1"),
        ("reader", "insert into horsies.tasks (task_name) values ('x')"),
    ],
)
def test_a_role_can_do_nothing_else(roles: Roles, role: str, statement: str) -> None:
    with psycopg.connect(roles.url(role), autocommit=True) as connection, pytest.raises(psycopg.Error) as error:
        connection.execute(statement.encode())
    assert error.value.sqlstate == "42501"


def test_a_producer_replaces_keyed_tasks_and_cannot_cancel(roles: Roles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORSIES_DATABASE_URL", roles.url("producer"))
    basic = load_fresh("basic")
    with closing(basic.app):
        first = basic.echo.with_options(key="k", key_window=60).send(1)
        second = basic.echo.with_options(key="k", key_window=60, on_conflict="replace").send(2)
        assert first.task_id == second.task_id
        assert second.status() == "PENDING"
        with pytest.raises(NotPermittedError):
            second.cancel()


@pytest.fixture
def filled(roles: Roles) -> Everything:
    return fill(roles.database, hostile=False)


async def test_the_dashboard_can_be_read_as_the_reader(roles: Roles, filled: Everything) -> None:
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=roles.url("reader"))))
    application = dashboard(app)
    transport = httpx.ASGITransport(application)
    pages = ["/", "/tasks", f"/tasks/{filled.tasks['failed']}", "/errors", "/queues", "/workers", "/workflows"]
    pages += [f"/workflows/{filled.workflows['completed']}", "/schedules", "/doctor", "/audit"]
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            for page in pages:
                found = await client.get(page)
                assert (page, found.status_code) == (page, 200)
                assert "permission denied" not in found.text
    finally:
        await application.close()
        await app.close_async()
