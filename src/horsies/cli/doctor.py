"""`horsies doctor` and `horsies check`."""

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from operator import attrgetter
from typing import Any, Final

import click

from horsies.app import Horsies
from horsies.cli.options import app_command, json_option, open_target, parse_seconds, report_errors, target_command
from horsies.cli.output import Column, show_json, show_lines, show_table, terminal_size, wide_option, wrap
from horsies.doctor.findings import CheckContext, Finding, Severity, context_for
from horsies.doctor.run import ALL, LIVE, Check, Probe, Report, run_doctor
from horsies.inventory import take_inventory
from horsies.locate import find_app
from horsies.model.app_check import Inventory
from horsies.model.database_url import masked
from horsies.model.text import plural
from horsies.model.validation import format_duration

CLEAR_LINE: Final = "\r\x1b[K"
STYLES: Final = {Severity.OK: "green", Severity.INFO: "cyan", Severity.WARNING: "yellow", Severity.ERROR: "bold red"}


@click.command()
@target_command
@click.option(
    "--max-wait", type=parse_seconds, default="10m", show_default=True, metavar="TIME", help="How long a task may wait."
)
@click.option(
    "--max-transaction", type=parse_seconds, default="10m", show_default=True, metavar="TIME",
    help="How long a transaction may be open.",
)  # fmt: skip
@click.option(
    "--timeout", type=parse_seconds, default="5s", show_default=True, metavar="TIME", help="Time limit of each check."
)
@click.option("--strict", is_flag=True, help="Exit 1 for warnings, too.")
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
    """Check for known production problems, and print the fix for each.

    Only reads. With an APP, its queues, caps and recovery settings are compared with what the workers do. docs/doctor.md explains all
    findings.

    Exit codes: 0 nothing worse than a warning, 1 errors (with --strict, warnings too), 2 wrong usage.

    \b
    horsies doctor shop:app
    horsies doctor --database-url postgresql://… --json --strict
    """
    target = open_target(app, database_url, schema)
    context = replace(
        context_for(target, knows_app=app is not None),
        max_wait_s=max_wait,
        max_transaction_s=max_transaction,
        check_timeout_s=timeout,
    )
    report = _run_checks(target, context, ALL)
    if as_json:
        show_json(_to_json(report))
    else:
        _show_report(report)
    sys.exit(int(report.severity >= (Severity.WARNING if strict else Severity.ERROR)))


@click.command()
@app_command
@click.option("--live", is_flag=True, help="Also check the database and the running workers.")
@wide_option
@json_option
@report_errors
def check(app: str, *, live: bool, as_json: bool) -> None:
    """Load the APP, and show what it contains and everything that is wrong with it.

    Checks the configuration, the task modules, and the tasks, queues, workflows, schedules and hooks. This needs no database. With --live it also
    checks whether the database can be reached, whether the schema and the privileges are right, whether notifications arrive, and whether the
    workers serve the app's queues.

    Exit codes: 0 no problems, 1 problems, 2 wrong usage.

    \b
    horsies check shop:app
    horsies check shop:app --live --json
    """
    target = find_app(app)
    inventory = take_inventory(target, app)
    report = _run_checks(target, context_for(target, knows_app=True), LIVE) if live else None
    if as_json:
        show_json({"app": app, **asdict(inventory), "live": None if report is None else _to_json(report)})
    else:
        _show_inventory(target, inventory)
        if report is not None:
            click.echo()
            _show_report(report)
        for problem in inventory.problems:
            click.echo(f"{click.style('problem', fg='red')}: {problem}", err=True)
    sys.exit(1 if inventory.problems or (report and report.severity is Severity.ERROR) else 0)


def _run_checks(target: Horsies, context: CheckContext, checks: Sequence[Check | Probe]) -> Report:
    """Run the checks. On a terminal, show the name of the current one, on a line that is cleared afterwards."""

    def on_check(name: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"{CLEAR_LINE}checking: {name}", nl=False, err=True)

    with closing(target):
        try:
            return run_doctor(target.broker.config, context, checks=checks, on_check=on_check)
        finally:
            if sys.stderr.isatty():
                click.echo(CLEAR_LINE, nl=False, err=True)


