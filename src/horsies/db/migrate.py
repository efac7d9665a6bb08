"""Numbered migrations, applied under a lock, with a recorded version.

A migration's first line may read `-- compatible_since: N`: the oldest schema version whose library still runs on the
schema it makes (migrations expand first and contract one release later). Without it, only this one does. At the current version
nothing is written and no privilege beyond reading is needed.
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
from horsies.db.pooler import PINNED, set_locally
from horsies.db.statement import Op, Rows, Statement, execute, load, one, render_script, rows, script
from horsies.model.config import PostgresConfig
from horsies.model.errors import SchemaError

LOCK_TIMEOUT = "5s"

SQL = load(__file__)
log = logging.getLogger("horsies.db")


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    compatible_since: int
    text: str


@cache
def migrations() -> Sequence[Migration]:
    """All migrations of this library, oldest first."""
    found = sorted((Path(__file__).parent / "migrations").glob("[0-9][0-9][0-9][0-9]_*.sql"))
    return tuple(_read(path) for path in found)


def _read(path: Path) -> Migration:
    number, name = path.stem.split("_", 1)
    text = path.read_text(encoding="utf-8")
    compatible = re.match(r"-- compatible_since: (\d+)\n", text)
    version = int(number)
    return Migration(version, name, int(compatible[1]) if compatible else version, text)


def library_version() -> int:
    return migrations()[-1].version


def migrate(schema: str) -> Op[list[str]]:
    """Bring the schema to this library's version; the names of the migrations applied. Safe from many processes at once."""
    try:
        version = yield from installed_version(schema)
        applied = (yield from apply_pending(schema)) if version < library_version() else []
        yield from prepare_partitions(schema)
    except psycopg.errors.InsufficientPrivilege as error:
        raise SchemaError(
            f"this database user may not do what horsies needs in schema {schema!r} ({error.diag.message_primary}). "
            f"Run `horsies migrate` once as a user who may create schemas, then grant this one USAGE on the schema and "
            f"SELECT, INSERT, UPDATE, DELETE on its tables."
        ) from error
    return applied


def installed_version(schema: str) -> Op[int]:
    """The schema's version, 0 when nothing is installed. Refuses a schema this library is too old for."""
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


@dataclass(frozen=True, slots=True)
class SchemaState:
    """Where a schema is; 0 is one that is not there. `pending` are the migrations that it lacks, oldest first."""

    schema: str
    version: int
    library_version: int
    pending: Sequence[str]


def get_schema_state(schema: str) -> Op[SchemaState]:
    """Only looks."""
    version = yield from installed_version(schema)
    return SchemaState(schema, version, library_version(), [migration.name for migration in _after(version)])


def require_schema(schema: str) -> Op[None]:
    """Refuse a database whose schema is not there, or older than this library; nothing is changed."""
    version = yield from installed_version(schema)
    if version == 0:
        raise SchemaError(f"this database has no horsies in schema {schema!r}; run `horsies migrate` first")
    if version < library_version():
        raise SchemaError(
            f"schema {schema!r} is at version {version}, and this library needs {library_version()}; run `horsies migrate` first"
        )


def apply_pending(schema: str) -> Op[list[str]]:
    """Waits for as long as somebody is in the way, but never silently, and for each lock only a while: whoever comes after us waits behind us."""
    while True:
        try:
            return (yield from _apply_once(schema))
        except psycopg.errors.LockNotAvailable as error:
            yield from rows(SQL["roll_back_migration"]())
            holders = yield from rows(SQL["get_lock_holders"](schema=schema))
            log.warning(
                "the migration of schema %r waits for a lock (%s); held by %s",
                schema,
                error.diag.message_primary,
                _described(holders),
            )


def _described(holders: Rows) -> str:
    words = [
        f"pid {pid} (user {user}, application_name {application!r}, in a transaction for {seconds} s)"
        for pid, user, application, seconds in holders
    ]
    return "; ".join(words) or "nobody any more, or a prepared transaction"


def _apply_once(schema: str) -> Op[list[str]]:
    limit = SQL["set_lock_timeout"](lock_timeout=LOCK_TIMEOUT)
    yield from execute(SQL["begin_migration"](), limit, SQL["lock_migrations"](schema=schema))
    # Only now is it certain what is missing: another process may have been faster.
    version = yield from installed_version(schema)
    if version == 0:
        yield from _create(schema)
    pending = _after(version)
    for migration in pending:
        yield from script(Statement(f"migration_{migration.version:04}", migration.text))
        yield from rows(
            SQL["record_version"](
                version=migration.version, name=migration.name, compatible_since=migration.compatible_since
            )
        )
    yield from rows(SQL["commit_migration"]())
    return [migration.name for migration in pending]


