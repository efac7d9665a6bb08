"""Workers are killed and the database is restarted repeatedly: every task ends once, by its policy."""

import time
from collections import Counter
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from horsies.embedded.server import EmbeddedServer
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import row
from tests.fixtures.scratch_server import scratch_server
from tests.fixtures.workers import READY, Worker
from tests.recovery.steps import CLUSTER, FORKED, insert_rows, notes, settings

TASKS = 2_000


@pytest.fixture
def own_server() -> Generator[EmbeddedServer]:
    """Start a server for this test. The server of the whole run cannot be stopped, because other tests use it."""
    with scratch_server(settings={"fsync": "off"}) as server:
        yield server


class Cluster:
    """Three workers, and one more for each that dies."""

    def __init__(self, url: str) -> None:
        self._env = {"HORSIES_DATABASE_URL": url, **settings()}
        self.all: list[Worker] = []
        self.live = [self.start() for _ in range(3)]
        for one in self.live:
            one.wait_for_log(READY, 30)

    def start(self) -> Worker:
        self.all.append(Worker(CLUSTER, processes=2, options=FORKED, env=self._env))
        return self.all[-1]

    def kill_one(self) -> None:
        self.live.pop(0).kill()
        self.live.append(self.start())

    def close(self) -> None:
        for one in self.all:
            one.close()


def ended_count(url: str) -> int:
    with suppress(psycopg.OperationalError), psycopg.connect(url, autocommit=True) as sql:
        return row(sql, "select count(*) from horsies.finished")[0]
    return 0


def insert(url: str, log: Path) -> None:
    """Insert the tasks. Half of them may run again after a crash."""
    arguments: list[dict[str, Any]] = [{"log": str(log), "number": n, "seconds": 0.01} for n in range(TASKS)]
    with psycopg.connect(url, autocommit=True) as sql:
        insert_rows(sql, "span", arguments[::2])
        insert_rows(
            sql,
            "span",
            arguments[1::2],
            retry_delays_ms="array_fill(20, array[10])",
            retry_for="array['WORKER_CRASHED']",
        )


@pytest.mark.timeout(180)
@pytest.mark.promise("T2", "W9", "W11", "W14")
def test_every_task_ends_once_while_workers_die_and_the_database_restarts(
    own_server: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, log = own_server.url(), tmp_path / "log"
    cluster = Cluster(url)
    kills = 0
    try:
        insert(url, log)
        for restart_at in (TASKS // 5, TASKS // 2):
            eventually(lambda least=100 * kills: len(notes(log)) > least, 30)
            cluster.kill_one()
            kills += 1
            eventually(lambda at=restart_at: ended_count(url) > at, 60)
            own_server.restart()
        while ended_count(url) < TASKS * 9 // 10:
            before, at = ended_count(url), time.monotonic()
            cluster.kill_one()
            kills += 1
            eventually(lambda before=before, at=at: ended_count(url) > before and time.monotonic() > at + 1, 60)
        eventually(lambda: ended_count(url) >= TASKS, 60, what="all have ended", seen=lambda: ended_count(url))
        assert not any(one.process.poll() is not None for one in cluster.live)  # the others ran all the time
    finally:
        cluster.close()
    with psycopg.connect(url, autocommit=True) as sql:
        found = account(sql, log)
    with capsys.disabled():
        print(f"\n  {TASKS} tasks, {kills} workers killed, 2 restarts of the database: {found}")  # noqa: T201 - the counts are shown in every run
    assert found["lost"] == found["ended twice"] == 0


def account(sql: psycopg.Connection, log: Path) -> dict[str, int]:
    """Compare the rows of the database with the log of the tasks. Returns the counts."""
    assert row(sql, "select count(*) from horsies.tasks") == (0,)
    begun = Counter(note.number for note in notes(log) if note.what == "begins")
    done = Counter(note.number for note in notes(log) if note.what == "ends")
    rows = sql.execute(
        "select (args->>'number')::integer, status, error_code, attempts, retry_for is not null, "
        "coalesce(cardinality(failed_attempts), 0) from horsies.finished"
    ).fetchall()
    for number, status, code, attempts, may_retry, failures in rows:
        assert begun[number] <= attempts, f"{number} ran more often than it was counted"
        if status == "COMPLETED":
            assert done[number] >= 1
            assert failures == attempts - 1
        else:
            # Only a task that may not run again may end by a crash, and it has run at most once.
            assert (status, code, may_retry, attempts) == ("FAILED", "WORKER_CRASHED", False, 1)
    endings = Counter(number for number, *_ in rows)
    return {
        "completed": sum(status == "COMPLETED" for _, status, *_ in rows),
        "of these after a crash": sum(status == "COMPLETED" and failures > 0 for _, status, *_, failures in rows),
        "failed as their policy says": sum(status == "FAILED" for _, status, *_ in rows),
        "lost": TASKS - len(endings),
        "ended twice": sum(count > 1 for count in endings.values()),
    }
