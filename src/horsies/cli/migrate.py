"""`horsies migrate`."""

import sys

import click

from horsies.cli.options import (
    database_option,
    json_option,
    optional_app_argument,
    report_errors,
    schema_option,
    target_of,
)
from horsies.cli.output import show_json
from horsies.db.migrate import SchemaState, library_version, migration_script
from horsies.locate import load_app
from horsies.model.config import DEFAULT_SCHEMA, PostgresConfig
from horsies.model.database_url import mask_passwords


@click.command()
@optional_app_argument
@click.option("--check", is_flag=True, help="Change nothing; exit 1 if migrations are pending, and name them.")
@click.option(
    "--sql", is_flag=True, help="Change nothing; print the SQL that would be run, as one transaction for psql."
)
@click.option(
    "--from", "from_version", type=click.IntRange(0), metavar="N",
    help="With --sql: from this version instead of a database's, which is not asked then; 0 is an empty one.",
)  # fmt: skip
@database_option
@schema_option
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
    """Bring the database's schema to this library's version.

    Safe to run again, and from many processes at once. Workers do it too when they start.

    \b
    horsies migrate shop:app                        do it
    horsies migrate shop:app --check                is anything pending?
    horsies migrate --sql --from 0 > horsies.sql    for somebody else to run
    """
    _refuse_contradictions(check=check, sql=sql, from_version=from_version, as_json=as_json)
    if from_version is not None:
        _print_script(_schema_of(app, schema), from_version)
        return
    broker = target_of(app, database_url, schema).broker
    if sql:
        standing = broker.schema_state()
        _print_script(standing.schema, standing.version)
    elif check:
        _tell_standing(broker.schema_state(), as_json=as_json)
    else:
        applied = broker.migrate()
        _tell_applied(broker.schema_state(), applied, mask_passwords(broker.config.database_url), as_json=as_json)


def _refuse_contradictions(*, check: bool, sql: bool, from_version: int | None, as_json: bool) -> None:
    if check and sql:
        raise click.UsageError("--check says whether something is pending and --sql prints it; give one of them")
    if sql and as_json:
        raise click.UsageError("--sql prints SQL; leave --json out")
    if from_version is None:
        return
    if not sql:
        raise click.UsageError("--from goes with --sql")
    if from_version > library_version():
        raise click.UsageError(f"--from {from_version} is above this library's version, {library_version()}")


def _schema_of(app: str | None, schema: str | None) -> str:
    """Without asking a database."""
    if schema is not None or app is None:
        return PostgresConfig(database_url="postgresql://", schema=schema or DEFAULT_SCHEMA).schema
    broker = load_app(app).config.broker
    return broker.schema if broker else DEFAULT_SCHEMA


def _print_script(schema: str, version: int) -> None:
    click.echo(migration_script(schema, version), nl=False)


def _tell_standing(standing: SchemaState, *, as_json: bool) -> None:
    if as_json:
        show_json(standing)
    elif standing.pending:
        click.echo(
            f"schema {standing.schema!r} is at version {standing.version} of {standing.library_version}; pending:"
        )
        for name in standing.pending:
            click.echo(f"  {name}")
    else:
        click.echo(f"schema {standing.schema!r} is up to date at version {standing.version}")
    sys.exit(1 if standing.pending else 0)


def _tell_applied(standing: SchemaState, applied: list[str], where: str, *, as_json: bool) -> None:
    if as_json:
        show_json({"schema": standing.schema, "version": standing.version, "applied": applied})
        return
    for name in applied:
        click.echo(f"applied {name}")
    click.echo(f"schema {standing.schema!r} is up to date at {where}")