def _after(version: int) -> list[Migration]:
    return [migration for migration in migrations() if migration.version > version]


def _create(schema: str) -> Op[None]:
    # `create schema if not exists` asks for a privilege even when there is nothing to create.
    if (yield from one(SQL["has_schema"](schema=schema))) != (True,):
        yield from rows(SQL["create_schema"]())
    yield from rows(SQL["create_schema_versions"]())


# --------
# The ground that a broker stands on: the schema in its database, made and looked at on a connection of its own, before there are pools.

T = TypeVar("T")


def prepare_schema(config: PostgresConfig) -> list[str]:
    """Bring the schema to this library's version. Returns the migrations applied, oldest first."""
    if config.listen_url:
        _refuse_other_database(config)
    return _run_apart(config, migrate(config.schema), config.listen_conninfo)


def require_current_schema(config: PostgresConfig) -> None:
    """Refuse a database without our schema, or with an older one; at once when it cannot be reached."""
    _run_apart(config, require_schema(config.schema), config.conninfo)


def read_schema_state(config: PostgresConfig) -> SchemaState:
    """At which version the schema is, and what it lacks; nothing is changed. Says at once why the database cannot be reached."""
    return _run_apart(config, get_schema_state(config.schema), config.conninfo)


def _refuse_other_database(config: PostgresConfig) -> None:
    """Before tables are made where nobody looks for them. Seen twice: the server may have been restarted in between."""
    for _ in range(2):
        here = _run_apart(config, one(SQL["identify_database"]()), config.conninfo)
        there = _run_apart(config, one(SQL["identify_database"]()), config.listen_conninfo)
        if here == there:
            return
    raise SchemaError(
        "listen_url and database_url lead to different databases, or to different servers; "
        "set listen_url to a direct connection to the very database that database_url leads to through the pooler"
    )


def _run_apart(config: PostgresConfig, op: Op[T], conninfo: str) -> T:
    link = DedicatedConnection(config, "migrations", url=conninfo)
    try:
        return link.run(op)
    except psycopg.Error as error:
        server = "PostgreSQL" if conninfo == config.conninfo else "PostgreSQL at listen_url"
        raise broker_error(error, server) from error
    finally:
        link.close()


# --------
# The migrations as a script for psql, for those whose database is changed by somebody else's hands.
#
# It is one transaction: the lock that `horsies migrate` takes too, a look whether the schema is still where it was, the migrations, and their
# rows in `schema_versions`.

_PLACEHOLDER = re.compile(r"%\((\w+)\)s|%%")


def migration_script(schema: str, version: int) -> str:
    """What brings the schema from this version to the library's; a comment if that is nothing."""
    pending = [migration for migration in migrations() if migration.version > version]
    if not pending:
        return f"-- Schema {schema!r} is at version {version}; nothing is pending.\n"
    return "\n\n".join(_parts(schema, version, pending)) + "\n"


def _parts(schema: str, version: int, pending: list[Migration]) -> Iterator[str]:
    yield f"-- horsies: schema {schema!r} from version {version} to {library_version()}. psql -v ON_ERROR_STOP=1 -f FILE"
    yield "begin isolation level read committed;"
    # The script is UTF-8, whatever whoever runs it has set; and nothing in it may depend on their search_path.
    yield "set local client_encoding = 'UTF8';"
    yield f"{set_locally(PINNED)};"
    yield _filled(SQL["refuse_other_encoding"].text, schema)
    yield _filled(SQL["lock_migrations"].text, schema)
    yield _filled(SQL["refuse_other_version" if version else "refuse_installed_schema"].text, schema, version=version)
    if version == 0:
        yield _filled(SQL["create_schema_if_missing"].text, schema)
        yield render_script(SQL["create_schema_versions"].text, schema)
    for migration in pending:
        yield f"-- {migration.version:04}_{migration.name}"
        yield render_script(migration.text, schema).strip()
        yield _filled(
            SQL["record_version"].text,
            schema,
            version=migration.version,
            name=migration.name,
            compatible_since=migration.compatible_since,
        )
    if version == 0:
        yield _filled(SQL["create_partitions"].text, schema, ahead=DAYS_AHEAD)
    yield "commit;"


def _filled(text: str, schema: str, **values: str | int) -> str:
    """With the values where the parameters are."""

    def literal(found: re.Match[str]) -> str:
        if not found[1]:
            return "%"
        value = {"schema": "{schema_text}", **values}[found[1]]
        return str(value) if isinstance(value, int) else f"'{value}'"

    return render_script(_PLACEHOLDER.sub(literal, text), schema)  # the schema last: its name may look like a parameter
