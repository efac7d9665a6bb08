"""`horsies scheduler`."""

import sys

import click

from horsies.cli.options import (
    app_argument,
    log_format_option,
    loglevel_option,
    metrics_host_option,
    metrics_port_option,
    report_errors,
)
from horsies.locate import load_app
from horsies.logs import configure_logging
from horsies.worker.scheduler import run_scheduler


@click.command()
@app_argument
@metrics_port_option
@metrics_host_option
@loglevel_option
@log_format_option
@report_errors
def scheduler(app: str, *, metrics_port: int | None, metrics_host: str, loglevel: str, log_format: str) -> None:
    """Enqueue the tasks of the app's schedules when they are due, until told to stop.

    Stores what the app declares in AppConfig(schedule=ScheduleConfig(...)), then sleeps from slot to slot. Run as many as you like: each slot is
    enqueued exactly once, and when one dies, the others go on. It runs no tasks; that is for `horsies worker`, which can do both with --scheduler.

    \b
    Example:
      horsies scheduler shop.tasks:app --metrics-port 9090

    SIGTERM or Ctrl-C ends it. Exit codes: 0 stopped when asked, 1 could not start or go on, 2 wrong usage, 4 the database stayed away for longer than
    db_retry_max_attempts allows.
    """
    configure_logging(loglevel, log_format)
    sys.exit(run_scheduler(load_app(app), metrics_port=metrics_port, metrics_host=metrics_host))
