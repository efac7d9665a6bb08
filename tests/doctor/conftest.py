"""A doctor for the test's database, and an attentive worker in it, so that nothing else is wrong."""

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

LIVING = (
    "insert into horsies.workers (id, hostname, pid, processes, concurrency, queues, library_version, started_at, heartbeat_at) "
    "values (coalesce(%(id)s, gen_random_uuid()), 'here', 1, 1, 1, %(queues)s, %(version)s, now() - interval '1 hour', now())"
)


@dataclass(frozen=True)
class Seen:
    """What an examination has found, without what is true of every server that is made for tests."""

    report: Report

    @property
    def codes(self) -> set[FindingCode]:
        return {finding.code for finding in self.report.findings} - {FindingCode.FSYNC_OFF}

    def data(self, code: FindingCode) -> dict[str, Any]:
        (found,) = [finding for finding in self.report.findings if finding.code is code]
        assert found.seen
        assert found.cure
        return dict(found.data)


class Doctor(Protocol):
    """`doctor(max_wait_s=0)`: the findings under these limits."""

    def __call__(self, url: str | PostgresConfig | None = None, **limits: Any) -> Seen: ...


@pytest.fixture
def doctor(request: pytest.FixtureRequest) -> Doctor:
    def examined(url: str | PostgresConfig | None = None, **limits: Any) -> Seen:
        url = url or str(request.getfixturevalue("database"))
        config = PostgresConfig(database_url=url) if isinstance(url, str) else url
        return Seen(run_doctor(config, replace(CheckContext(schema=config.schema, look_again_s=0.0), **limits)))

    return examined


def add_worker(sql: psycopg.Connection, *queues: str, worker: str | None = None, version: str = "0.1.0") -> None:
    sql.execute(LIVING, {"id": worker, "queues": list(queues) or ["default"], "version": version})


@pytest.fixture
def attended(sql: psycopg.Connection) -> psycopg.Connection:
    """A worker lives, by its row, and is the keeper."""
    add_worker(sql, worker=ME)
    sql.execute(
        "insert into horsies.maintenance_lease (holder, expires_at) values (%s, now() + interval '1 hour')", [ME]
    )
    return sql


@pytest.fixture(scope="session")
def sturdy_server() -> Generator[EmbeddedServer]:
    """A server as one has it in production, but small; its faults may be planted, too."""
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
def sturdy(sturdy_server: EmbeddedServer) -> Generator[psycopg.Connection]:
    with psycopg.connect(sturdy_server.url(), autocommit=True, application_name="tests") as connection:
        yield connection
