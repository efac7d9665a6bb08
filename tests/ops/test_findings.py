"""`ops.findings()`: quick, useful for a role that may read only a part, and never in the way of others."""

from collections.abc import Generator
from contextlib import contextmanager

import psycopg

from horsies import AppConfig, Horsies
from horsies.doctor.findings import Finding, FindingCode, Severity
from horsies.model.config import PostgresConfig
from tests.fixtures.roles import PlainUser

UNKNOWN = (
    "insert into horsies.tasks (task_name, ready, unknown_since) values ('pack', false, now() - interval '2 minutes')"
)


@contextmanager
def findings_of(url: str) -> Generator[Horsies]:
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=url)))
    try:
        yield app
    finally:
        app.close()


def codes(findings: list[Finding]) -> list[FindingCode]:
    return [finding.code for finding in findings]


async def test_both_forms_give_the_same_findings_the_worst_first(database: str, sql: psycopg.Connection) -> None:
    sql.execute(UNKNOWN)
    sql.execute("insert into horsies.queues (name, paused_at) values ('mail', now())")
    sql.execute("insert into horsies.tasks (task_name, queue_name) values ('add', 'mail')")
    with findings_of(database) as app:
        found = app.ops.findings()
        assert codes(found) == [FindingCode.NO_WORKERS, FindingCode.TASKS_UNKNOWN, FindingCode.QUEUE_PAUSED]
        assert [finding.severity for finding in found] == [Severity.ERROR, Severity.ERROR, Severity.WARNING]
        assert codes(await app.ops.findings_async()) == codes(found)
        await app.ops.broker.close_async()


def test_without_any_worker_a_queue_with_a_cap_is_not_another_finding(database: str, sql: psycopg.Connection) -> None:
    sql.execute(
        "insert into horsies.tasks (task_name, queue_name, enqueued_at) values ('add', 'mail', now() - interval '1 hour')"
    )
    with findings_of(database) as app:
        app.ops.set_queue_cap("mail", 5)
        assert codes(app.ops.findings()) == [FindingCode.NO_WORKERS]


def test_a_role_that_may_only_read_sees_all_findings(
    database: str, sql: psycopg.Connection, plain_user: PlainUser
) -> None:
    sql.execute(UNKNOWN)
    sql.execute(f"grant usage on schema horsies to {plain_user.name}".encode())
    sql.execute(f"grant select on all tables in schema horsies to {plain_user.name}".encode())
    with findings_of(database) as app, findings_of(plain_user.url(database)) as reader:
        found = reader.ops.findings()
        assert codes(found) == codes(app.ops.findings()) == [FindingCode.TASKS_UNKNOWN, FindingCode.NO_WORKERS]


def test_what_a_role_may_not_see_is_said_in_one_finding_and_the_rest_is_checked(
    database: str, sql: psycopg.Connection, plain_user: PlainUser
) -> None:
    sql.execute(UNKNOWN)
    sql.execute(f"grant usage on schema horsies to {plain_user.name}".encode())
    sql.execute(f"grant select on horsies.tasks to {plain_user.name}".encode())
    with findings_of(plain_user.url(database)) as app:
        unknown, hidden = app.ops.findings()
    assert unknown.code is FindingCode.TASKS_UNKNOWN
    assert hidden.code is FindingCode.CHECK_NOT_PERMITTED
    assert hidden.data["checks"] == [
        "workers", "dead workers", "stuck tasks", "waiting tasks", "crashes of children", "paused workflows", "schedules", "failing schedules",
    ]  # fmt: skip
    assert "dead workers: " in hidden.seen
    assert "permission denied for table dead_workers" in hidden.seen


def test_a_table_that_is_locked_delays_the_findings_by_a_moment_and_is_one_finding(
    database: str, sql: psycopg.Connection
) -> None:
    sql.execute(UNKNOWN)
    with psycopg.connect(database) as holder, findings_of(database) as app:
        holder.execute("lock table horsies.dead_workers in access exclusive mode")
        unknown, locked, *others = app.ops.findings()
        assert codes(others) == [FindingCode.NO_WORKERS]
    assert unknown.code is FindingCode.TASKS_UNKNOWN
    assert locked.code is FindingCode.CHECK_TIMED_OUT
    assert locked.data == {"checks": ["dead workers", "crashes of children"]}
