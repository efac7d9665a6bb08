"""Run the checks one after the other.

Each check has a read-only transaction and a time limit of its own, so that a check that fails or takes too long does not affect the others.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, cast

from horsies.db.dedicated import DedicatedConnection
from horsies.db.errors import DriverError, ErrorKind, broker_error, classify, is_timeout, short_text
from horsies.db.pooler import UnsuitableEncoding
from horsies.db.statement import Op, Query, Request, Rows, execute, load, rows
from horsies.doctor import database_checks, queue_checks, waiting_checks
from horsies.doctor.findings import CheckContext, Finding, FindingCode, Severity
from horsies.model.config import PostgresConfig

SQL = load(__file__)

_NOT_PERMITTED: Final = "42501"  # insufficient_privilege
_FAILURES: Final = frozenset({FindingCode.CHECK_NOT_PERMITTED, FindingCode.CHECK_TIMED_OUT, FindingCode.CHECK_FAILED})
_UNDEFINED: Final = frozenset({"42P01", "42703", "42883", "3F000"})  # undefined table, column, function, schema


@dataclass(frozen=True, slots=True)
class Check:
    """An operation that runs in a read-only transaction of its own."""

    name: str
    verb: Callable[[CheckContext], Op[list[Finding]]]
    needs_schema: bool = True


@dataclass(frozen=True, slots=True)
class Probe:
    """A function that opens its own connections."""

    name: str
    probe: Callable[[PostgresConfig, CheckContext], list[Finding]]


def _ping(_context: CheckContext) -> Op[list[Finding]]:
    yield from rows(SQL["ping"]())
    return []


PING: Final = Check("database", _ping, needs_schema=False)
PRIVILEGES: Final = Check("privileges", database_checks.check_privileges, needs_schema=False)
VERSION: Final = Check("schema", database_checks.check_version, needs_schema=False)
NOTIFICATIONS: Final = Probe("notifications", database_checks.probe_notifications)
WORKERS: Final = Check("workers", queue_checks.check_workers)
CAPS: Final = Check("caps", queue_checks.check_caps)
OWNERS: Final = Check("schedules of other apps", queue_checks.check_owners)

SCHEDULES: Final = Check("schedules", queue_checks.check_schedules)

QUICK: Final[Sequence[Check]] = (
    WORKERS,
    Check("dead workers", queue_checks.check_dead_workers),
    Check("stuck tasks", queue_checks.check_stuck),
    Check("waiting tasks", waiting_checks.check_waiting),
    Check("unknown tasks", queue_checks.check_unknown),
    Check("crashes of children", queue_checks.check_crashes),
    CAPS,
    Check("paused workflows", queue_checks.check_paused_workflows),
    SCHEDULES,
    Check("failing schedules", queue_checks.check_failing_schedules),
    OWNERS,
)
"""What is in the queue: each takes about a millisecond, whatever is stored. `Ops.findings` runs these."""

LIVE: Final[Sequence[Check | Probe]] = (PING, PRIVILEGES, VERSION, NOTIFICATIONS, WORKERS, CAPS, OWNERS)
"""Whether the app can run at all, and whether the workers agree with it. `horsies check --live` runs these."""

ALL: Final[Sequence[Check | Probe]] = (
    PING,
    Check("settings", database_checks.check_settings, needs_schema=False),
    Check("connections", database_checks.check_connections, needs_schema=False),
    PRIVILEGES,
    VERSION,
    Check("search_path", database_checks.check_search_path),
    Check("who may create", database_checks.check_grants),
    Check("trigger", database_checks.check_trigger),
    Check("partitions", database_checks.check_partitions),
    Check("partitions of this user", database_checks.check_partition_privileges),
    NOTIFICATIONS,
    Check("notification queue", database_checks.check_notification_queue, needs_schema=False),
    Check("clock", database_checks.check_local_clock, needs_schema=False),
    Check("other clocks", database_checks.check_other_clocks),
    Check("transactions", database_checks.check_transactions, needs_schema=False),
    Check("prepared transactions", database_checks.check_prepared_transactions, needs_schema=False),
    Check("replication slots", database_checks.check_slots, needs_schema=False),
    Check("autovacuum", database_checks.check_autovacuum),
    Check("dead rows", database_checks.check_dead_rows),
    Check("bloat", database_checks.check_bloat),
    *QUICK,
    Check("workflows", queue_checks.check_workflows),
)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The findings of a check; None if it was skipped because of an earlier finding."""

    name: str
    findings: list[Finding] | None
    took_s: float

    @property
    def severity(self) -> Severity:
        return max((finding.severity for finding in self.findings or ()), default=Severity.OK)


@dataclass(slots=True)
class Report:
    checks: list[CheckResult] = field(default_factory=list[CheckResult])

    @property
    def findings(self) -> list[Finding]:
        """All of them, the worst first."""
        return merge_failures([finding for check in self.checks for finding in check.findings or ()])

    @property
    def severity(self) -> Severity:
        return max((check.severity for check in self.checks), default=Severity.OK)

    def has(self, *codes: FindingCode) -> bool:
        return any(finding.code in codes for finding in self.findings)


