"""`horsies worker`."""

import math
import os
import sys
from typing import Any

import click

from horsies.cli.dev import part_command, run_parts
from horsies.cli.options import (
    app_argument,
    log_format_option,
    loglevel_option,
    metrics_host_option,
    metrics_port_option,
    report_errors,
    words_again,
)
from horsies.locate import load_app
from horsies.logs import configure_logging
from horsies.model.worker_config import DEFAULT_TASKS_PER_CHILD, WorkerConfig
from horsies.worker.run import run_worker
from horsies.worker.scheduler import run_scheduler


def _finite(_context: click.Context, _parameter: click.Parameter, number: float | None) -> float | None:
    if number is not None and not math.isfinite(number):  # nan is in every range
        raise click.BadParameter(f"{number} is not a finite number.")
    return number


def _size(_context: click.Context, _parameter: click.Parameter, limit_mb: float | None) -> float | None:
    if limit_mb is not None and not 0 < limit_mb < math.inf:
        raise click.BadParameter(f"{limit_mb:g} is not a size; give a positive number of megabytes, or leave it out.")
    return limit_mb


@click.command()
@app_argument
@click.option(
    "--processes",
    type=click.IntRange(1, 1000),
    default=os.cpu_count,
    show_default="the number of CPUs",
    help="How many child processes run tasks.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 100_000),
    default=1,
    show_default=True,
    help="How many tasks each child runs at once: async ones on its event loop, others in threads.",
)
@click.option("--queues", metavar="A,B", help="Serve only these queues.  [default: all of the app]")
@click.option(
    "--max-tasks-per-child",
    type=int,
    default=DEFAULT_TASKS_PER_CHILD,
    show_default=True,
    help="Replace a child after so many tasks; 0 never does, and lets children be forked.",
)
@click.option(
    "--max-memory-per-child-mb",
    type=float,
    callback=_size,
    metavar="MB",
    help="Replace a child whose resident memory reaches this, after its task.  [default: no limit]",
)
@click.option(
    "--max-claim-batch",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Claim at most so many from one queue at a time; 0 sets no limit.",
)
@click.option(
    "--max-claim-per-worker",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Hold at most so many tasks; 0 sets no limit beside the number of slots.",
)
@click.option(
    "--shutdown-timeout",
    type=click.FloatRange(0, 86_400),
    envvar="HORSIES_SHUTDOWN_TIMEOUT",
    show_envvar=True,
    callback=_finite,
    metavar="SECONDS",
    help="When asked to stop, interrupt what still runs after so long.  [default: wait for ever]",
)
@metrics_port_option
@metrics_host_option
@click.option("--scheduler", is_flag=True, help="Serve the app's schedules as well, as `horsies scheduler` does.")
@loglevel_option
@log_format_option
@click.option("--reload", is_flag=True, help="For development: start anew when a .py file of the app changes.")
@click.pass_context
@report_errors
def worker(
    context: click.Context,
    /,
    app: str,
    *,
    queues: str | None,
    shutdown_timeout: float | None,
    reload: bool,
    **options: Any,
) -> None:
    """Run the tasks of an app until told to stop.

    SIGTERM or Ctrl-C asks the worker to stop: it claims no more, lets what is running end, and exits 0. A second one interrupts
    what still runs, a third kills it.

    Exit codes: 0 stopped as requested, 1 could not start or continue, 2 wrong usage, 3 stopped as requested, but running tasks had to be interrupted, 4 the
    database failed more often in a row than db_retry_max_attempts allows, or results could not be saved at the end of a shutdown.

    \b
    horsies worker shop.tasks:app --processes 4 --queues mail,media
    """
    configure_logging(options["loglevel"], options["log_format"])
    if options["max_tasks_per_child"] == 1 or options["max_tasks_per_child"] < 0:
        raise click.UsageError("--max-tasks-per-child takes 2 or more, or 0 to keep children for ever")
    config = WorkerConfig(
        app_locator=app,
        queues=[name.strip() for name in queues.split(",")] if queues else None,
        shutdown_timeout_ms=None if shutdown_timeout is None else round(shutdown_timeout * 1000),
        **options,
    )
    if reload:
        run_parts(app, lambda _found: {"worker": part_command("worker", app, *words_again(context, without="reload"))})
    else:
        sys.exit(run_worker(load_app(app), config))


# --------
# `horsies scheduler`.


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

    SIGTERM or Ctrl-C ends it. Exit codes: 0 stopped as requested, 1 could not start or continue, 2 wrong usage, 4 the database failed more often in a row
    than db_retry_max_attempts allows.
    """
    configure_logging(loglevel, log_format)
    sys.exit(run_scheduler(load_app(app), metrics_port=metrics_port, metrics_host=metrics_host))
