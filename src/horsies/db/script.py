"""The migrations as a script for psql, for those whose database is changed by somebody else's hands.

It is one transaction: the lock that `horsies migrate` takes too, a look whether the schema is still where it was, the migrations, and their
rows in `schema_versions`.
"""

import re
from collections.abc import Iterator

from horsies.db.days import DAYS_AHEAD
from horsies.db.load import load
from horsies.db.migrate import SQL as MIGRATE
from horsies.db.migrate import Migration, library_version, migrations
from horsies.db.op import render_script
from horsies.db.session import PINNED, set_locally

SQL = load(__file__)
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
    yield _filled(MIGRATE["lock_migrations"].text, schema)
    yield _filled(SQL["refuse_other_version" if version else "refuse_installed_schema"].text, schema, version=version)
    if version == 0:
        yield _filled(SQL["create_schema"].text, schema)
        yield render_script(MIGRATE["create_schema_versions"].text, schema)
    for migration in pending:
        yield f"-- {migration.version:04}_{migration.name}"
        yield render_script(migration.text, schema).strip()
        yield _filled(
            MIGRATE["record_version"].text,
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
