"""The database becomes unavailable while tasks run: nothing is lost, nothing runs twice, and the worker does not restart."""

import re
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

from horsies import AppConfig, Horsies
from horsies.embedded.server import EmbeddedServer
from tests.fixtures.apps import load_fresh
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column, row
from tests.fixtures.proxies import Proxy
from tests.fixtures.scratch_server import scratch_server
from tests.fixtures.workers import READY, StartWorker, Worker
from tests.recovery.steps import CLUSTER, settings
from tests.worker.steps import PATIENCE_MS, begun, finished, insert, insert_lines, numbers, statuses, wait_until_ended

MODES = ["0", "8", "auto"]


@pytest.mark.promise("W11")
@pytest.mark.parametrize("prefetch", MODES)
def test_results_arrive_when_the_connection_is_back(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, proxy: Proxy, tmp_path: Path, prefetch: str
) -> None:
    running = worker(
        "tests.apps.tuned:app", processes=2, env={"HORSIES_TEST_PREFETCH": prefetch}, database_url=proxy.url
    )
    gate_file, log = tmp_path / "open", tmp_path / "log"
    gates = [basic.gate.send(str(tmp_path / str(n)), str(gate_file)) for n in range(2)]
    pids = [begun(tmp_path / str(n)) for n in range(2)]
    insert_lines(sql, log, 20)
    proxy.cut()
    gate_file.touch()  # both end while the results cannot be saved
    running.wait_for_log("database unavailable")
    proxy.heal()
    assert [gate.get(PATIENCE_MS).ok_value for gate in gates] == pids
    assert wait_until_ended(sql, 22) == {"COMPLETED": 22}
    assert sorted(numbers(log)) == list(range(20))
    assert [len(numbers(tmp_path / str(n))) for n in range(2)] == [1, 1]
    running.wait_for_log("database available again")
    assert len(column(sql, "select id from horsies.workers")) == 1


