"""`horsies migrate`."""

import click

from horsies.cli.mistakes import told_plainly
from horsies.cli.options import database_option, optional_app_argument, schema_option, target_of
from horsies.model.database_url import mask_passwords


@click.command()
@optional_app_argument
@database_option
@schema_option
@told_plainly
def migrate(app: str | None, database_url: str | None, schema: str | None) -> None:
    """Bring the database's schema to this library's version.

    Safe to run again, and from many processes at once. Workers do it too when they start.
    """
    target = target_of(app, database_url, schema)
    applied = target.broker.migrate()
    for name in applied:
        click.echo(f"applied {name}")
    where = mask_passwords(target.broker.config.database_url)
    click.echo(f"schema {target.broker.config.schema!r} is up to date at {where}")
