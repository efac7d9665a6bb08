"""`--no-migrate`: the schema is a matter of the deployment, and not of workers and schedulers."""

import psycopg
import pytest

from horsies.db import migrate as migrating
from horsies.db.broker import PostgresBroker
from horsies.db.migrate import Migration, library_version, migrations
from horsies.model.config import AppConfig, PostgresConfig
from horsies.model.errors import SchemaError
from horsies.worker.service import ExitCode, open_database
from tests.fixtures.journey import column
from tests.fixtures.workers import Program, StartWorker
from tests.worker.steps import insert, wait_until_ended

COMMANDS = {"worker": ("tests.apps.basic:app", "--processes=1"), "scheduler": ("tests.apps.scheduled:app",)}
READY = {"worker": "is ready on queues", "scheduler": "scheduler is ready"}
MISSING = "Error: this database has no horsies in schema 'horsies'; run `horsies migrate` first"


def program(command: str, *options: str, **env: str) -> Program:
    return Program(command, *COMMANDS[command], *options, env=env)


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("way", ["flag", "environment"])
def test_without_a_schema_it_does_not_start_and_creates_nothing(command: str, way: str, empty_database: str) -> None:
    env = {"HORSIES_DATABASE_URL": empty_database}
    found = (
        program(command, "--no-migrate", **env) if way == "flag" else program(command, HORSIES_NO_MIGRATE="1", **env)
    )
    try:
        assert found.wait() == ExitCode.FAILED
        assert found.logs[-1] == MISSING
    finally:
        found.close()
    with psycopg.connect(empty_database) as sql:
        assert column(sql, "select nspname from pg_namespace where nspname = 'horsies'") == []


def test_with_a_current_schema_it_starts(command: str, database: str) -> None:
    found = program(command, "--no-migrate", HORSIES_DATABASE_URL=database)
    try:
        found.wait_for_log(READY[command])
        assert found.terminate() == ExitCode.CLEAN
    finally:
        found.close()


def test_a_worker_that_does_not_migrate_runs_tasks(worker: StartWorker, sql: psycopg.Connection) -> None:
    worker(options=("--no-migrate",))
    insert(sql, "echo", value=1)
    assert wait_until_ended(sql, 1) == {"COMPLETED": 1}


def test_it_waits_for_a_database_that_is_not_available_yet(command: str) -> None:
    found = program(command, "--no-migrate", HORSIES_DATABASE_URL="postgresql://somebody@127.0.0.1:1/nothing")
    try:
        found.wait_for_log("database unavailable, retrying")
        assert found.terminate() == ExitCode.CLEAN
    finally:
        found.close()


@pytest.fixture
def next_release(monkeypatch: pytest.MonkeyPatch) -> int:
    """This process has one more migration than the database."""
    later = Migration(library_version() + 1, "later", library_version(), "create table {schema}.notes (note text);")
    both = (*migrations(), later)
    monkeypatch.setattr(migrating, "migrations", lambda: both)
    return later.version


def test_an_older_schema_is_refused(database: str, next_release: int) -> None:
    with PostgresBroker(PostgresConfig(database_url=database)) as broker:
        expected = f"at version {next_release - 1}, and this library needs {next_release}; run `horsies migrate` first"
        with pytest.raises(SchemaError, match=expected):
            open_database(broker, AppConfig(), migrate=False)
        open_database(broker, AppConfig())
        open_database(broker, AppConfig(), migrate=False)
