"""What makes a worker claim: notifications, and polling in case they are lost."""

import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column, row
from tests.fixtures.workers import StartWorker
from tests.worker.steps import PATIENCE_MS, insert, insert_lines, numbers, statuses, wait_until_ended

NEVER_POLLS = {"HORSIES_TEST_POLL_MS": "300000"}
POLLS = {"HORSIES_TEST_POLL_MS": "1000"}


def wait_until_idle(sql: psycopg.Connection) -> None:
    """Wait until its sessions are idle and only a notification would make it claim."""
    idle = (
        "select count(*) filter (where state <> 'idle') = 0 and count(*) > 2 from pg_stat_activity "
        "where datname = current_database() and application_name like 'horsies%%'"
    )
    eventually(lambda: row(sql, idle) == (True,))


@pytest.mark.promise("A7")
def test_a_row_inserted_with_sql_wakes_the_worker(worker: StartWorker, sql: psycopg.Connection) -> None:
    worker("tests.apps.tuned:app", env=NEVER_POLLS)
    wait_until_idle(sql)
    began = time.monotonic()
    insert(sql, "add", left=1, right=2)
    wait_until_ended(sql, 1)
    assert row(sql, "select status, result::text from horsies.finished") == ("COMPLETED", "3")
    assert time.monotonic() - began < 30  # far below the poll interval of this worker


@pytest.mark.promise("A7")
def test_rows_that_commit_late_are_found_behind_younger_ones(
    worker: StartWorker, sql: psycopg.Connection, database: str, tmp_path: Path
) -> None:
    """They are ordered by when they were sent, which is before what has been claimed since then."""
    log = tmp_path / "log"
    worker("tests.apps.tuned:app", env=NEVER_POLLS)
    with psycopg.connect(database) as late:
        insert_lines(late, log, 1, first=1000)  # its time is set now, but it is not visible yet
        insert_lines(sql, log, 20)
        wait_until_ended(sql, 20)
        wait_until_idle(sql)
    wait_until_ended(sql, 21)
    assert numbers(log)[-1] == 1000


@pytest.mark.promise("W12")
def test_without_the_trigger_tasks_are_found_by_polling(worker: StartWorker, sql: psycopg.Connection) -> None:
    worker("tests.apps.tuned:app", env=POLLS)
    sql.execute("drop trigger tasks_notify_new on horsies.tasks")
    wait_until_idle(sql)
    insert(sql, "add", left=1, right=2)
    wait_until_ended(sql, 1, timeout_s=10)


@pytest.mark.promise("W12")
def test_a_listener_that_loses_its_connection_reconnects(worker: StartWorker, sql: psycopg.Connection) -> None:
    """Without polling: tasks sent while it is disconnected are found when it has reconnected, and later ones are announced."""
    worker("tests.apps.tuned:app", env=NEVER_POLLS)
    wait_until_idle(sql)
    cut = "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = 'horsies listener'"
    assert row(sql, cut) == (True,)
    insert(sql, "add", left=1, right=2)
    wait_until_ended(sql, 1)
    insert(sql, "add", left=3, right=4)
    wait_until_ended(sql, 2)


def test_released_tasks_are_found_by_another_worker(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """The first worker holds a full buffer; when it stops, the second, which never polls, is notified."""
    first = worker("tests.apps.tuned:app", env={**NEVER_POLLS, "HORSIES_TEST_PREFETCH": "20"})
    gate = basic.gate.send(str(tmp_path / "begun"), str(tmp_path / "open"))
    eventually((tmp_path / "begun").exists)
    log = tmp_path / "log"
    insert_lines(sql, log, 10)
    eventually(lambda: statuses(sql)["CLAIMED"] == 10)
    worker("tests.apps.tuned:app", env=NEVER_POLLS)
    wait_until_idle(sql)
    first.process.terminate()
    eventually(lambda: len(numbers(log)) == 10)
    (tmp_path / "open").touch()
    assert gate.get(PATIENCE_MS).is_ok()
    assert first.wait() == 0


@pytest.mark.promise("C14")
def test_a_buffered_claim_is_released_before_its_lease_expires(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """What waits behind a slow task is released before another worker would have to take it."""
    env = {**NEVER_POLLS, "HORSIES_TEST_PREFETCH": "5", "HORSIES_TEST_LEASE_MS": "1000"}
    worker("tests.apps.tuned:app", env=env)
    insert(sql, "gate", begun=str(tmp_path / "begun"), until=str(tmp_path / "open"))
    eventually((tmp_path / "begun").exists)
    log = tmp_path / "log"
    insert_lines(sql, log, 3)
    # Released and claimed again, several times; always in time.
    eventually(
        lambda: (
            min([int(str(n)) for n in column(sql, "select claim_no from horsies.tasks where task_name = 'write_line'")])
            >= 2
        )
    )
    (tmp_path / "open").touch()
    wait_until_ended(sql, 4)
    assert sorted(numbers(log)) == [0, 1, 2]
