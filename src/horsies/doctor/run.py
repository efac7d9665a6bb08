"""The examination: one check after the other, each within its time, none able to spoil the others."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from horsies.db.dedicated import DedicatedConnection
from horsies.db.errors import DriverError, ErrorKind, broker_error, classify
from horsies.db.pooler import UnsuitableEncoding
from horsies.db.statement import Op, execute, load, rows
from horsies.doctor import database_checks, queue_checks
from horsies.doctor.findings import CheckContext, Finding, FindingCode, Severity, worst
from horsies.model.config import PostgresConfig

SQL = load(__file__)

_NOT_PERMITTED: Final = "42501"
_TIMED_OUT: Final = frozenset({"57014", "55P03"})
_UNDEFINED: Final = frozenset({"42P01", "42703", "42883", "3F000"})


def _ping(_case: CheckContext) -> Op[list[Finding]]:
    yield from rows(SQL["ping"]())
    return []


@dataclass(frozen=True, slots=True)
class Check:
    """A verb in a read-only transaction of its own."""

    name: str
    verb: Callable[[CheckContext], Op[list[Finding]]]
    needs_schema: bool = True


@dataclass(frozen=True, slots=True)
class Probe:
    """What needs connections of its own."""

    name: str
    probe: Callable[[PostgresConfig, CheckContext], list[Finding]]


REACH: Final = Check("database", _ping, needs_schema=False)
PRIVILEGES: Final = Check("privileges", database_checks.check_privileges, needs_schema=False)
VERSION: Final = Check("schema", database_checks.check_version, needs_schema=False)
LISTENING: Final = Probe("notifications", database_checks.probe_listening)
WORKERS: Final = Check("workers", queue_checks.check_workers)
CAPS: Final = Check("caps", queue_checks.check_caps)
OWNERS: Final = Check("schedules of other apps", queue_checks.check_owners)

LIVE: Final[Sequence[Check | Probe]] = (REACH, PRIVILEGES, VERSION, LISTENING, WORKERS, CAPS, OWNERS)
"""What an app needs to run at all, and whether the workers agree with it."""

ALL: Final[Sequence[Check | Probe]] = (
    REACH,
    Check("settings", database_checks.check_settings, needs_schema=False),
    Check("connections", database_checks.check_connections, needs_schema=False),
    PRIVILEGES,
    VERSION,
    Check("search_path", database_checks.check_search_path),
    Check("who may create", database_checks.check_grants),
    Check("trigger", database_checks.check_trigger),
    Check("partitions", database_checks.check_days),
    Check("partitions of this user", database_checks.check_days_privilege),
    LISTENING,
    Check("notification queue", database_checks.check_queue, needs_schema=False),
    Check("clock", database_checks.check_this_clock, needs_schema=False),
    Check("other clocks", database_checks.check_other_clocks),
    Check("transactions", database_checks.check_transactions, needs_schema=False),
    Check("prepared transactions", database_checks.check_prepared_transactions, needs_schema=False),
    Check("replication slots", database_checks.check_slots, needs_schema=False),
    Check("autovacuum", database_checks.check_autovacuum),
    Check("dead rows", database_checks.check_dead_rows),
    Check("bloat", database_checks.check_bloat),
    WORKERS,
    Check("stuck tasks", queue_checks.check_stuck),
    Check("waiting tasks", queue_checks.check_waiting),
    Check("unknown tasks", queue_checks.check_unknown),
    CAPS,
    Check("workflows", queue_checks.check_workflows),
    Check("schedules", queue_checks.check_schedules),
    OWNERS,
)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check has found; None if it was not run, because of what others found."""

    name: str
    findings: list[Finding] | None
    took_s: float

    @property
    def severity(self) -> Severity:
        return worst(self.findings or [])


@dataclass(slots=True)
class Report:
    checks: list[CheckResult] = field(default_factory=list[CheckResult])

    @property
    def findings(self) -> list[Finding]:
        return [finding for check in self.checks for finding in check.findings or ()]

    @property
    def severity(self) -> Severity:
        return worst(self.findings)

    def has(self, *codes: FindingCode) -> bool:
        return any(finding.code in codes for finding in self.findings)


def run_doctor(
    config: PostgresConfig,
    case: CheckContext,
    *,
    checks: Sequence[Check | Probe] = ALL,
    before: Callable[[str], None] = lambda _name: None,
) -> Report:
    """Never raises for what is wrong with the database. `before` hears of each check before it is run."""
    link = DedicatedConnection(config, "doctor")
    report = Report()
    try:
        for check in checks:
            before(check.name)
            began = time.monotonic()
            findings = _examined(link, config, case, check, report)
            report.checks.append(CheckResult(check.name, findings, time.monotonic() - began))
            if report.has(FindingCode.DATABASE_UNREACHABLE, FindingCode.ENCODING_UNSUITABLE):
                break
    finally:
        link.close()
    return report


def _examined(
    link: DedicatedConnection, config: PostgresConfig, case: CheckContext, check: Check | Probe, report: Report
) -> list[Finding] | None:
    if isinstance(check, Check) and check.needs_schema and report.has(FindingCode.SCHEMA_MISSING):
        return None
    try:
        if isinstance(check, Probe):
            return check.probe(config, case)
        return link.run(_bounded(check.verb(case), case))
    except DriverError as error:
        return _failed(check, error, report)


def _bounded(op: Op[list[Finding]], case: CheckContext) -> Op[list[Finding]]:
    yield from execute(
        SQL["begin_check"](), SQL["set_check_timeouts"](timeout_ms=f"{round(case.check_timeout_s * 1000)}")
    )
    found = yield from op
    yield from rows(SQL["end_check"]())
    return found


def _failed(check: Check | Probe, error: DriverError, report: Report) -> list[Finding] | None:
    said = " ".join(str(broker_error(error)).split())
    if isinstance(error, UnsuitableEncoding):
        return [Finding(FindingCode.ENCODING_UNSUITABLE, said)]
    if check is REACH or classify(error) is ErrorKind.CONNECTION_LOST:
        return [Finding(FindingCode.DATABASE_UNREACHABLE, said)]
    words = f"{check.name}: {said}"
    if error.sqlstate in _TIMED_OUT:
        return [Finding(FindingCode.CHECK_TIMED_OUT, words)]
    if error.sqlstate == _NOT_PERMITTED:
        return None if report.has(FindingCode.PRIVILEGES_MISSING) else [Finding(FindingCode.CHECK_NOT_PERMITTED, words)]
    if error.sqlstate in _UNDEFINED and report.has(FindingCode.SCHEMA_OLDER):
        return None
    return [Finding(FindingCode.CHECK_FAILED, words)]
