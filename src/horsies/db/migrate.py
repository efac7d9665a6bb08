"""Numbered migrations, applied under a lock, with a recorded version.

The first line of a migration may be `-- compatible_since: N`: the oldest schema version whose library can still use the schema that it
makes (migrations expand first and contract one release later). Without it, only its own version can. At the current version nothing
is written, and no privilege beyond reading is needed.

They are applied on a connection of their own, before there are pools. `migration_script` prints them for psql instead, for
databases that someone else changes: one transaction with the lock that `horsies migrate` takes too, a check that the schema is still
at its version, the migrations, and their rows in `schema_versions`.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import psycopg

from horsies.db.dedicated import DedicatedConnection
from horsies.db.errors import broker_error
from horsies.db.partitions import DAYS_AHEAD, prepare_partitions
from horsies.db.pipeline import PLACEHOLDER
from horsies.db.pooler import PINNED, set_locally
from horsies.db.statement import Op, Statement, execute, load, one, render_script, rows, script
from horsies.model.config import PostgresConfig
from horsies.model.errors import SchemaError

LOCK_TIMEOUT = "5s"

SQL = load(__file__)
T = TypeVar("T")
log = logging.getLogger("horsies.db")


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    compatible_since: int
    text: str

    @property
    def row(self) -> dict[str, str | int]:
        return {"version": self.version, "name": self.name, "compatible_since": self.compatible_since}


@dataclass(frozen=True, slots=True)
class SchemaState:
    """The version of a schema, 0 if it does not exist; `pending` are the migrations that it lacks, oldest first."""

    schema: str
    version: int
    library_version: int
    pending: Sequence[str]


@cache
def migrations() -> Sequence[Migration]:
    """Return all migrations of this library, oldest first."""
    result: list[Migration] = []
    for path in sorted((Path(__file__).parent / "migrations").glob("[0-9][0-9][0-9][0-9]_*.sql")):
        number, name = path.stem.split("_", 1)
        text = path.read_text(encoding="utf-8")
        compatible = re.match(r"-- compatible_since: (\d+)\n", text)
        version = int(number)
        result.append(Migration(version, name, int(compatible[1]) if compatible else version, text))
    return tuple(result)


def library_version() -> int:
    return migrations()[-1].version


def prepare_schema(config: PostgresConfig) -> list[str]:
    """Bring the schema to this library's version. Return the migrations applied, oldest first."""
    if config.listen_url:
        _require_same_database(config)
    return _run(config, _migrate(config.schema), config.listen_conninfo)


def require_current_schema(config: PostgresConfig) -> None:
    """Refuse a database without our schema, or with an older one; fail at once if it cannot be reached."""
    state = read_schema_state(config)
    if state.version == 0:
        raise SchemaError(f"this database has no horsies in schema {state.schema!r}; run `horsies migrate` first")
    if state.pending:
        raise SchemaError(
            f"schema {state.schema!r} is at version {state.version}, and this library needs {state.library_version}; "
            "run `horsies migrate` first"
        )


def read_schema_state(config: PostgresConfig) -> SchemaState:
    """Return the version of the schema and what it lacks; change nothing. Fail at once if the database cannot be reached."""
    version = _run(config, _get_version(config.schema), config.conninfo)
    pending = [migration.name for migration in _migrations_after(version)]
    return SchemaState(config.schema, version, library_version(), pending)


def _require_same_database(config: PostgresConfig) -> None:
    """Refuse a `listen_url` to another database before tables are created there. Compare twice: the server may have restarted in between."""
    for _ in range(2):
        here = _run(config, one(SQL["identify_database"]()), config.conninfo)
        there = _run(config, one(SQL["identify_database"]()), config.listen_conninfo)
        if here == there:
            return
    raise SchemaError(
        "listen_url and database_url lead to different databases, or to different servers; "
        "set listen_url to a direct connection to the very database that database_url leads to through the pooler"
    )


def _run(config: PostgresConfig, op: Op[T], conninfo: str) -> T:
    connection = DedicatedConnection(config, "migrations", url=conninfo)
    try:
        return connection.run(op)
    except psycopg.Error as error:
        server = "PostgreSQL" if conninfo == config.conninfo else "PostgreSQL at listen_url"
        raise broker_error(error, server) from error
    finally:
        connection.close()


def _migrate(schema: str) -> Op[list[str]]:
    """Bring the schema to this library's version. Safe from many processes at once."""
    try:
        version = yield from _get_version(schema)
        applied = (yield from apply_pending(schema)) if version < library_version() else []
        yield from prepare_partitions(schema)
    except psycopg.errors.InsufficientPrivilege as error:
        raise SchemaError(
            f"this database user may not do what horsies needs in schema {schema!r} ({error.diag.message_primary}). "
            f"Run `horsies migrate` once as a user who may create schemas, then grant this one USAGE on the schema and "
            f"SELECT, INSERT, UPDATE, DELETE on its tables."
        ) from error
    return applied


