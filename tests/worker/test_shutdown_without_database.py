"""Stopping a worker while the database is unavailable: it waits as long as it may, and no longer."""

import signal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column, row
from tests.fixtures.proxies import Proxy
from tests.fixtures.workers import Program, StartWorker
from tests.worker.steps import begun

GAVE_UP = 4
IS_AT_REST = (
    "select coalesce(max(state_change) < clock_timestamp() - interval '1 s' and bool_and(state = 'idle'), false) "
    "from pg_stat_activity where datname = current_database() and application_name = 'horsies worker'"
)


@pytest.mark.promise("W10")
@pytest.mark.parametrize("fault", ["cut", "freeze"])
def test_a_worker_exits_after_its_shutdown_timeout_although_endings_cannot_be_saved(
    basic: Any, worker: StartWorker, proxy: Proxy, sql: psycopg.Connection, tmp_path: Path, fault: str
) -> None:
    running = worker("tests.apps.tuned:app", processes=1, options=("--shutdown-timeout=0.5",), database_url=proxy.url)
    task = basic.gate.send(str(tmp_path / "begun"), str(tmp_path / "never"))
    begun(tmp_path / "begun")
    getattr(proxy, fault)()
    running.signal(signal.SIGTERM)
    assert running.wait(40) == GAVE_UP
    # Its row says that it is alive, and the task is still its own: the leader finds both after its death.
    assert row(sql, "select status from horsies.tasks where id = %s", task.task_id) == ("RUNNING",)
    assert len(column(sql, "select id from horsies.workers")) == 1


@pytest.mark.promise("W10")
def test_a_third_signal_does_not_wait_for_the_database_either(
    basic: Any, worker: StartWorker, proxy: Proxy, tmp_path: Path
) -> None:
    running = worker("tests.apps.tuned:app", processes=1, database_url=proxy.url)
    basic.gate.send(str(tmp_path / "begun"), str(tmp_path / "never"))
    begun(tmp_path / "begun")
    proxy.cut()
    running.signal(signal.SIGTERM)
    running.wait_for_log("shutdown: claiming no more")
    running.signal(signal.SIGTERM)
    running.wait_for_log("interrupting running tasks")
    running.signal(signal.SIGTERM)
    assert running.wait(40) == GAVE_UP


@pytest.mark.promise("W10")
def test_an_idle_worker_exits_although_the_database_does_not_answer(
    worker: StartWorker, proxy: Proxy, sql: psycopg.Connection
) -> None:
    """A paused pooler answers no client, and nothing times out: deregistering is not worth the wait."""
    running = worker("tests.apps.tuned:app", processes=1, database_url=proxy.url)
    eventually(lambda: row(sql, IS_AT_REST)[0], what="no claim is in flight, for whose answer it would wait")
    proxy.freeze()
    assert running.terminate(40) == 0
    assert "never retrieved" not in "\n".join(running.logs)
    assert len(column(sql, "select id from horsies.workers")) == 1


@pytest.mark.promise("W10")
@pytest.mark.parametrize("fault", ["cut", "freeze"])
def test_a_worker_that_waits_for_its_registration_exits_at_the_first_signal(
    worker: StartWorker, proxy: Proxy, fault: str
) -> None:
    running = worker(
        "tests.apps.tuned:app",
        processes=1,
        database_url=proxy.url,
        faults="register_worker:before:drop",
        until_ready=False,
        env={"HORSIES_TEST_RETRY_MS": "500"},
    )
    running.wait_for_log("database unavailable")
    getattr(proxy, fault)()
    assert running.terminate(40) == 0
    assert "asked to stop before it was registered" in running.logs[-1]


@pytest.mark.promise("W9")
def test_a_claim_whose_result_was_lost_is_released_when_the_worker_stops(
    basic: Any, worker: StartWorker, sql: psycopg.Connection
) -> None:
    """It never began, so it must not end as crashed because of a clean stop."""
    running = worker("tests.apps.tuned:app", processes=1, faults="claim_from_watermarks:after:drop")
    assert basic.add.send(1, 1).get(10_000).ok_value == 2  # the first claims come from the start of the queue
    task = basic.add.send(1, 2)
    running.wait_for_log("planted fault")
    assert running.terminate() == 0
    other = worker("tests.apps.tuned:app", processes=1)
    assert task.get(20_000).ok_value == 3
    assert row(sql, "select attempts from horsies.finished where id = %s", task.task_id) == (1,)
    assert other.terminate() == 0


@pytest.mark.promise("W10", "W11")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("command", ["worker", "scheduler"])
def test_a_process_that_waits_for_its_database_exits_cleanly(command: str, number: signal.Signals) -> None:
    unreachable = {"HORSIES_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing"}
    program = Program(command, "tests.apps.plain:app", env=unreachable)
    program.wait_for_log("could not|connection|retry")
    program.signal(number)
    assert program.wait() == 0
    program.close()
