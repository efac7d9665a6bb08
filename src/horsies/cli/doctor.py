"""`horsies doctor`."""

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any, Final

import click

from horsies.app import Horsies
from horsies.cli.options import (
    app_argument,
    database_option,
    json_option,
    optional_app_argument,
    parse_seconds,
    report_errors,
    schema_option,
    target_of,
)
from horsies.cli.output import show_json, show_table
from horsies.doctor.findings import CheckContext, Finding, Severity, context_for
from horsies.doctor.inventory import take_inventory
from horsies.doctor.run import ALL, LIVE, Check, CheckResult, Probe, Report, run_doctor
from horsies.locate import find_app
from horsies.model.app_check import Inventory, KnownTask
from horsies.model.database_url import masked
from horsies.model.validation import format_duration

CLEARED: Final = "\r\x1b[K"
COLOURS: Final = {Severity.OK: "green", Severity.INFO: "cyan", Severity.WARNING: "yellow", Severity.ERROR: "red"}


@click.command()
@optional_app_argument
@click.option(
    "--max-wait", type=parse_seconds, default="10m", show_default=True, metavar="TIME", help="How long a task may wait."
)
@click.option(
    "--max-transaction", type=parse_seconds, default="10m", show_default=True, metavar="TIME",
    help="How long a transaction may be open.",
)  # fmt: skip
@click.option(
    "--timeout",
    type=parse_seconds,
    default="5s",
    show_default=True,
    metavar="TIME",
    help="How long each check may take.",
)
@click.option("--strict", is_flag=True, help="Exit 1 for warnings, too.")
@database_option
@schema_option
@json_option
@report_errors
def doctor(
    app: str | None,
    database_url: str | None,
    schema: str | None,
    *,
    max_wait: float,
    max_transaction: float,
    timeout: float,
    strict: bool,
    as_json: bool,
) -> None:
    """Look for what goes wrong in production: each finding with its cure.

    Only reads. Give the APP, and its queues, caps and recovery settings are compared with what the workers do. The page docs/doctor.md
    explains every finding.

    Exit codes: 0 nothing worse than a warning, 1 errors (with --strict, warnings too), 2 wrong usage.

    \b
    horsies doctor shop:app
    horsies doctor --database-url postgresql://… --json --strict
    """
    target = target_of(app, database_url, schema)
    case = replace(
        context_for(target, knows_app=bool(app) and not database_url),
        max_wait_s=max_wait,
        max_transaction_s=max_transaction,
        check_timeout_s=timeout,
    )
    report = run_checks(target, case, ALL)
    if as_json:
        show_json(plain(report))
    else:
        print_report(report)
    sys.exit(int(report.severity >= (Severity.WARNING if strict else Severity.ERROR)))


def run_checks(target: Horsies, case: CheckContext, checks: Sequence[Check | Probe]) -> Report:
    """On a terminal, with what is being looked at, on a line that is empty again afterwards."""
    with closing(target):
        if not sys.stderr.isatty():
            return run_doctor(target.broker.config, case, checks=checks)
        try:
            return run_doctor(target.broker.config, case, checks=checks, before=_looking_at)
        finally:
            click.echo(CLEARED, nl=False, err=True)


def _looking_at(name: str) -> None:
    click.echo(f"{CLEARED}looking at: {name}", nl=False, err=True)


def plain(report: Report) -> dict[str, Any]:
    return {
        "severity": report.severity.word,
        "findings": [_plain_finding(finding) for finding in report.findings],
        "checks": [
            {
                "name": check.name,
                "severity": None if check.findings is None else check.severity.word,
                "took_ms": round(check.took_s * 1000),
            }
            for check in report.checks
        ],
    }


def _plain_finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "severity": finding.severity.word,
        "seen": finding.seen,
        "cure": finding.cure,
        "data": finding.data,
    }


def print_report(report: Report) -> None:
    well = [check.name for check in report.checks if check.findings == []]
    skipped = [check.name for check in report.checks if check.findings is None]
    for check in report.checks:
        _tell_check(check)
    if well:
        click.echo(f"{_coloured(Severity.OK)} {', '.join(well)}")
    if skipped:
        click.echo(f"not looked at, because of the above: {', '.join(skipped)}")
    click.echo(_summary(report))


def _tell_check(check: CheckResult) -> None:
    for finding in check.findings or ():
        click.echo(f"{_coloured(finding.severity)} {finding.code}: {finding.seen}")
        if finding.severity > Severity.INFO:
            click.echo(f"        cure: {finding.cure}")


def _coloured(severity: Severity) -> str:
    return click.style(f"{severity.word:7}", fg=COLOURS[severity])


def _summary(report: Report) -> str:
    counts = {
        severity: sum(finding.severity is severity for finding in report.findings)
        for severity in (Severity.ERROR, Severity.WARNING)
    }
    words = [f"{count} {severity.word}{'' if count == 1 else 's'}" for severity, count in counts.items() if count]
    return ", ".join(words) or "nothing is wrong"


# --------
# `horsies check`.


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
