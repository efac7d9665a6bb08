"""A worker that is told to stop: politely, twice, or not at all."""

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column, row
from tests.fixtures.workers import StartWorker, Worker
from tests.worker.steps import (
    PATIENCE_MS,
    begun,
    insert,
    insert_lines,
    numbers,
    statuses,
    wait_until_ended,
    warm_up,
)


def workers_rows(sql: psycopg.Connection) -> list[object]:
    return column(sql, "select id::text from horsies.workers")


@pytest.mark.promise("W10")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_worker_leaves_at_once_and_without_a_trace(
    worker: StartWorker, sql: psycopg.Connection, number: signal.Signals
) -> None:
    running = worker(processes=2)
    children = running.children()
    assert len(workers_rows(sql)) == 1
    running.signal(number)
    assert running.wait() == 0
    assert workers_rows(sql) == []
    assert not any(child.is_running() for child in children)
    running.wait_for_log("stopped$")


@pytest.mark.promise("W10")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("to_group", [False, True], ids=["to the worker", "to its whole group"])
def test_running_tasks_end_and_nothing_more_is_claimed(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, number: signal.Signals, *, to_group: bool
) -> None:
    running = worker(processes=2)
    door = tmp_path / "open"
    gates = [basic.gate.send(str(tmp_path / str(n)), str(door)) for n in range(2)]
    for n in range(2):
        begun(tmp_path / str(n))
    waiting = basic.echo.send("later")
    os.killpg(running.pid, number) if to_group else running.signal(number)
    running.wait_for_log("stopping: no more claims")
    door.touch()
    assert running.wait() == 0
    assert all(gate.get(PATIENCE_MS).is_ok() for gate in gates)
    assert row(sql, "select status, claim_no from horsies.tasks where id = %s", waiting.task_id) == ("PENDING", 0)
    assert workers_rows(sql) == []


@pytest.mark.promise("W10", "W9")
@pytest.mark.parametrize("prefetch", ["8", "auto"])
def test_what_has_not_begun_is_given_back_at_once(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, prefetch: str
) -> None:
    """Other workers need not wait until the slow task of this one has ended."""
    log, door = tmp_path / "log", tmp_path / "open"
    first = worker("tests.apps.tuned:app", processes=1, env={"HORSIES_TEST_PREFETCH": prefetch})
    warm_up(basic)
    with sql.transaction():
        gate = insert(sql, "gate", begun=str(tmp_path / "begun"), until=str(door))
        insert_lines(sql, log, 30)
    begun(tmp_path / "begun")
    first.signal(signal.SIGTERM)
    eventually(lambda: statuses(sql) == {"COMPLETED": 60, "RUNNING": 1, "PENDING": 30}, seen=lambda: statuses(sql))
    assert numbers(log) == []

    second = worker("tests.apps.tuned:app", processes=1, env={"HORSIES_TEST_PREFETCH": prefetch})
    eventually(lambda: len(numbers(log)) == 30)
    door.touch()
    assert first.wait() == 0
    wait_until_ended(sql, 91)
    assert sorted(numbers(log)) == list(range(30))
    assert row(sql, "select status, attempts from horsies.finished where id = %s", gate) == ("COMPLETED", 1)
    assert column(sql, "select distinct attempts from horsies.finished") == [1]
    assert second.terminate() == 0


@pytest.mark.promise("W10")
def test_a_second_signal_kills_what_runs_and_tells_its_waiters(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    running = worker(processes=2)
    gates = [basic.gate.send(str(tmp_path / str(n)), str(tmp_path / "never")) for n in range(2)]
    for n in range(2):
        begun(tmp_path / str(n))
    running.signal(signal.SIGTERM)
    running.wait_for_log("stopping")
    running.signal(signal.SIGTERM)
    running.wait_for_log("second signal")
    running.wait()
    for gate in gates:
        error = gate.get(PATIENCE_MS).err_value
        assert error.error_code == "WORKER_CRASHED"
        assert "SIGKILL" in error.message
    assert workers_rows(sql) == []


def test_a_thread_that_a_task_left_behind_does_not_hold_up_the_worker(
    worker: StartWorker, sql: psycopg.Connection
) -> None:
    running = worker("tests.apps.unruly:app", processes=1)
    insert(sql, "leave_a_thread")
    wait_until_ended(sql, 1)
    assert running.terminate() == 0


@pytest.mark.promise("W10")
def test_a_signal_while_the_children_are_starting_is_minded(worker: StartWorker, sql: psycopg.Connection) -> None:
    running = worker(processes=2, until_ready=False)
    running.wait_for_log("Concurrency config")
    eventually(lambda: workers_rows(sql))
    running.signal(signal.SIGTERM)
    assert running.wait() == 0
    assert workers_rows(sql) == []


# -- killed


@pytest.mark.promise("A8")
@pytest.mark.parametrize("name", ["hold_the_gil", "hash_for_hours"])
def test_no_child_survives_its_worker_not_even_in_c_code(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, name: str
) -> None:
    running = worker("tests.apps.unruly:app", processes=2)
    insert(sql, name, begun=str(tmp_path / "begun"))
    eventually((tmp_path / "begun").exists)
    assert_killed_with_all(running)


@pytest.mark.promise("W9")
@pytest.mark.parametrize("prefetch", ["0", "8", "auto"])
def test_a_killed_worker_s_tasks_stay_running_under_its_name(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, prefetch: str
) -> None:
    running = worker("tests.apps.tuned:app", processes=2, env={"HORSIES_TEST_PREFETCH": prefetch})
    ids = [insert(sql, "gate", begun=str(tmp_path / str(n)), until=str(tmp_path / "never")) for n in range(12)]
    for n in range(2):
        begun(tmp_path / str(n))
    (incarnation,) = workers_rows(sql)
    assert_killed_with_all(running)
    assert workers_rows(sql) == [incarnation]  # for whoever recovers them
    found = {str(task): status for task, status in sql.execute("select id::text, status from horsies.all_tasks")}
    assert sorted(found) == sorted(ids)  # nothing is lost
    assert [found[task] for task in ids[:2]] == ["RUNNING", "RUNNING"]
    owners = column(sql, "select distinct claimed_by::text from horsies.tasks where status <> 'PENDING'")
    assert owners == [incarnation]


def test_another_worker_leaves_the_dead_one_s_tasks_alone(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    first = worker(processes=1)
    gate = basic.gate.send(str(tmp_path / "begun"), str(tmp_path / "never"))
    begun(tmp_path / "begun")
    assert_killed_with_all(first)
    worker(processes=1)
    assert basic.add.send(1, 1).get(PATIENCE_MS).ok_value == 2
    assert gate.get(0).err_value.error_code == "WAIT_TIMEOUT"
    assert len(numbers(tmp_path / "begun")) == 1


def assert_killed_with_all(running: Worker) -> None:
    children = running.children()
    assert len(children) >= 1
    running.kill()
    gone, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []
    assert len(gone) == len(children)
