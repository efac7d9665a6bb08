"""`horsies worker` and `horsies scheduler`."""

import math
import os
import sys
from typing import Any

import click

from horsies.cli.dev import run_with_reload
from horsies.cli.dev_process import child_command
from horsies.cli.options import app_command, given_options, logging_options, metrics_options, report_errors
from horsies.locate import load_app
from horsies.logs import configure_logging
from horsies.model.worker_config import DEFAULT_TASKS_PER_CHILD, START_METHODS, WorkerConfig
from horsies.worker.run import run_worker, start_method_for
from horsies.worker.scheduler import run_scheduler
from horsies.worker.spawn import close_early_fork_server, fork_server_early


def _check_finite(_context: click.Context, _parameter: click.Parameter, number: float | None) -> float | None:
    if number is not None and not math.isfinite(number):  # click's ranges accept nan
        raise click.BadParameter(f"{number} is not a finite number.")
    return number


def _check_size(_context: click.Context, _parameter: click.Parameter, limit_mb: float | None) -> float | None:
    if limit_mb is not None and not 0 < limit_mb < math.inf:
        raise click.BadParameter(f"{limit_mb:g} is not a size; give a positive number of megabytes, or leave it out.")
    return limit_mb


_no_migrate_option = click.option(
    "--no-migrate", is_flag=True, envvar="HORSIES_NO_MIGRATE", show_envvar=True,
    help="Do not migrate the database's schema; exit 1 if it is not current.",
)  # fmt: skip


@click.command()
@app_command
@click.option(
    "--processes", type=click.IntRange(1, 1000), default=os.cpu_count, show_default="the number of CPUs",
    help="Number of child processes that run tasks.",
)  # fmt: skip
@click.option(
    "--concurrency", type=click.IntRange(1, 100_000), default=1, show_default=True,
    help="Number of tasks that each child runs at once: async tasks on its event loop, others in threads.",
)  # fmt: skip
@click.option("--queues", metavar="A,B", help="Serve only these queues.  [default: all of the app]")
@click.option(
    "--max-tasks-per-child", type=int, default=DEFAULT_TASKS_PER_CHILD, show_default=True,
    help="Replace a child after this number of tasks; 0: never.",
)  # fmt: skip
@click.option(
    "--max-memory-per-child-mb", type=float, callback=_check_size, metavar="MB",
    help="Replace a child whose resident memory reaches this, after its task.  [default: no limit]",
)  # fmt: skip
@click.option(
    "--start-method", type=click.Choice(START_METHODS),
    help="How children are started: as new interpreters; or forked from a process that has loaded horsies, or the app.  "
    "[default: forkserver if children are recycled, fork if not; spawn where there are no fork servers]",
)  # fmt: skip
@click.option(
    "--max-claim-batch", type=click.IntRange(0), default=0, show_default=True,
    help="Claim at most this number of tasks from one queue at a time; 0: no limit.",
)  # fmt: skip
@click.option(
    "--max-claim-per-worker", type=click.IntRange(0), default=0, show_default=True,
    help="Hold at most this number of tasks; 0: no limit except the number of slots.",
)  # fmt: skip
@click.option(
    "--shutdown-timeout", type=click.FloatRange(0, 86_400), envvar="HORSIES_SHUTDOWN_TIMEOUT", show_envvar=True,
    callback=_check_finite, metavar="SECONDS",
    help="After a stop request, interrupt tasks that still run after this time.  [default: wait without a limit]",
)  # fmt: skip
@metrics_options
@click.option("--scheduler", is_flag=True, help="Also serve the app's schedules, like `horsies scheduler`.")
@_no_migrate_option
@logging_options
@click.option("--reload", is_flag=True, help="For development: restart when a .py file of the app changes.")
@click.pass_context
@report_errors
def worker(
    context: click.Context,
    /,
    app: str,
    *,
    queues: str | None,
    shutdown_timeout: float | None,
    no_migrate: bool,
    reload: bool,
    **options: Any,
) -> None:
    """Run the tasks of an app until stopped.

    SIGTERM or Ctrl-C stops the worker: it claims no more tasks, waits for running tasks, and exits 0. A second signal interrupts
    running tasks, a third one kills them.

    Exit codes: 0 stopped as requested, 1 could not start or continue, 2 wrong usage, 3 stopped as requested, but running tasks had to be
    interrupted, 4 the database failed more often in a row than db_retry_max_attempts allows, or it was unavailable at the end of a shutdown
    and results could not be saved.

    \b
    horsies worker shop.tasks:app --processes 4 --queues mail,media
    """
    if options["max_tasks_per_child"] == 1 or options["max_tasks_per_child"] < 0:
        raise click.UsageError("--max-tasks-per-child takes 2 or more, or 0 to never replace a child")
    config = WorkerConfig(
        app_locator=app,
        queues=[name.strip() for name in queues.split(",")] if queues else None,
        migrate=not no_migrate,
        shutdown_timeout_ms=None if shutdown_timeout is None else round(shutdown_timeout * 1000),
        **options,
    )
    is_loaded = app.rpartition(":")[0] in sys.modules  # by `manage.py` of Django
    if not (reload or is_loaded) and start_method_for(config) != "spawn":
        fork_server_early()  # before logging is configured and the app is loaded: it is to know nothing of them
    configure_logging(options["loglevel"], options["log_format"])
    if reload:
        command = child_command("run", "worker", app, *given_options(context, without=("reload", "app_option")))
        run_with_reload(app, lambda _survey: {"worker": command})
        return
    try:
        code = run_worker(load_app(app), config)
    finally:
        close_early_fork_server()
    sys.exit(code)


@click.command()
@app_command
@metrics_options
@_no_migrate_option
@logging_options
@report_errors
def scheduler(
    app: str, *, metrics_port: int | None, metrics_host: str, no_migrate: bool, loglevel: str, log_format: str
) -> None:
    """Enqueue the tasks of the app's schedules when they are due, until stopped.

    Stores what the app declares in AppConfig(schedule=ScheduleConfig(...)), then sleeps from slot to slot. Several schedulers may run at once:
    each slot is enqueued exactly once, and if one dies, the others continue. A scheduler runs no tasks; `horsies worker` does, or both with
    --scheduler.

    \b
    horsies scheduler shop.tasks:app --metrics-port 9090

    SIGTERM or Ctrl-C stops it. Exit codes: 0 stopped as requested, 1 could not start or continue, 2 wrong usage, 4 the database failed more often
    in a row than db_retry_max_attempts allows.
    """
    configure_logging(loglevel, log_format)
    sys.exit(run_scheduler(load_app(app), migrate=not no_migrate, metrics_port=metrics_port, metrics_host=metrics_host))
