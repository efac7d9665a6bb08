"""Stopping a worker: with one signal, with more, or by a kill."""

import os
import re
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from click.testing import CliRunner

from horsies import OutcomeCode
from horsies.cli.main import main
from tests.fixtures.apps import load_fresh
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column, row
from tests.fixtures.workers import Program, StartWorker, Worker
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
def test_an_idle_worker_stops_at_once_and_deregisters(
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
    gate_file = tmp_path / "open"
    gates = [basic.gate.send(str(tmp_path / str(n)), str(gate_file)) for n in range(2)]
    for n in range(2):
        begun(tmp_path / str(n))
    waiting = basic.echo.send("later")
    os.killpg(running.pid, number) if to_group else running.signal(number)
    running.wait_for_log("shutdown: claiming no more tasks")
    gate_file.touch()
    assert running.wait() == 0
    assert all(gate.get(PATIENCE_MS).is_ok() for gate in gates)
    assert row(sql, "select status, claim_no from horsies.tasks where id = %s", waiting.task_id) == ("PENDING", 0)
    assert workers_rows(sql) == []


@pytest.mark.promise("W10", "W9")
@pytest.mark.parametrize("prefetch", ["8", "auto"])
def test_tasks_that_have_not_begun_are_released_at_once(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, prefetch: str
) -> None:
    """Other workers need not wait until the slow task of this one has ended."""
    log, gate_file = tmp_path / "log", tmp_path / "open"
    first = worker("tests.apps.tuned:app", processes=1, env={"HORSIES_TEST_PREFETCH": prefetch})
    warm_up(basic)
    with sql.transaction():
        gate = insert(sql, "gate", begun=str(tmp_path / "begun"), until=str(gate_file))
        insert_lines(sql, log, 30)
    begun(tmp_path / "begun")
    first.signal(signal.SIGTERM)
    eventually(lambda: statuses(sql) == {"COMPLETED": 60, "RUNNING": 1, "PENDING": 30}, seen=lambda: statuses(sql))
    assert numbers(log) == []

    second = worker("tests.apps.tuned:app", processes=1, env={"HORSIES_TEST_PREFETCH": prefetch})
    eventually(lambda: len(numbers(log)) == 30)
    gate_file.touch()
    assert first.wait() == 0
    wait_until_ended(sql, 91)
    assert sorted(numbers(log)) == list(range(30))
    assert row(sql, "select status, attempts from horsies.finished where id = %s", gate) == ("COMPLETED", 1)
    assert column(sql, "select distinct attempts from horsies.finished") == [1]
    assert second.terminate() == 0


# -- tasks that do not end in time


@pytest.fixture
def departing(database: str, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    """The app of `tests/apps/departing.py` as a producer."""
    monkeypatch.setenv("HORSIES_DATABASE_URL", database)
    module = load_fresh("departing")
    yield module
    module.app.close()


DEPARTING = "tests.apps.departing:app"


@pytest.mark.promise("W10")
def test_a_second_signal_interrupts_running_tasks_and_notifies_their_waiters(
    departing: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    running = worker(DEPARTING, processes=2)
    gates = [departing.gate_plain.send(str(tmp_path / str(n)), str(tmp_path / "never")) for n in range(2)]
    for n in range(2):
        begun(tmp_path / str(n))
    running.signal(signal.SIGTERM)
    running.wait_for_log("shutdown: claiming no more")
    running.signal(signal.SIGTERM)
    assert running.wait() == 3
    for gate in gates:
        error = gate.get(PATIENCE_MS).err_value
        assert error.error_code == "INTERRUPTED"
        assert "its worker was stopped" in error.message
    assert workers_rows(sql) == []
    assert not any("another takes its place" in line for line in running.logs)  # no child had to be killed


@pytest.mark.promise("W10")
def test_a_third_signal_kills_tasks_that_do_not_stop(
    departing: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """The grace is five minutes: it is the signal that ends it."""
    running = worker(DEPARTING, processes=1, env={"HORSIES_TEST_GRACE_MS": "300000"})
    handle = send_stubborn(departing, tmp_path)
    running.signal(signal.SIGTERM)
    running.wait_for_log("shutdown: claiming no more")
    running.signal(signal.SIGTERM)
    eventually((tmp_path / "asked").exists)
    assert running.process.poll() is None
    running.signal(signal.SIGTERM)
    assert running.wait() == 3
    assert handle.info().status == "PENDING"
    assert workers_rows(sql) == []


def send_stubborn(departing: Any, folder: Path) -> Any:
    handle = departing.stubborn.send(str(folder / "begun"), str(folder / "open"), str(folder / "asked"))
    begun(folder / "begun")
    return handle


@pytest.mark.promise("W10")
def test_the_shutdown_timeout_interrupts_without_a_second_signal(
    departing: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    running = worker(DEPARTING, processes=1, options=("--shutdown-timeout=0.2",))
    gate = departing.gate_plain.send(str(tmp_path / "begun"), str(tmp_path / "never"))
    begun(tmp_path / "begun")
    assert running.terminate() == 3
    running.wait_for_log(r"shutdown timeout \(0.2 s\) reached with tasks still running")
    running.wait_for_log(r"INFO .*task gate_plain: INTERRUPTED while running, because its worker is stopping")
    assert not any("WARNING" in line and "gate_plain" in line for line in running.logs if "shutdown: " not in line)
    assert gate.get(PATIENCE_MS).err_value.error_code == "INTERRUPTED"
    assert workers_rows(sql) == []


@pytest.mark.promise("W10")
def test_a_task_that_ends_within_the_shutdown_timeout_is_not_interrupted(
    departing: Any, worker: StartWorker, tmp_path: Path
) -> None:
    running = worker(DEPARTING, processes=1, options=("--shutdown-timeout=300",))
    gate = departing.gate_plain.send(str(tmp_path / "begun"), str(tmp_path / "open"))
    pid = begun(tmp_path / "begun")
    running.signal(signal.SIGTERM)
    running.wait_for_log("shutdown: claiming no more")
    (tmp_path / "open").touch()
    assert running.wait() == 0
    assert gate.get(PATIENCE_MS).ok_value == pid


@pytest.mark.promise("D4", "W10")
def test_a_task_that_ignores_the_soft_stop_is_killed_after_its_grace_period(
    departing: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    running = worker(DEPARTING, processes=1, options=("--shutdown-timeout=0",), env={"HORSIES_TEST_GRACE_MS": "200"})
    handle = send_stubborn(departing, tmp_path)
    assert running.terminate() == 3
    assert (tmp_path / "asked").exists()  # it was asked first
    assert (handle.info().status, handle.info().attempts) == ("PENDING", 0)
    assert row(sql, "select failed_attempts[1]->>'error_code' from horsies.tasks") == ("INTERRUPTED",)


@pytest.mark.promise("D4", "W10")
def test_a_task_that_ends_with_a_result_when_it_is_interrupted_keeps_it(
    departing: Any, worker: StartWorker, tmp_path: Path
) -> None:
    running = worker(DEPARTING, processes=1, options=("--shutdown-timeout=0",))
    handle = departing.finish_early.send(str(tmp_path / "begun"))
    begun(tmp_path / "begun")
    assert running.terminate() == 3
    assert handle.get(PATIENCE_MS).ok_value == "as far as I got"


@pytest.mark.promise("D4", "W10", "T1")
@pytest.mark.parametrize("name", ["gate_again", "gate_not_again"], ids=["for crashes", "for something else"])
@pytest.mark.parametrize("concurrency", [1, 2])
def test_an_interrupted_task_with_a_retry_policy_is_released_uncounted(
    departing: Any, worker: StartWorker, tmp_path: Path, name: str, concurrency: int
) -> None:
    """Whatever the policy lists: a deploy is not the task's fault."""
    options = ("--shutdown-timeout=0", f"--concurrency={concurrency}")
    first = worker(DEPARTING, processes=1, options=options)
    handle = getattr(departing, name).send(str(tmp_path / "begun"), str(tmp_path / "open"))
    begun(tmp_path / "begun")
    assert first.terminate() == 3
    info = handle.info()
    assert (info.status, info.attempts, list(info.failed_attempts), info.worker) == ("PENDING", 0, [], None)
    (tmp_path / "open").touch()
    worker(DEPARTING, processes=1)
    assert handle.get(PATIENCE_MS).is_ok()
    assert handle.info().attempts == 1


@pytest.mark.promise("D4", "W10", "T1")
@pytest.mark.parametrize(
    ("name", "attempts"), [("gate_plain", 0), ("gate_again", 2)], ids=["no policy", "no retries left"]
)
def test_an_interrupted_task_that_may_not_run_again_ends_as_interrupted(
    departing: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, name: str, attempts: int
) -> None:
    handle = getattr(departing, name).send(str(tmp_path / "begun"), str(tmp_path / "never"))
    sql.execute("update horsies.tasks set attempts = %s", [attempts])
    running = worker(DEPARTING, processes=1, options=("--shutdown-timeout=0",))
    begun(tmp_path / "begun")
    assert running.terminate() == 3
    assert handle.get(PATIENCE_MS).err_value.error_code == OutcomeCode.INTERRUPTED
    assert handle.info().attempts == attempts + 1


@pytest.mark.promise("D4", "W8")
@pytest.mark.parametrize("signals", [0, 1], ids=["before it is asked to stop", "while it waits"])
def test_a_task_that_crashes_in_a_worker_that_stops_has_crashed(
    departing: Any, worker: StartWorker, tmp_path: Path, signals: int
) -> None:
    running = worker(DEPARTING, processes=2)
    handle = departing.gate_plain.send(str(tmp_path / "begun"), str(tmp_path / "never"))
    pid = begun(tmp_path / "begun")
    for _ in range(signals):
        running.signal(signal.SIGTERM)
        running.wait_for_log("shutdown: claiming no more")
    os.kill(pid, signal.SIGKILL)
    assert handle.get(PATIENCE_MS).err_value.error_code == "WORKER_CRASHED"
    assert running.terminate() == 0


@pytest.mark.promise("D4", "W9")
def test_the_crash_of_a_task_in_a_worker_that_stops_is_an_attempt(
    departing: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    running = worker(DEPARTING, processes=1)
    departing.gate_again.send(str(tmp_path / "begun"), str(tmp_path / "never"))
    pid = begun(tmp_path / "begun")
    running.signal(signal.SIGTERM)
    running.wait_for_log("shutdown: claiming no more")
    os.kill(pid, signal.SIGKILL)
    assert running.wait() == 0
    attempt = row(sql, "select status, attempts, failed_attempts[1]->>'error_code' from horsies.tasks")
    assert attempt == ("PENDING", 1, "WORKER_CRASHED")


@pytest.mark.promise("D4")
def test_a_task_that_was_cancelled_before_it_is_interrupted_ends_as_cancelled(
    departing: Any, worker: StartWorker, tmp_path: Path
) -> None:
    """It ignores the cancellation, and its grace period ends before that of the worker. It has a retry policy, and does not run again."""
    running = worker(DEPARTING, processes=1, env={"HORSIES_TEST_GRACE_MS": "300000"})
    handle = send_stubborn(departing, tmp_path)
    handle.cancel()
    eventually((tmp_path / "asked").exists)
    running.signal(signal.SIGTERM)
    running.wait_for_log("shutdown: claiming no more")
    running.signal(signal.SIGTERM)
    running.wait_for_log("interrupting")
    running.signal(signal.SIGTERM)
    running.wait()
    assert (handle.info().status, handle.get(PATIENCE_MS).err_value.error_code) == ("CANCELLED", "TASK_CANCELLED")


# -- logs


def test_a_stopping_worker_logs_at_once_what_it_waits_for_and_how_long(
    departing: Any, worker: StartWorker, tmp_path: Path
) -> None:
    running = worker(DEPARTING, processes=5, options=("--shutdown-timeout=300",))
    handles = [departing.gate_plain.send(str(tmp_path / str(n)), str(tmp_path / "open")) for n in range(5)]
    for n in range(5):
        begun(tmp_path / str(n))
    running.signal(signal.SIGTERM)
    running_tasks = running.wait_for_log(
        "shutdown: claiming no more tasks, waiting up to 300 s for 5 tasks to end: (.*)"
    )[1]
    assert len(re.findall(r"gate_plain \(\S{36}, running for [^)]+\)", running_tasks)) == 3
    assert running_tasks.endswith(" and 2 more")
    (tmp_path / "open").touch()
    assert all(handle.get(PATIENCE_MS).is_ok() for handle in handles)
    assert running.wait() == 0


def test_a_worker_without_a_shutdown_timeout_logs_that_it_waits_without_a_limit(
    departing: Any, worker: StartWorker, tmp_path: Path
) -> None:
    running = worker(DEPARTING, processes=1)
    departing.gate_plain.send(str(tmp_path / "begun"), str(tmp_path / "open"))
    begun(tmp_path / "begun")
    running.signal(signal.SIGTERM)
    running.wait_for_log(
        "shutdown: claiming no more tasks, waiting without a time limit for 1 task to end: gate_plain "
    )
    (tmp_path / "open").touch()
    assert running.wait() == 0


def test_an_idle_worker_logs_that_nothing_runs(worker: StartWorker) -> None:
    running = worker()
    assert running.terminate() == 0
    running.wait_for_log("shutdown: claiming no more tasks, no task is running")


@pytest.mark.promise("D4")
def test_the_shutdown_timeout_is_read_from_the_environment_unless_the_flag_is_given(
    departing: Any, worker: StartWorker, tmp_path: Path
) -> None:
    env = {"HORSIES_SHUTDOWN_TIMEOUT": "0.2"}
    first = worker(DEPARTING, processes=1, env=env)
    handle = departing.gate_again.send(str(tmp_path / "begun"), str(tmp_path / "open"))
    begun(tmp_path / "begun")
    assert first.terminate() == 3
    second = worker(DEPARTING, processes=1, env=env, options=("--shutdown-timeout=300",))
    eventually(lambda: len(numbers(tmp_path / "begun")) == 2)
    second.signal(signal.SIGTERM)
    second.wait_for_log("waiting up to 300 s for 1 task")
    (tmp_path / "open").touch()
    assert second.wait() == 0
    assert handle.get(PATIENCE_MS).is_ok()


@pytest.mark.parametrize("seconds", ["soon", "-1", "nan", "inf", "86401"])
@pytest.mark.parametrize("by", ["flag", "variable"])
def test_an_invalid_shutdown_timeout_is_wrong_usage(seconds: str, by: str) -> None:
    words = ["worker", "tests.apps.departing:app", *([f"--shutdown-timeout={seconds}"] if by == "flag" else [])]
    result = CliRunner().invoke(main, words, env={"HORSIES_SHUTDOWN_TIMEOUT": seconds} if by == "variable" else {})
    assert result.exit_code == 2
    assert "Invalid value for '--shutdown-timeout' (env var: 'HORSIES_SHUTDOWN_TIMEOUT')" in result.stderr


@pytest.mark.promise("W10")
def test_an_interrupted_task_is_taken_over_by_another_worker_at_once(
    departing: Any, worker: StartWorker, tmp_path: Path
) -> None:
    """The second worker sleeps until it is notified: its own poll comes far later than the test waits."""
    first = worker(DEPARTING, processes=1, options=("--shutdown-timeout=0",))
    handle = departing.gate_again.send(str(tmp_path / "begun"), str(tmp_path / "open"))
    begun(tmp_path / "begun")
    worker(DEPARTING, processes=1)
    assert first.terminate() == 3
    eventually(lambda: len(numbers(tmp_path / "begun")) == 2)
    (tmp_path / "open").touch()
    assert handle.get(PATIENCE_MS).is_ok()


def test_a_thread_that_outlives_its_task_does_not_delay_the_worker(
    worker: StartWorker, sql: psycopg.Connection
) -> None:
    running = worker("tests.apps.unruly:app", processes=1)
    insert(sql, "leave_a_thread")
    wait_until_ended(sql, 1)
    assert running.terminate() == 0


@pytest.mark.promise("W10")
def test_a_signal_while_the_children_are_starting_stops_the_worker(
    worker: StartWorker, sql: psycopg.Connection
) -> None:
    running = worker(processes=2, until_ready=False)
    running.wait_for_log("Concurrency config")
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
def test_tasks_of_a_killed_worker_stay_running_with_their_owner(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, prefetch: str
) -> None:
    running = worker("tests.apps.tuned:app", processes=2, env={"HORSIES_TEST_PREFETCH": prefetch})
    ids = [insert(sql, "gate", begun=str(tmp_path / str(n)), until=str(tmp_path / "never")) for n in range(12)]
    for n in range(2):
        begun(tmp_path / str(n))
    (incarnation,) = workers_rows(sql)
    assert_killed_with_all(running)
    assert workers_rows(sql) == [incarnation]  # so that they can be rescued
    found = {str(task): status for task, status in sql.execute("select id::text, status from horsies.all_tasks")}
    assert sorted(found) == sorted(ids)  # nothing is lost
    assert [found[task] for task in ids[:2]] == ["RUNNING", "RUNNING"]
    owners = column(sql, "select distinct claimed_by::text from horsies.tasks where status <> 'PENDING'")
    assert owners == [incarnation]


@pytest.mark.promise("W9", "T2")
def test_tasks_of_a_dead_worker_are_not_touched_before_it_is_declared_dead(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """Another worker serves the queue, but does not end them before the leader has declared the first one dead."""
    first = worker(processes=1)
    gate = basic.gate.send(str(tmp_path / "begun"), str(tmp_path / "never"))
    begun(tmp_path / "begun")
    (incarnation,) = workers_rows(sql)
    assert_killed_with_all(first)
    second = worker(processes=1)
    assert basic.add.send(1, 1).get(PATIENCE_MS).ok_value == 2
    status = gate.info().status
    if incarnation in workers_rows(sql):  # read later: it was not declared dead before
        assert status == "RUNNING"
    error = gate.get(30_000).err_value
    second.wait_for_log(f"worker {incarnation} declared dead")
    assert error.error_code == "WORKER_CRASHED"
    assert str(incarnation) in error.message
    assert len(numbers(tmp_path / "begun")) == 1
    assert incarnation not in workers_rows(sql)


def assert_killed_with_all(running: Worker) -> None:
    children = running.children()
    assert len(children) >= 1
    running.kill()
    gone, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []
    assert len(gone) == len(children)


TOLD_AT_LAST = """
import atexit, os, signal
from horsies import Horsies, TaskError, TaskResult

app = Horsies()

@app.task("nothing")
def nothing() -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)

@atexit.register
def signal_once_more():
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
"""


@pytest.mark.promise("W10")
@pytest.mark.parametrize("command", ["worker", "scheduler"])
@pytest.mark.parametrize("is_up", [True, False], ids=["serving", "waiting for the database"])
def test_a_signal_at_the_last_moment_does_not_change_the_exit_code(
    database: str, tmp_path: Path, command: str, *, is_up: bool
) -> None:
    (tmp_path / "late.py").write_text(TOLD_AT_LAST)
    url = database if is_up else "postgresql://nobody@127.0.0.1:1/nothing"
    program = Program(command, "late:app", env={"HORSIES_DATABASE_URL": url}, cwd=tmp_path)
    try:
        program.wait_for_log("is ready" if is_up else "could not|connection|retry")
        assert program.terminate() == 0
    finally:
        program.close()


@pytest.mark.promise("W10")
def test_a_worker_whose_children_hang_in_an_import_stops_at_once(worker: StartWorker, tmp_path: Path) -> None:
    app, reached = tmp_path / "hanging.py", tmp_path / "reached"
    hang = f"import sys, time\nif 'horsies/executor' in sys.argv[0]:\n    open({str(reached)!r}, 'w')\n    time.sleep(600)\n"
    app.write_text(f"from tests.apps.basic import app\n{hang}")
    running = worker(f"{app}:app", until_ready=False)
    eventually(reached.exists, what="its child imports the app")
    assert running.terminate(10.0) == 0
    running.wait_for_log("stopped: asked to stop before its children were ready")
