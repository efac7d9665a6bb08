"""`horsies migrate --check` and `--sql`."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result

from horsies.cli.main import main
from horsies.db import migrate as migrate_module
from horsies.db.migrate import Migration, library_version, migrations
from horsies.embedded.binaries import find_binaries
from tests.fixtures.journey import column, row
from tests.fixtures.schema_dump import SCHEMA_SQL, dump

ALL = [migration.name for migration in migrations()]
LATER = "insert into horsies.schema_versions (version, name, compatible_since) values (901, 'later', %s)"


@pytest.fixture
def migrate(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    for name in ("HORSIES_APP", "HORSIES_DATABASE_URL", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return lambda *words: CliRunner().invoke(main, ["migrate", *words])


def psql(url: str, text: str) -> subprocess.CompletedProcess[str]:
    command = [str(find_binaries().program("psql")), "-X", "-q", "-v", "ON_ERROR_STOP=1", f"--dbname={url}", "-f", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=30)


# -- check


def test_check_names_what_is_pending_and_changes_nothing(migrate: Callable[..., Result], empty_database: str) -> None:
    found = migrate("--check", "--database-url", empty_database)
    assert found.exit_code == 1
    assert f"is at version 0 of {library_version()}; pending:" in found.stdout
    assert [line.strip() for line in found.stdout.splitlines()[1:]] == ALL
    with psycopg.connect(empty_database) as sql:
        assert column(sql, "select nspname from pg_namespace where nspname = 'horsies'") == []


def test_check_accepts_a_current_schema(migrate: Callable[..., Result], database: str) -> None:
    found = migrate("--check", "--database-url", database)
    assert (found.exit_code, found.stdout) == (0, f"schema 'horsies' is up to date at version {library_version()}\n")


def test_check_prints_json(migrate: Callable[..., Result], database: str, sql: psycopg.Connection) -> None:
    current = migrate("--check", "--json", "--database-url", database)
    known: dict[str, object] = {
        "schema": "horsies",
        "version": library_version(),
        "library_version": library_version(),
        "pending": [],
    }
    assert (current.exit_code, json.loads(current.stdout)) == (0, known)
    elsewhere = migrate("--check", "--json", "--database-url", database, "--schema", "other")
    assert (elsewhere.exit_code, json.loads(elsewhere.stdout)["pending"]) == (1, ALL)


def test_check_refuses_a_schema_that_needs_a_newer_library(
    migrate: Callable[..., Result], database: str, sql: psycopg.Connection
) -> None:
    sql.execute(LATER, [900])
    found = migrate("--check", "--database-url", database)
    assert found.exit_code == 1
    assert "Upgrade the horsies package" in found.stderr


def test_migrate_prints_json(migrate: Callable[..., Result], empty_database: str) -> None:
    first, second = (json.loads(migrate("--json", "--database-url", empty_database).stdout) for _ in range(2))
    assert first == {"schema": "horsies", "version": library_version(), "applied": ALL}
    assert second["applied"] == []


# -- sql


@pytest.mark.parametrize("way", ["without a database", "for this one"])
def test_the_script_has_the_same_effect_as_the_migrations(
    migrate: Callable[..., Result], empty_database: str, way: str
) -> None:
    where = ("--from", "0") if way == "without a database" else ("--database-url", empty_database)
    printed = migrate("--sql", *where).stdout
    assert psql(empty_database, printed).stderr == ""
    assert dump(empty_database) == SCHEMA_SQL.read_text()
    with psycopg.connect(empty_database) as sql:
        assert column(sql, "select name from horsies.schema_versions order by version") == ALL
        days = "select count(*) from pg_inherits where inhparent = 'horsies.finished'::regclass"
        assert row(sql, days) == (15,)  # 14 days, and the default partition
    after = migrate("--check", "--database-url", empty_database)
    assert after.exit_code == 0


def test_the_script_works_with_any_schema_name(migrate: Callable[..., Result], empty_database: str) -> None:
    assert psql(empty_database, migrate("--sql", "--from", "0", "--schema", "it's 100%%").stdout).stderr == ""
    assert migrate("--check", "--database-url", empty_database, "--schema", "it's 100%%").exit_code == 0


def test_the_script_migrates_an_older_schema(
    migrate: Callable[..., Result], database: str, sql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the current version to one with a later migration, like the next release."""
    version = library_version()
    later = Migration(version + 1, "later", version, "create table {schema}.notes (note text);")
    both = (*migrations(), later)
    monkeypatch.setattr(migrate_module, "migrations", lambda: both)
    pending = json.loads(migrate("--check", "--json", "--database-url", database).stdout)
    assert (pending["version"], pending["pending"]) == (version, ["later"])
    printed = migrate("--sql", "--database-url", database).stdout
    assert psql(database, printed).stderr == ""
    assert migrate("--check", "--database-url", database).exit_code == 0
    assert row(sql, "select to_regclass('horsies.notes') is not null") == (True,)
    assert column(sql, "select name from horsies.schema_versions order by version") == [*ALL, "later"]
    again = psql(database, printed)
    assert f"the schema is not at version {version} any more; print the script again" in again.stderr


def test_an_outdated_script_changes_nothing(migrate: Callable[..., Result], empty_database: str, database: str) -> None:
    printed = migrate("--sql", "--from", "0").stdout
    done = psql(database, printed)
    assert done.returncode != 0
    assert "horsies is installed here already; print the script again" in done.stderr
    assert migrate("--check", "--database-url", database).exit_code == 0


def test_the_script_for_a_current_schema_is_only_a_comment(migrate: Callable[..., Result], database: str) -> None:
    found = migrate("--sql", "--database-url", database)
    assert found.exit_code == 0
    assert all(line.startswith("--") for line in found.stdout.splitlines())


def test_the_script_uses_the_schema_of_the_app(
    migrate: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ledger.py").write_text(
        "from horsies import *\n"
        "app = Horsies(AppConfig(broker=PostgresConfig(database_url='postgresql://nowhere', schema='ledger')))\n"
    )
    monkeypatch.chdir(tmp_path)
    assert 'create table "ledger".tasks' in migrate("ledger.py:app", "--sql", "--from", "0").stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--check", "--sql"), "give one of them"),
        (("--sql", "--json"), "leave --json out"),
        (("--from", "0"), "--from requires --sql"),
        (("--sql", "--from", "999"), "above this library's version"),
    ],
)
def test_contradictions_are_wrong_usage(migrate: Callable[..., Result], words: tuple[str, ...], expected: str) -> None:
    found = migrate(*words)
    assert found.exit_code == 2
    assert expected in found.stderr


def test_check_fails_when_the_database_cannot_be_read(migrate: Callable[..., Result]) -> None:
    found = migrate("--check", "--json", "--database-url", "postgresql+asyncpg://ann@127.0.0.1:1/app")
    assert (found.exit_code, found.stdout) == (1, "")
    assert "Error: " in found.stderr