def _get_version(schema: str) -> Op[int]:
    """Return the schema's version, 0 if nothing is installed. Refuse a schema that this library is too old for."""
    installed = yield from one(SQL["is_installed"](schema=schema))
    if installed != (True,):
        return 0
    row = yield from one(SQL["get_version"]())
    version, compatible_since = row or (0, 0)
    if compatible_since > library_version():
        raise SchemaError(
            f"schema {schema!r} is at version {version}, which needs a library of schema version {compatible_since} or "
            f"newer; this one has {library_version()}. Upgrade the horsies package of this process."
        )
    return version


def apply_pending(schema: str) -> Op[list[str]]:
    """Wait for locks as long as it takes, but for each only a while: other sessions wait behind our request. Log each attempt."""
    while True:
        try:
            return (yield from _apply_once(schema))
        except psycopg.errors.LockNotAvailable as error:
            yield from rows(SQL["roll_back_migration"]())
            holders = [
                f"pid {pid} (user {user}, application_name {application!r}, in a transaction for {seconds} s)"
                for pid, user, application, seconds in (yield from rows(SQL["get_lock_holders"](schema=schema)))
            ]
            log.warning(
                "migration of schema %r waits for a lock (%s); held by %s",
                schema,
                error.diag.message_primary,
                "; ".join(holders) or "no session any more, or a prepared transaction",
            )


def _apply_once(schema: str) -> Op[list[str]]:
    limit = SQL["set_lock_timeout"](lock_timeout=LOCK_TIMEOUT)
    yield from execute(SQL["begin_migration"](), limit, SQL["lock_migrations"](schema=schema))
    # Only under the lock is it certain what is missing: another process may have been faster.
    version = yield from _get_version(schema)
    if version == 0:
        # `create schema if not exists` requires the privilege even when there is nothing to create.
        if (yield from one(SQL["has_schema"](schema=schema))) != (True,):
            yield from rows(SQL["create_schema"]())
        yield from rows(SQL["create_schema_versions"]())
    pending = _migrations_after(version)
    for migration in pending:
        yield from script(Statement(f"migration_{migration.version:04}", migration.text))
        yield from rows(SQL["record_version"](**migration.row))
    yield from rows(SQL["commit_migration"]())
    return [migration.name for migration in pending]


def _migrations_after(version: int) -> list[Migration]:
    return [migration for migration in migrations() if migration.version > version]


def migration_script(schema: str, version: int) -> str:
    """Return the SQL that brings the schema from this version to the library's; a comment if nothing is pending."""
    pending = _migrations_after(version)
    if not pending:
        return f"-- Schema {schema!r} is at version {version}; nothing is pending.\n"
    return "\n\n".join(_script_parts(schema, version, pending)) + "\n"


def _script_parts(schema: str, version: int, pending: list[Migration]) -> Iterator[str]:
    yield f"-- horsies: schema {schema!r} from version {version} to {library_version()}. psql -v ON_ERROR_STOP=1 -f FILE"
    yield "begin isolation level read committed;"
    # The script is UTF-8, whatever the user of psql has set; and nothing in it may depend on that user's search_path.
    yield "set local client_encoding = 'UTF8';"
    yield f"{set_locally(PINNED)};"
    yield _with_literals(SQL["refuse_other_encoding"], schema)
    yield _with_literals(SQL["lock_migrations"], schema)
    yield _with_literals(SQL["refuse_other_version" if version else "refuse_installed_schema"], schema, version=version)
    if version == 0:
        yield _with_literals(SQL["create_schema_if_missing"], schema)
        yield render_script(SQL["create_schema_versions"].text, schema)
    for migration in pending:
        yield f"-- {migration.version:04}_{migration.name}"
        yield render_script(migration.text, schema).strip()
        yield _with_literals(SQL["record_version"], schema, **migration.row)
    if version == 0:
        yield _with_literals(SQL["create_partitions"], schema, ahead=DAYS_AHEAD)
    yield "commit;"


def _with_literals(statement: Statement, schema: str, **values: str | int) -> str:
    """Render a statement with literals in place of its parameters."""

    def to_literal(match: re.Match[str]) -> str:
        if not match[1]:
            return "%"
        value = {"schema": "{schema_text}", **values}[match[1]]
        return str(value) if isinstance(value, int) else f"'{value}'"

    # The schema last: its name may look like a parameter.
    return render_script(PLACEHOLDER.sub(to_literal, statement.text), schema)
