"""`horsies`: the command line."""

import logging
import os
import sys

import click

from horsies.app import Horsies
from horsies.cli.mistakes import told_plainly
from horsies.locate import load_app
from horsies.model.config import AppConfig
from horsies.model.database_url import mask_passwords
from horsies.worker.run import WorkerOptions, run_worker

LOG_FORMAT = "%(asctime)s %(levelname)s [%(process)d] %(name)s: %(message)s"
LOG_LEVELS = click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False)

app_argument = click.argument("app", envvar="HORSIES_APP", metavar="APP")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="horsies")
def main() -> None:
    """A task queue and workflow engine on PostgreSQL.

    APP is package.module:attribute or path/file.py:attribute; $HORSIES_APP is used when it is left out. Exit codes: 0 good, 1
    failed, 2 wrong usage.
    """


@main.command()
@app_argument
@click.option(
    "--processes",
    type=click.IntRange(1, 1000),
    default=os.cpu_count,
    show_default="the number of CPUs",
    help="How many child processes run tasks, one task at a time each.",
)
@click.option("--loglevel", type=LOG_LEVELS, default="INFO", show_default=True, help="What is logged to stderr.")
@told_plainly
def worker(app: str, processes: int, loglevel: str) -> None:
    """Run tasks until told to stop.

    SIGTERM or Ctrl-C asks the worker to stop: it claims no more, lets what is running end, and exits 0. A second one kills what is
    still running.
    """
    logging.basicConfig(level=loglevel, format=LOG_FORMAT)
    run_worker(load_app(app), WorkerOptions(app=app, processes=processes, loglevel=loglevel))


@main.command()
@click.argument("app", envvar="HORSIES_APP", metavar="[APP]", required=False)
@click.option("--database-url", help="The database to migrate, instead of an app's.")
@told_plainly
def migrate(app: str | None, database_url: str | None) -> None:
    """Bring the database's schema to this library's version.

    Safe to run again, and from many processes at once. Workers do it too when they start.
    """
    if database_url:
        target = Horsies(AppConfig.for_database_url(database_url))
    elif app:
        target = load_app(app)
    elif os.environ.get("HORSIES_DATABASE_URL"):
        target = Horsies()
    else:
        raise click.UsageError("name an APP, give --database-url, or set $HORSIES_DATABASE_URL")
    applied = target.broker.migrate()
    for name in applied:
        click.echo(f"applied {name}")
    where = mask_passwords(target.broker.config.database_url)
    click.echo(f"schema {target.broker.config.schema!r} is up to date at {where}")


if __name__ == "__main__":
    sys.exit(main())
