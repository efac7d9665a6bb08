"""`horsies migrate`."""

import sys

import click

from horsies.cli.options import json_option, open_target, report_errors, target_command
from horsies.cli.output import show_json
from horsies.db.migrate import SchemaState, library_version, migration_script
from horsies.locate import load_app
from horsies.model.config import DEFAULT_SCHEMA, PostgresConfig
from horsies.model.database_url import mask_passwords


@click.command()
@target_command
@click.option("--check", is_flag=True, help="Change nothing; list pending migrations, and exit 1 if there are any.")
@click.option(
    "--sql", is_flag=True, help="Change nothing; print the SQL that would be run, as one transaction for psql."
)
@click.option(
    "--from", "from_version", type=click.IntRange(0), metavar="N",
    help="With --sql: start at this version without connecting to a database; 0 is an empty one.",
)  # fmt: skip
@json_option
@report_errors
def migrate(
    app: str | None,
    database_url: str | None,
    schema: str | None,
    *,
    check: bool,
    sql: bool,
    from_version: int | None,
    as_json: bool,
) -> None:
    """Migrate the database's schema to this library's version.

    Safe to run again, and from many processes at once. Workers migrate too when they start.

    \b
    horsies migrate shop:app                        migrate
    horsies migrate shop:app --check                is anything pending?
    horsies migrate --sql --from 0 > horsies.sql    a script for another user
    """
    _check_usage(check=check, sql=sql, from_version=from_version, as_json=as_json)
    if from_version is not None:
        click.echo(migration_script(_schema_name(app, schema), from_version), nl=False)
        return
    broker = open_target(app, database_url, schema).broker
    if sql:
        state = broker.schema_state()
        click.echo(migration_script(state.schema, state.version), nl=False)
    elif check:
        _report_pending(broker.schema_state(), as_json=as_json)
    else:
        applied, state = broker.migrate(), broker.schema_state()
        if as_json:
            show_json({"schema": state.schema, "version": state.version, "applied": applied})
            return
        for name in applied:
            click.echo(f"applied {name}")
        click.echo(f"schema {state.schema!r} is up to date at {mask_passwords(broker.config.database_url)}")


def _check_usage(*, check: bool, sql: bool, from_version: int | None, as_json: bool) -> None:
    if check and sql:
        raise click.UsageError("--check lists pending migrations and --sql prints their SQL; give one of them")
    if sql and as_json:
        raise click.UsageError("--sql prints SQL; leave --json out")
    if from_version is None:
        return
    if not sql:
        raise click.UsageError("--from requires --sql")
    if from_version > library_version():
        raise click.UsageError(f"--from {from_version} is above this library's version, {library_version()}")


def _schema_name(app: str | None, schema: str | None) -> str:
    """Return the name of the schema without connecting to a database."""
    if schema is not None or app is None:
        return PostgresConfig(database_url="postgresql://", schema=schema or DEFAULT_SCHEMA).schema
    broker = load_app(app).config.broker
    return broker.schema if broker else DEFAULT_SCHEMA


def _report_pending(state: SchemaState, *, as_json: bool) -> None:
    if as_json:
        show_json(state)
    elif state.pending:
        click.echo(f"schema {state.schema!r} is at version {state.version} of {state.library_version}; pending:")
        for name in state.pending:
            click.echo(f"  {name}")
    else:
        click.echo(f"schema {state.schema!r} is up to date at version {state.version}")
    sys.exit(1 if state.pending else 0)
