"""What `manage.py check` finds. With `--database` the schema is looked at, too."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from django.core.checks import CheckMessage, Error, Tags, Warning, register  # noqa: A004 - Django's name
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections

from horsies.contrib.django.application import the_app
from horsies.contrib.django.configuration import Configuration, postgres_config, read_configuration
from horsies.model.errors import HorsiesError

POOLER_PORT: Final = "6432"


@register("horsies")
def check_settings(**_options: Any) -> list[CheckMessage]:
    """Check `settings.HORSIES`, and the settings of its database."""
    try:
        configuration = read_configuration()
    except ImproperlyConfigured as error:
        return [Error(str(error), hint="Its options are in the documentation of horsies.", id="horsies.E001")]
    try:
        postgres_config(configuration.alias, configuration.database_options)
    except ImproperlyConfigured as error:
        return [Error(str(error), id="horsies.E002")]
    return list(_check_connections(configuration))


def _check_connections(configuration: Configuration) -> Iterator[CheckMessage]:
    alias, connection = configuration.alias, connections[configuration.alias]
    settings, where = connection.settings_dict, f"settings.DATABASES[{configuration.alias!r}]"
    driver = getattr(getattr(connection, "Database", None), "__name__", "another driver")
    if driver != "psycopg":
        yield Error(
            f"Django connects to {alias!r} with {driver}, so sends inside atomic() cannot be part of its transaction",
            hint="Use an ENGINE on psycopg 3, such as django.db.backends.postgresql, which prefers it.",
            id="horsies.E003",
        )
    if settings.get("CONN_MAX_AGE") != 0 and not settings.get("CONN_HEALTH_CHECKS"):
        yield Warning(
            f"{where} keeps connections (CONN_MAX_AGE) without checking them: after each restart of the database, the next task of each "
            "child fails once",
            hint="Set 'CONN_HEALTH_CHECKS': True beside it.",
            id="horsies.W004",
        )
    if str(settings.get("PORT")) == POOLER_PORT and "listen_url" not in configuration.database_options:
        yield Warning(
            f"{where} has the port {POOLER_PORT}, that of PgBouncer. Behind a pooler of transactions, workers cannot LISTEN, and poll",
            hint="Set HORSIES = {'listen_url': ...} to a direct connection to the same database. See docs/pooler.md.",
            id="horsies.W005",
        )


@register(Tags.database)
def check_schema(databases: Sequence[str] | None = None, **_options: Any) -> list[CheckMessage]:
    """Warn if the tables are missing or too old. Not an error, because `manage.py migrate` must be able to create those of the project."""
    try:
        app = the_app()
        if app.alias not in (databases or ()):
            return []
        state = app.broker.schema_state()
    except ImproperlyConfigured:
        return []  # reported above
    except HorsiesError as error:
        return [Warning(str(error), id="horsies.W006")]
    migrates = app.configuration.migrates
    # Checks do not know which command runs them, and `manage.py migrate` runs them before it creates the tables.
    is_migrating = sys.argv[1:2] == ["migrate"] and "--check" not in sys.argv
    if not state.pending or (migrates and is_migrating):
        return []
    found = f"is at version {state.version}, and this release needs {state.library_version}"
    message = f"the schema {state.schema!r} of horsies {found if state.version else 'does not exist'}"
    option = "" if app.alias == DEFAULT_DB_ALIAS else f" --database {app.alias}"
    hint = f"Run manage.py {f'migrate{option}' if migrates else 'horsies migrate'}."
    return [Warning(message, hint=hint, id="horsies.W007")]