def run_doctor(
    config: PostgresConfig,
    context: CheckContext,
    *,
    checks: Sequence[Check | Probe] = ALL,
    on_check: Callable[[str], None] = lambda _name: None,
) -> Report:
    """Run the checks, and call `on_check` with the name of each before it runs. Errors of the database become findings."""
    connection = DedicatedConnection(config, "doctor")
    report = Report()
    try:
        for check in checks:
            on_check(check.name)
            started = time.monotonic()
            findings: list[Finding] | None = None
            if isinstance(check, Probe) or not (check.needs_schema and report.has(FindingCode.SCHEMA_MISSING)):
                try:
                    if isinstance(check, Probe):
                        findings = check.probe(config, context)
                    else:
                        findings = connection.run(_with_timeout(check.verb(context), context.check_timeout_s))
                except DriverError as error:
                    findings = _error_findings(check, error, report)
            report.checks.append(CheckResult(check.name, findings, time.monotonic() - started))
            if report.has(FindingCode.DATABASE_UNREACHABLE, FindingCode.ENCODING_UNSUITABLE):
                break
    finally:
        connection.close()
    return report


def run_quick_checks(context: CheckContext) -> Op[list[Finding]]:
    """Run the checks of `QUICK` together, in a few round trips, and return their findings, the worst first.

    A check that fails, times out or is not permitted becomes a finding; then the others run one by one.
    """
    limits = SQL["set_check_timeouts"](timeout_ms=f"{round(context.quick_timeout_s * 1000)}")
    try:
        results = yield from _run_together(limits, [check.verb(context) for check in QUICK])
    except DriverError as error:
        if classify(error) is ErrorKind.CONNECTION_LOST:
            raise
        results = list[list[Finding]]()
        for check in QUICK:
            try:
                results += yield from _run_together(limits, [check.verb(context)])
            except DriverError as own_error:
                if classify(own_error) is ErrorKind.CONNECTION_LOST:
                    raise
                results.append(_error_findings(check, own_error, Report()) or [])
    findings = [finding for each in results for finding in each]
    return merge_failures(findings)


def merge_failures(findings: Sequence[Finding]) -> list[Finding]:
    """Say in one finding of each kind which checks were not permitted, timed out or failed. The worst findings come first."""
    merged: dict[FindingCode, list[Finding]] = {}
    for finding in findings:
        if finding.code in _FAILURES:
            merged.setdefault(finding.code, []).append(finding)
    others = [finding for finding in findings if finding.code not in _FAILURES]
    failures = [
        Finding(code, "; ".join(each.seen for each in same), {"checks": [each.data["check"] for each in same]})
        for code, same in merged.items()
    ]
    return sorted([*others, *failures], key=lambda finding: -finding.severity)


def _run_together(limits: Query, ops: Sequence[Op[list[Finding]]]) -> Op[list[list[Finding]]]:
    """Run operations side by side: in each round trip, a transaction with these time limits, the next statements of all of them."""
    results: dict[int, list[Finding]] = {}
    answers: dict[int, list[Rows] | None] = dict.fromkeys(range(len(ops)))
    while answers:
        requests: dict[int, Sequence[Query]] = {}
        for place, answer in answers.items():
            try:
                request = cast("Request", ops[place].send(answer))  # reads consist of nothing else
            except StopIteration as end:
                results[place] = end.value
            else:
                requests[place] = request.queries
        if not requests:
            break
        _, *rest = yield from execute(limits, *(query for queries in requests.values() for query in queries))
        remaining = iter(rest)
        answers = {place: list(islice(remaining, len(queries))) for place, queries in requests.items()}
    return [results[place] for place in range(len(ops))]


def _with_timeout(op: Op[list[Finding]], timeout_s: float) -> Op[list[Finding]]:
    yield from execute(SQL["begin_check"](), SQL["set_check_timeouts"](timeout_ms=f"{round(timeout_s * 1000)}"))
    findings = yield from op
    yield from rows(SQL["end_check"]())
    return findings


def _error_findings(check: Check | Probe, error: DriverError, report: Report) -> list[Finding] | None:
    """Convert the error of a check to a finding; None if an earlier finding explains it."""
    message = " ".join(str(broker_error(error)).split())
    if isinstance(error, UnsuitableEncoding):
        return [Finding(FindingCode.ENCODING_UNSUITABLE, message)]
    if check is PING or classify(error) is ErrorKind.CONNECTION_LOST:
        return [Finding(FindingCode.DATABASE_UNREACHABLE, message)]
    if error.sqlstate in _UNDEFINED and report.has(FindingCode.SCHEMA_OLDER):
        return None
    code = FindingCode.CHECK_FAILED
    if is_timeout(error):
        code = FindingCode.CHECK_TIMED_OUT
    elif error.sqlstate == _NOT_PERMITTED:
        code, message = FindingCode.CHECK_NOT_PERMITTED, short_text(error)
    return [Finding(code, f"{check.name}: {message}", {"check": check.name})]
