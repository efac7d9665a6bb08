"""A doctor for the test's database, and a healthy worker in it, so that nothing else is wrong."""

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.doctor.findings import CheckContext, FindingCode
from horsies.doctor.run import Report, run_doctor
from horsies.embedded.server import EmbeddedServer
from horsies.model.config import PostgresConfig
from tests.fixtures.journey import ME
from tests.fixtures.scratch_server import scratch_server

INSERT_WORKER = (
    "insert into horsies.workers (id, hostname, pid, processes, concurrency, queues, library_version, started_at, heartbeat_at) "
    "values (coalesce(%(id)s, gen_random_uuid()), 'here', 1, 1, 1, %(queues)s, %(version)s, now() - interval '1 hour', now())"
)


@dataclass(frozen=True)
class Result:
    """The findings, without those that every test server has."""

    report: Report

    @property
    def codes(self) -> set[FindingCode]:
        return {finding.code for finding in self.report.findings} - {FindingCode.FSYNC_OFF}

    def data(self, code: FindingCode) -> dict[str, Any]:
        (finding,) = [finding for finding in self.report.findings if finding.code is code]
        assert finding.seen
        assert finding.fix
        return dict(finding.data)


class Doctor(Protocol):
    """`doctor(max_wait_s=0)` runs all checks with these thresholds."""

    def __call__(self, url: str | PostgresConfig | None = None, **thresholds: Any) -> Result: ...


@pytest.fixture
def doctor(request: pytest.FixtureRequest) -> Doctor:
    def run(url: str | PostgresConfig | None = None, **thresholds: Any) -> Result:
        url = url or str(request.getfixturevalue("database"))
        config = PostgresConfig(database_url=url) if isinstance(url, str) else url
        context = replace(CheckContext(schema=config.schema, recheck_after_s=0.0), **thresholds)
        return Result(run_doctor(config, context))

    return run


def add_worker(sql: psycopg.Connection, *queues: str, worker: str | None = None, version: str = "0.1.0") -> None:
    sql.execute(INSERT_WORKER, {"id": worker, "queues": list(queues) or ["default"], "version": version})


@pytest.fixture
def healthy(sql: psycopg.Connection) -> psycopg.Connection:
    """A database with the row of a live worker, which is the maintenance leader."""
    add_worker(sql, worker=ME)
    sql.execute(
        "insert into horsies.maintenance_lease (holder, expires_at) values (%s, now() + interval '1 hour')", [ME]
    )
    return sql


@pytest.fixture(scope="session")
def production_server() -> Generator[EmbeddedServer]:
    """A server with the settings of production, but small, for faults of the whole server."""
    settings = {
        "max_connections": "30",
        "max_prepared_transactions": "2",
        "wal_level": "logical",
        "max_notify_queue_pages": "64",
    }
    with scratch_server(settings=settings) as server:
        PostgresBroker(PostgresConfig(database_url=server.url())).migrate()
        yield server


@pytest.fixture
def production(production_server: EmbeddedServer) -> Generator[psycopg.Connection]:
    with psycopg.connect(production_server.url(), autocommit=True, application_name="tests") as connection:
        yield connection
