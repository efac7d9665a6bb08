"""The examination: one check after the other, each within its time, none able to spoil the others."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from horsies.db.link import Link
from horsies.db.load import load
from horsies.db.op import Op, ask, rows
from horsies.db.session import UnsuitableEncoding
from horsies.db.trouble import DatabaseError, Trouble, broker_error, trouble_of
from horsies.doctor import clocks, listening, schedules, schema, server, tasks, vacuum, workers, workflows
from horsies.doctor.case import Case
from horsies.doctor.codes import Code, Severity
from horsies.doctor.finding import Finding, worst
from horsies.model.config import PostgresConfig

SQL = load(__file__)

_NOT_PERMITTED: Final = "42501"
_TIMED_OUT: Final = frozenset({"57014", "55P03"})
_UNDEFINED: Final = frozenset({"42P01", "42703", "42883", "3F000"})


def _ping(_case: Case) -> Op[list[Finding]]:
    yield from rows(SQL["ping"]())
    return []


@dataclass(frozen=True, slots=True)
class Check:
    """A verb in a read-only transaction of its own."""

    name: str
    verb: Callable[[Case], Op[list[Finding]]]
    needs_schema: bool = True


@dataclass(frozen=True, slots=True)
class Probe:
    """What needs connections of its own."""

    name: str
    probe: Callable[[PostgresConfig, Case], list[Finding]]


REACH: Final = Check("database", _ping, needs_schema=False)
PRIVILEGES: Final = Check("privileges", schema.check_privileges, needs_schema=False)
VERSION: Final = Check("schema", schema.check_version, needs_schema=False)
LISTENING: Final = Probe("notifications", listening.probe_listening)
WORKERS: Final = Check("workers", workers.check_workers)
CAPS: Final = Check("caps", tasks.check_caps)
OWNERS: Final = Check("schedules of other apps", schedules.check_owners)

LIVE: Final[Sequence[Check | Probe]] = (REACH, PRIVILEGES, VERSION, LISTENING, WORKERS, CAPS, OWNERS)
"""What an app needs to run at all, and whether the workers agree with it."""

ALL: Final[Sequence[Check | Probe]] = (
    REACH,
    Check("settings", server.check_settings, needs_schema=False),
    Check("connections", server.check_connections, needs_schema=False),
    PRIVILEGES,
    VERSION,
    Check("search_path", schema.check_search_path),
    Check("who may create", schema.check_grants),
    Check("trigger", schema.check_trigger),
    Check("partitions", schema.check_days),
    Check("partitions of this user", schema.check_days_privilege),
    LISTENING,
    Check("notification queue", listening.check_queue, needs_schema=False),
    Check("clock", clocks.check_this_clock, needs_schema=False),
    Check("other clocks", clocks.check_other_clocks),
    Check("transactions", vacuum.check_transactions, needs_schema=False),
    Check("prepared transactions", vacuum.check_prepared_transactions, needs_schema=False),
    Check("replication slots", vacuum.check_slots, needs_schema=False),
    Check("autovacuum", vacuum.check_autovacuum),
    Check("dead rows", vacuum.check_dead_rows),
    Check("bloat", vacuum.check_bloat),
    WORKERS,
    Check("stuck tasks", tasks.check_stuck),
    Check("waiting tasks", tasks.check_waiting),
    Check("unknown tasks", tasks.check_unknown),
    CAPS,
    Check("workflows", workflows.check_workflows),
    Check("schedules", schedules.check_schedules),
    OWNERS,
)


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check has found; None if it was not run, because of what others found."""

    name: str
    findings: list[Finding] | None
    took_s: float

    @property
    def severity(self) -> Severity:
        return worst(self.findings or [])


@dataclass(slots=True)
class Report:
    checks: list[Checked] = field(default_factory=list[Checked])

    @property
    def findings(self) -> list[Finding]:
        return [finding for check in self.checks for finding in check.findings or ()]

    @property
    def severity(self) -> Severity:
        return worst(self.findings)

    def has(self, *codes: Code) -> bool:
        return any(finding.code in codes for finding in self.findings)


def examine(
    config: PostgresConfig,
    case: Case,
    *,
    checks: Sequence[Check | Probe] = ALL,
    before: Callable[[str], None] = lambda _name: None,
) -> Report:
    """Never raises for what is wrong with the database. `before` hears of each check before it is run."""
    link = Link(config, "doctor")
    report = Report()
    try:
        for check in checks:
            before(check.name)
            began = time.monotonic()
            findings = _examined(link, config, case, check, report)
            report.checks.append(Checked(check.name, findings, time.monotonic() - began))
            if report.has(Code.DATABASE_UNREACHABLE, Code.ENCODING_UNSUITABLE):
                break
    finally:
        link.close()
    return report


def _examined(
    link: Link, config: PostgresConfig, case: Case, check: Check | Probe, report: Report
) -> list[Finding] | None:
    if isinstance(check, Check) and check.needs_schema and report.has(Code.SCHEMA_MISSING):
        return None
    try:
        if isinstance(check, Probe):
            return check.probe(config, case)
        return link.run(_bounded(check.verb(case), case))
    except DatabaseError as error:
        return _failed(check, error, report)


def _bounded(op: Op[list[Finding]], case: Case) -> Op[list[Finding]]:
    yield from ask(SQL["begin_check"](), SQL["set_check_timeouts"](timeout_ms=f"{round(case.check_timeout_s * 1000)}"))
    found = yield from op
    yield from rows(SQL["end_check"]())
    return found


def _failed(check: Check | Probe, error: DatabaseError, report: Report) -> list[Finding] | None:
    said = " ".join(str(broker_error(error)).split())
    if isinstance(error, UnsuitableEncoding):
        return [Finding(Code.ENCODING_UNSUITABLE, said)]
    if check is REACH or trouble_of(error) is Trouble.LOST:
        return [Finding(Code.DATABASE_UNREACHABLE, said)]
    words = f"{check.name}: {said}"
    if error.sqlstate in _TIMED_OUT:
        return [Finding(Code.CHECK_TIMED_OUT, words)]
    if error.sqlstate == _NOT_PERMITTED:
        return None if report.has(Code.PRIVILEGES_MISSING) else [Finding(Code.CHECK_NOT_PERMITTED, words)]
    if error.sqlstate in _UNDEFINED and report.has(Code.SCHEMA_OLDER):
        return None
    return [Finding(Code.CHECK_FAILED, words)]
