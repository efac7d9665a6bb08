"""`horsies scheduler`."""

import logging
import sys

import click

from horsies.child.main import LOG_FORMAT
from horsies.cli.mistakes import told_plainly
from horsies.cli.options import LOG_LEVELS, app_argument
from horsies.locate import load_app
from horsies.worker.run_scheduler import run_scheduler


@click.command()
@app_argument
@click.option("--loglevel", type=LOG_LEVELS, default="INFO", show_default=True, help="What is logged to stderr.")
@told_plainly
def scheduler(app: str, loglevel: str) -> None:
    """Enqueue the tasks of the app's schedules when they are due, until told to stop.

    Stores what the app declares in AppConfig(schedule=ScheduleConfig(...)), then sleeps from slot to slot. Run as many as you like: each slot is
    enqueued exactly once, and when one dies, the others go on. It runs no tasks; that is for `horsies worker`, which can do both with --scheduler.

    \b
    Example:
      horsies scheduler shop.tasks:app

    SIGTERM or Ctrl-C ends it. Exit codes: 0 stopped when asked, 1 could not start or go on, 2 wrong usage, 4 the database stayed away for longer than
    db_retry_max_attempts allows.
    """
    logging.basicConfig(level=loglevel, format=LOG_FORMAT)
    sys.exit(run_scheduler(load_app(app)))
