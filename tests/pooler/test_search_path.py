"""Behind a pooler no session is ours: every transaction sets what our statements depend on, and leaves nothing behind."""

from collections.abc import Generator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.db.statement import Statement, execute, one
from horsies.model.config import PostgresConfig
from tests.fixtures.apps import load_fresh
from tests.fixtures.hostile_sessions import run_journeys
from tests.fixtures.journey import column
from tests.fixtures.pgbouncer import StartPgBouncer
from tests.fixtures.workers import StartWorker
from tests.recovery.steps import FORKED

SHOWN = Statement("shown", "select current_setting('search_path')")
MOMENT = Statement(
    "moment", "select timestamptz '2026-01-02 03:04:05.000006+00', array[%(words)s::text[]] = array[array[null]]"
)


@pytest.fixture
def database(intruded: str) -> str:
    return intruded


@pytest.fixture
def pooled_url(pgbouncer: StartPgBouncer) -> str:
    return pgbouncer(server_round_robin=1, default_pool_size=2).url


@pytest.fixture
def graphs(pooled_url: str, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    monkeypatch.setenv("HORSIES_DATABASE_URL", pooled_url)
    module = load_fresh("graphs")
    yield module
    module.app.close()


@pytest.mark.promise("D6")
def test_no_operation_of_a_producer_or_a_worker_calls_a_planted_object(
    database: str, pooled_url: str, graphs: Any, worker: StartWorker
) -> None:
    running = worker("tests.apps.graphs:app", options=FORKED, database_url=pooled_url)
    run_journeys(database, graphs)
    assert running.terminate() == 0
    assert not [line for line in running.logs if "intrusion" in line or "ERROR" in line]
    with psycopg.connect(pooled_url, autocommit=True) as other_client:
        assert {path for _ in range(4) for path in column(other_client, "show search_path")} == {"public, pg_catalog"}


def test_settings_apply_to_each_request_in_a_transaction_or_not_and_after_the_commit(
    pooled_url: str,
) -> None:
    with PostgresBroker(PostgresConfig(database_url=pooled_url)) as broker:
        assert broker.run(lambda: one(SHOWN())) == ("pg_catalog, pg_temp",)
        begin, commit = Statement("begin", "begin isolation level serializable"), Statement("commit", "commit")
        found = broker.run(lambda: execute(begin(), SHOWN(), commit()))
        assert found == [[], [("pg_catalog, pg_temp",)], []]


def test_times_and_arrays_are_read_whatever_the_role_has_set(pooled_url: str, database: str) -> None:
    with psycopg.connect(database, autocommit=True, options="-c search_path=pg_catalog") as sql:
        for setting in ("DateStyle = 'SQL, DMY'", "TimeZone = 'Asia/Tokyo'", "array_nulls = off"):
            sql.execute(f'alter database "{sql.info.dbname}" set {setting}'.encode())
    with PostgresBroker(PostgresConfig(database_url=pooled_url)) as broker:
        found = broker.run(lambda: one(MOMENT(words=[None])))
    assert found == (datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), True)