@pytest.mark.promise("W11")
def test_sessions_terminated_again_and_again_lose_nothing(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    worker("tests.apps.tuned:app", processes=2, env={"HORSIES_TEST_PREFETCH": "auto"})
    end_all = (
        "select count(pg_terminate_backend(pid)) from pg_stat_activity "
        "where datname = current_database() and application_name like 'horsies%%'"
    )
    for round_number in range(4):
        before = len(numbers(log))
        insert_lines(sql, log, 150, first=150 * round_number)
        eventually(lambda before=before: len(numbers(log)) > before)
        row(sql, end_all)
    assert wait_until_ended(sql, 600) == {"COMPLETED": 600}
    assert sorted(numbers(log)) == list(range(600))


@pytest.mark.promise("W11", "W13")
def test_a_worker_with_limited_retries_gives_up_with_its_own_exit_code(
    basic: Any, worker: StartWorker, proxy: Proxy, sql: psycopg.Connection, tmp_path: Path
) -> None:
    running = worker("tests.apps.tuned:app", processes=1, env={"HORSIES_TEST_ATTEMPTS": "2"}, database_url=proxy.url)
    basic.gate.send(str(tmp_path / "begun"), str(tmp_path / "open"))
    begun(tmp_path / "begun")
    proxy.cut()
    (tmp_path / "open").touch()
    assert running.wait() == 4
    running.wait_for_log("ERROR.*gave up after 2 failed attempts")
    running_said = "\n".join(running.logs)
    assert "Traceback" not in running_said
    assert statuses(sql) == {"RUNNING": 1}


@pytest.mark.promise("W13")
def test_pauses_grow_during_an_outage_and_start_again_in_the_next(
    worker: StartWorker, proxy: Proxy, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """Each within a quarter of 0.1, 0.2, 0.4 and 0.8 s, which is the longest; the log has them in tenths."""
    env = settings(resilience={"db_retry_initial_ms": 100, "db_retry_max_ms": 800, "db_retry_max_attempts": 20})
    running = worker(CLUSTER, env=env, database_url=proxy.url)
    for outage in range(2):
        before = len(running.logs)
        proxy.cut()
        insert_lines(sql, tmp_path / "log", 1, first=outage)
        eventually(lambda before=before: len(logged_pauses(running, before)) >= 5, what="five attempts have failed")
        pauses = logged_pauses(running, before)
        assert pauses[0] <= 0.1
        assert 0.1 <= pauses[1] <= 0.3
        assert 0.3 <= pauses[2] <= 0.5
        assert 0.6 <= min(pauses[3:]) <= max(pauses[3:]) <= 0.8
        proxy.heal()
        eventually(lambda outage=outage: finished(sql) == (outage + 1,), what="its result is stored")
        running.wait_for_log("database available again", after=before)
    assert running.terminate() == 0


def logged_pauses(running: Worker, after: int) -> list[float]:
    found = re.findall(r"database unavailable, retrying in (\S+) s", "\n".join(running.logs[after:]))
    return [float(pause) for pause in found]


@pytest.mark.promise("W11")
def test_a_worker_waits_for_a_database_that_does_not_exist_yet(
    basic: Any, worker: StartWorker, proxy: Proxy, sql: psycopg.Connection
) -> None:
    proxy.cut()
    running = worker("tests.apps.tuned:app", processes=1, database_url=proxy.url, until_ready=False)
    running.wait_for_log("WARNING.*database unavailable, retrying in")
    proxy.heal()
    running.wait_for_log(READY)
    assert basic.add.send(1, 1).get(PATIENCE_MS).ok_value == 2


@pytest.mark.promise("W10", "W11")
def test_a_worker_asked_to_stop_during_an_outage_saves_its_results_first(
    basic: Any, worker: StartWorker, proxy: Proxy, sql: psycopg.Connection, tmp_path: Path
) -> None:
    running = worker("tests.apps.tuned:app", processes=1, database_url=proxy.url)
    gate = basic.gate.send(str(tmp_path / "begun"), str(tmp_path / "open"))
    pid = begun(tmp_path / "begun")
    proxy.cut()
    (tmp_path / "open").touch()
    running.wait_for_log("database unavailable")
    running.process.terminate()
    running.wait_for_log("shutdown: claiming no more")
    proxy.heal()
    assert running.wait() == 0
    assert gate.get(PATIENCE_MS).ok_value == pid
    assert column(sql, "select id from horsies.workers") == []


# -- a server that is restarted


@pytest.fixture
def own_server() -> Generator[EmbeddedServer]:
    """Start a server for this test. The server of the whole run cannot be stopped, because other tests use it."""
    with scratch_server(settings={"fsync": "off"}) as server:
        yield server


@pytest.mark.promise("W11")
def test_a_worker_survives_a_restart_of_the_server(own_server: EmbeddedServer, tmp_path: Path) -> None:
    url, log, gate_file = own_server.url(), tmp_path / "log", tmp_path / "open"
    app = Horsies(AppConfig.for_database_url(url))
    for task in load_fresh("basic").app.tasks.values():
        app.task(task.name)(task.function)
    tasks: Mapping[str, Any] = app.tasks
    env = {"HORSIES_DATABASE_URL": url, "HORSIES_TEST_PREFETCH": "auto"}
    running = Worker("tests.apps.tuned:app", processes=2, options=(), env=env)
    try:
        running.wait_for_log(READY)
        gate = tasks["gate"].send(str(tmp_path / "begun"), str(gate_file))
        pid = begun(tmp_path / "begun")
        with psycopg.connect(url, autocommit=True) as sql:
            insert_lines(sql, log, 500)
        own_server.restart()
        gate_file.touch()
        assert gate.get(PATIENCE_MS).ok_value == pid
        assert tasks["add"].send(1, 1).get(PATIENCE_MS).ok_value == 2
        with psycopg.connect(url, autocommit=True) as sql:
            insert(sql, "add", left=1, right=1)
            assert wait_until_ended(sql, 503) == {"COMPLETED": 503}
        assert sorted(numbers(log)) == list(range(500))
        assert running.terminate() == 0
    finally:
        app.close()
        running.close()
