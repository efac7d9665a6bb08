"""`horsies check`."""

import sys
from dataclasses import asdict

import click

from horsies.app import Horsies
from horsies.cli.doctor import plain, print_report, run_checks
from horsies.cli.options import app_argument, json_option, report_errors
from horsies.cli.output import show_json, show_table
from horsies.doctor.findings import Severity, context_for
from horsies.doctor.inventory import take_inventory
from horsies.doctor.run import LIVE, Report
from horsies.locate import find_app
from horsies.model.app_check import Inventory, KnownTask
from horsies.model.database_url import masked
from horsies.model.validation import format_duration


@click.command()
@app_argument
@click.option("--live", is_flag=True, help="Look at the database, and at the workers that run, too.")
@json_option
@report_errors
def check(app: str, *, live: bool, as_json: bool) -> None:
    """Load the APP and say what is in it, and all that is wrong with it.

    Needs no database: the configuration, the task modules and the tasks, queues, workflows, schedules and hooks. With --live also: can the database
    be reached, is the schema there, may this user do what it must, are notifications heard, do the workers serve the app's queues.

    Exit codes: 0 good, 1 something is wrong, 2 wrong usage.

    \b
    horsies check shop:app
    horsies check shop:app --live --json
    """
    found = find_app(app)
    inventory = take_inventory(found, app)
    report = run_checks(found, context_for(found, knows_app=True), LIVE) if live else None
    if as_json:
        show_json({"app": app, **asdict(inventory), "live": None if report is None else plain(report)})
    else:
        _tell(found, inventory, report)
    sys.exit(1 if inventory.problems or (report and report.severity is Severity.ERROR) else 0)


def _tell(app: Horsies, inventory: Inventory, report: Report | None) -> None:
    where = "the embedded PostgreSQL" if app.is_embedded else masked(app.broker.config.database_url)
    click.echo(f"database: {where}")
    if inventory.modules:
        click.echo(f"modules:  {', '.join(inventory.modules)}")
    for name, hooks in (("start", inventory.child_start_hooks), ("stop", inventory.child_stop_hooks)):
        if hooks:
            click.echo(f"on child {name}: {', '.join(hooks)}")
    click.echo()
    _tell_tables(inventory)
    if report is not None:
        click.echo()
        print_report(report)
    for problem in inventory.problems:
        click.echo(f"{click.style('problem', fg='red')}: {problem}", err=True)


def _tell_tables(inventory: Inventory) -> None:
    show_table(
        ["QUEUE", "PRIORITY", "MAX CONCURRENCY", "TASKS"],
        [(queue.name, queue.priority, queue.max_concurrency, queue.tasks) for queue in inventory.queues],
        empty="no queues",
    )
    click.echo()
    show_table(
        ["TASK", "QUEUE", "RETRIES", "RETRIED FOR", "TIMEOUT", "FUNCTION"],
        [_row(task) for task in inventory.tasks],
        empty="no tasks; if they are in other modules, name these in app.discover_tasks([...])",
    )
    if inventory.workflows:
        click.echo()
        show_table(
            ["WORKFLOW", "NODES", "CLASS"],
            [(workflow.name, workflow.nodes, workflow.definition) for workflow in inventory.workflows],
            empty="no workflows",
        )
    if inventory.schedules:
        click.echo()
        show_table(
            ["SCHEDULE", "TASK", "PATTERN", "TIMEZONE", "ENABLED"],
            [
                (schedule.name, schedule.task, schedule.pattern, schedule.timezone, schedule.enabled)
                for schedule in inventory.schedules
            ],
            empty="no schedules",
        )


def _row(task: KnownTask) -> tuple[object, ...]:
    timeout = None if task.timeout_ms is None else format_duration(task.timeout_ms / 1000)
    return task.name, task.queue, task.retries, task.retry_for, timeout, task.function
