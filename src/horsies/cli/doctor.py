"""`horsies doctor`."""

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

import click

from horsies.app import Horsies
from horsies.cli.options import (
    database_option,
    json_option,
    optional_app_argument,
    parse_seconds,
    report_errors,
    schema_option,
    target_of,
)
from horsies.cli.output import show_json
from horsies.doctor.findings import CheckContext, Finding, Severity, context_for
from horsies.doctor.run import ALL, Check, CheckResult, Probe, Report, run_doctor

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