def finding_to_json(finding: Finding) -> dict[str, Any]:
    names = ("code", "seen", "fix", "target", "data")
    return {"severity": finding.severity.word} | {name: getattr(finding, name) for name in names}


def _to_json(report: Report) -> dict[str, Any]:
    return {
        "severity": report.severity.word,
        "findings": [finding_to_json(each) for each in report.findings],
        "checks": [
            {"name": each.name, "severity": None if each.findings is None else each.severity.word}
            | {"took_ms": round(each.took_s * 1000)}
            for each in report.checks
        ],
    }


def _show_report(report: Report) -> None:
    width, _ = terminal_size()
    for finding in report.findings:
        severity = finding.severity
        show_lines(wrap(f"{severity.word:7} ", f"{finding.code}: {finding.seen}", width, STYLES[severity]))
        if severity > Severity.INFO:
            show_lines(wrap("        fix: ", finding.fix, width))
    if passed := [check.name for check in report.checks if check.findings == []]:
        show_lines(wrap(f"{Severity.OK.word:7} ", ", ".join(passed), width, STYLES[Severity.OK]))
    if skipped := [check.name for check in report.checks if check.findings is None]:
        click.echo(f"not checked, because of the above: {', '.join(skipped)}")
    counts = Counter(finding.severity for finding in report.findings)
    words = [
        plural(count, severity.word) for severity in (Severity.ERROR, Severity.WARNING) if (count := counts[severity])
    ]
    click.echo(", ".join(words) or "no problems found")


def _show_inventory(app: Horsies, inventory: Inventory) -> None:
    database = "the embedded PostgreSQL" if app.is_embedded else masked(app.broker.config.database_url)
    click.echo(f"database: {database}")
    if inventory.modules:
        click.echo(f"modules:  {', '.join(inventory.modules)}")
    for name, hooks in (("start", inventory.child_start_hooks), ("stop", inventory.child_stop_hooks)):
        if hooks:
            click.echo(f"on child {name}: {', '.join(hooks)}")
    if inventory.middleware:
        click.echo(f"middleware: {', '.join(inventory.middleware)}")
    click.echo()
    cells = attrgetter("name", "priority", "max_concurrency", "tasks")
    show_table(
        [Column("QUEUE", shrink=10), "PRIORITY", "MAX CONCURRENCY", Column("TASKS", shrink=20)],
        map(cells, inventory.queues),
        empty="no queues",
    )
    click.echo()
    tasks = [
        (each.name, each.queue, each.retries, each.retry_for, each.timeout_ms and format_duration(each.timeout_ms / 1000), each.function)
        for each in inventory.tasks
    ]  # fmt: skip
    empty = "no tasks; if they are in other modules, name these in app.discover_tasks([...])"
    columns = [
        Column("TASK", shrink=12), Column("QUEUE", shrink=8), "RETRIES", Column("RETRIED FOR", shrink=12, drop=1), "TIMEOUT",
        Column("FUNCTION", shrink=16, drop=2),
    ]  # fmt: skip
    show_table(columns, tasks, empty=empty)
    if inventory.workflows:
        click.echo()
        cells = attrgetter("name", "nodes", "definition")
        show_table(
            [Column("WORKFLOW", shrink=12), "NODES", Column("CLASS", shrink=16)],
            map(cells, inventory.workflows),
            empty="no workflows",
        )
    if inventory.schedules:
        click.echo()
        cells = attrgetter("name", "task", "pattern", "timezone", "enabled")
        headings = [
            Column("SCHEDULE", shrink=12),
            Column("TASK", shrink=12),
            Column("PATTERN", shrink=16),
            Column("TIMEZONE", drop=1),
            "ENABLED",
        ]
        show_table(headings, map(cells, inventory.schedules), empty="no schedules")
