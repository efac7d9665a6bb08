"""What tasks with `keep_logs=True` log is stored with the attempt that has logged it, within bounds, and never at the expense of the task."""

import logging
import signal
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from horsies import AppConfig, Horsies, TaskError, TaskResult
from horsies.model.attempt_log import FIRST_LINES, MAX_LINE, MAX_LINES
from horsies.ops import AttemptLog, AttemptOutcome, LogLine
from horsies.testing import drain, open_sandbox
from tests.fixtures.apps import load_fresh
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column
from tests.fixtures.workers import StartWorker
from tests.worker.steps import PATIENCE_MS
from tests.worker.test_refusals import refuse

APP = "tests.apps.logging_tasks:app"
SEQUENTIAL, CONCURRENT = ("--concurrency=1",), ("--concurrency=8",)
each_way = pytest.mark.parametrize("options", [SEQUENTIAL, CONCURRENT], ids=["sequential", "concurrent"])


@pytest.fixture
def tasks(database: str, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    """`tests/apps/logging_tasks.py` as a producer."""
    monkeypatch.setenv("HORSIES_DATABASE_URL", database)
    module = load_fresh("logging_tasks")
    yield module
    module.app.close()


def logs_of(tasks: Any, handle: Any) -> Sequence[AttemptLog]:
    return tasks.app.ops.list_attempt_logs(handle.task_id, reveal=True)


def lines_of(tasks: Any, handle: Any) -> Sequence[LogLine]:
    """The lines of a task with one attempt."""
    (log,) = logs_of(tasks, handle)
    return log.lines


def said(lines: Sequence[LogLine]) -> list[str]:
    """What the task itself has logged."""
    return [line.message for line in lines if line.logger == "shop"]


@each_way
def test_lines_are_stored_with_their_own_attempt_only(
    worker: StartWorker, tasks: Any, options: tuple[str, ...]
) -> None:
    """Many at once, from coroutines, threads and asyncio tasks."""
    worker(APP, options=options)
    words = [[f"{number} {letter}" for letter in "abc"] for number in range(30)]
    plain = [tasks.say.send(each) for each in words]
    coroutines = [tasks.say_async.send(each, each[0]) for each in words]
    threads = [tasks.say_beside.send(each[0]) for each in words]
    for handle in (*plain, *coroutines, *threads):
        assert handle.get(PATIENCE_MS).is_ok()
    for each, one, two, three in zip(words, plain, coroutines, threads, strict=True):
        assert said(lines_of(tasks, one)) == each
        beside = [f"{each[0]} in a thread", f"{each[0]} in an asyncio task"]
        assert said(lines_of(tasks, two))[:3] == each
        assert sorted(said(lines_of(tasks, two))[3:]) == sorted(beside)
        assert sorted(said(lines_of(tasks, three))) == [each[0], f"{each[0]} with a context"]
        (first, *_) = lines_of(tasks, one)
        assert (first.number, first.level, first.exception) == (1, "INFO", None)
        assert first.at is not None


def test_a_task_without_keep_logs_stores_nothing(worker: StartWorker, tasks: Any, sql: psycopg.Connection) -> None:
    worker(APP)
    kept, dropped = tasks.say.send(["hello"]), tasks.quiet.send("hello")
    assert dropped.get(PATIENCE_MS).is_ok()
    assert kept.get(PATIENCE_MS).is_ok()
    assert column(sql, "select task_id::text from horsies.attempt_logs") == [kept.task_id]


def test_the_app_sets_the_default_and_a_task_may_differ() -> None:
    def work() -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)

    for default in (False, True):
        app = Horsies(AppConfig(keep_logs=default))
        assert app.task("a")(work).keeps_logs is default
        assert app.task("b", keep_logs=not default)(work).keeps_logs is not default


def test_an_attempt_that_logs_nothing_has_no_row(worker: StartWorker, tasks: Any, sql: psycopg.Connection) -> None:
    worker(APP)
    assert tasks.say.send([]).get(PATIENCE_MS).is_ok()
    assert column(sql, "select 1 from horsies.attempt_logs") == []


@each_way
def test_each_attempt_has_its_own_lines_and_the_warning_about_its_failure(
    worker: StartWorker, tasks: Any, options: tuple[str, ...]
) -> None:
    worker(APP, options=options)
    handle = tasks.fail_twice.send()
    assert handle.get(PATIENCE_MS).ok_value == 3
    logs = logs_of(tasks, handle)
    assert [(log.attempt, said(log.lines)) for log in logs] == [(n, [f"attempt {n}"]) for n in (1, 2, 3)]
    failure = logs[0].lines[-1]
    assert (failure.level, failure.logger) == ("WARNING", "horsies.executor")
    assert failure.exception is not None
    assert failure.exception.endswith("ValueError: no 1")
    view = tasks.app.ops.show_task(handle.task_id)
    assert [(each.claim_no, each.has_logs) for each in view.attempts] == [(log.claim_no, True) for log in logs]


def test_of_many_lines_the_first_and_the_newest_are_kept(worker: StartWorker, tasks: Any) -> None:
    worker(APP)
    many, large = tasks.flood.send(20_000, 1), tasks.flood.send(2_000, 2_000)
    for handle, count in ((many, 20_000), (large, 2_000)):
        assert handle.get(PATIENCE_MS).is_ok()
        (log,) = logs_of(tasks, handle)
        assert log.left_out == count - len(log.lines)
        assert len(log.lines) <= MAX_LINES
        assert sum(len(line.message.encode()) for line in log.lines) <= 128 * 1024
        assert [line.number for line in log.lines] == sorted({line.number for line in log.lines})
        assert all(line.message.startswith(f"{line.number} é") for line in log.lines)
        assert (log.lines[0].number, log.lines[-1].number) == (1, count)
    (log,) = logs_of(tasks, many)
    assert [line.number for line in log.lines] == [*range(1, FIRST_LINES + 1), *range(20_000 - 399, 20_001)]


def test_a_long_line_is_cut(worker: StartWorker, tasks: Any) -> None:
    worker(APP)
    handle = tasks.flood.send(1, 10_000)
    assert handle.get(PATIENCE_MS).is_ok()
    (line,) = lines_of(tasks, handle)
    assert (len(line.message), line.message[-2:]) == (MAX_LINE, "é…")


@each_way
def test_what_cannot_be_formatted_or_stored_breaks_neither_the_task_nor_its_log(
    worker: StartWorker, tasks: Any, options: tuple[str, ...]
) -> None:
    worker(APP, options=options)
    handle = tasks.hostile.send()
    assert handle.get(PATIENCE_MS).is_ok()
    lines = lines_of(tasks, handle)
    messages = [line.message for line in lines]
    assert messages[0] == "%d (its arguments could not be put in: TypeError)"
    assert messages[1:3] == [
        "<Hostile, which cannot be printed> (its arguments could not be put in: RuntimeError)",
        "%s (its arguments could not be put in: RuntimeError)",
    ]
    assert messages[3:6] == ["zero � and half of a pair ? and a word 🐎", "a text of a subclass", "odd"]
    failed = lines[messages.index("failed")]
    assert failed.exception is not None
    assert "ValueError: invalid literal for int()" in failed.exception
    assert lines[messages.index("without an exception")].exception is None
    assert messages[-1] == "last"


def test_lines_must_pass_the_level_of_their_logger(worker: StartWorker, tasks: Any) -> None:
    worker(APP, options=("--loglevel=WARNING",), until_ready=False)
    handle = tasks.levels.send()
    assert handle.get(PATIENCE_MS).is_ok()
    (line,) = lines_of(tasks, handle)
    assert (line.level, line.message) == ("WARNING", "warning")
    assert line.exception is not None
    assert line.exception.startswith("Stack (most recent call last)")


def test_a_task_that_configures_logging_keeps_its_lines_from_the_next_one_on(worker: StartWorker, tasks: Any) -> None:
    """`force=True` removes all handlers."""
    worker(APP)
    first = tasks.reconfigure.send("first")
    assert first.get(PATIENCE_MS).is_ok()
    assert said(lines_of(tasks, first)) == ["first before"]
    second = tasks.say.send(["second"])
    assert second.get(PATIENCE_MS).is_ok()
    assert said(lines_of(tasks, second)) == ["second"]


def test_a_thread_that_outlives_its_task_adds_to_no_attempt(
    worker: StartWorker, tasks: Any, tmp_path: Path, sql: psycopg.Connection
) -> None:
    worker(APP)
    handle = tasks.leave_thread.send(str(tmp_path))
    assert handle.get(PATIENCE_MS).is_ok()
    (tmp_path / "open").touch()
    eventually((tmp_path / "logged").exists, what="the thread has logged")
    later = tasks.say.send(["later"])
    assert later.get(PATIENCE_MS).is_ok()
    assert said(lines_of(tasks, handle)) == ["in time"]
    assert said(lines_of(tasks, later)) == ["later"]


# -- attempts that do not end by themselves


@each_way
def test_lines_of_a_task_that_ran_into_its_timeout_are_stored(
    worker: StartWorker, tasks: Any, options: tuple[str, ...]
) -> None:
    worker(APP, options=options)
    handle = tasks.wait.send()
    assert handle.get(PATIENCE_MS).err_value.error_code == "TASK_TIMEOUT"
    assert said(lines_of(tasks, handle))[0] == "still here"
    assert "ran longer than its timeout" in lines_of(tasks, handle)[-1].message


@each_way
def test_a_crashed_child_leaves_the_lines_that_it_has_sent(
    worker: StartWorker, tasks: Any, tmp_path: Path, options: tuple[str, ...]
) -> None:
    worker(APP, options=options)
    handle = tasks.die.send(str(tmp_path))
    eventually(lambda: handle.info().progress, what="the task has reported progress, after its line")
    (tmp_path / "open").touch()
    assert handle.get(PATIENCE_MS).is_ok()
    first, second = logs_of(tasks, handle)
    assert said(first.lines) == ["about to die"]
    assert said(second.lines) == ["alive"]
    view = tasks.app.ops.show_task(handle.task_id)
    assert view.attempts[0].outcome is AttemptOutcome.CRASHED


def test_lines_of_an_interrupted_attempt_are_stored(worker: StartWorker, tasks: Any, tmp_path: Path) -> None:
    first = worker(APP, options=("--shutdown-timeout=0",))
    handle = tasks.wait_for_gate.send(str(tmp_path))
    eventually((tmp_path / "begun").exists, what="the task has begun")
    assert first.terminate() == 3
    (log,) = logs_of(tasks, handle)
    assert said(log.lines) == ["waiting"]
    (tmp_path / "open").touch()
    worker(APP)
    assert handle.get(PATIENCE_MS).is_ok()
    assert [(log.attempt, said(log.lines)) for log in logs_of(tasks, handle)] == [(1, ["waiting"])] * 2


def test_a_worker_that_has_lost_its_task_stores_no_lines(
    worker: StartWorker, tasks: Any, tmp_path: Path, sql: psycopg.Connection
) -> None:
    """It was paused, and another one has the task by then."""
    zombie = worker(APP)
    handle = tasks.wait_for_gate.send(str(tmp_path))
    eventually((tmp_path / "begun").exists, what="the task has begun")
    zombie.signal(signal.SIGSTOP)
    try:
        (tmp_path / "begun").unlink()
        sql.execute("update horsies.workers set heartbeat_at = now() - interval '1 hour'")
        worker(APP)
        eventually((tmp_path / "begun").exists, 60, what="the task has begun again")
        held = column(sql, "select claim_no from horsies.tasks")
    finally:
        (tmp_path / "open").touch()
        zombie.signal(signal.SIGCONT)
    assert handle.get(PATIENCE_MS).is_ok()
    zombie.terminate()
    assert column(sql, "select claim_no from horsies.attempt_logs") == held


# -- the transaction


@pytest.mark.parametrize(
    "fault", ["store_logs:before:drop", "store_logs:after:drop", "commit_batch:after:drop", "store_logs:before:error"]
)
def test_a_lost_answer_or_an_error_neither_loses_the_ending_nor_stores_lines_twice(
    worker: StartWorker, tasks: Any, fault: str
) -> None:
    running = worker(APP, faults=fault)
    handles = [tasks.say.send([f"line {number}"]) for number in range(5)]
    for number, handle in enumerate(handles):
        assert handle.get(PATIENCE_MS).ok_value == 1
        assert [said(log.lines) for log in logs_of(tasks, handle)] in ([[f"line {number}"]], [])
    running.wait_for_log("planted fault")
    stored = sum(len(logs_of(tasks, handle)) for handle in handles)
    assert stored == 5


def test_lines_that_the_server_refuses_are_dropped_and_the_endings_stay(
    worker: StartWorker, tasks: Any, sql: psycopg.Connection
) -> None:
    refuse(sql, "attempt_logs", "insert", "new.records::text like '%refused%'")
    running = worker(APP)
    bad, good = tasks.say.send(["to be refused"]), tasks.say.send(["fine"])
    assert (bad.get(PATIENCE_MS).ok_value, good.get(PATIENCE_MS).ok_value) == (1, 1)
    assert logs_of(tasks, bad) == []
    assert said(lines_of(tasks, good)) == ["fine"]
    running.wait_for_log(f"result of task {bad.task_id}: storing it without its log lines: .*refused by a test")


def test_endings_are_stored_without_the_table(worker: StartWorker, tasks: Any, sql: psycopg.Connection) -> None:
    sql.execute("drop table horsies.attempt_logs")
    worker(APP)
    assert tasks.say.send(["lost"]).get(PATIENCE_MS).ok_value == 1
    retried = tasks.fail_twice.send()
    assert retried.get(PATIENCE_MS).ok_value == 3


# -- elsewhere


def test_a_drain_stores_them_too_and_leaves_no_handler(tasks: Any, database: str) -> None:
    before = list(logging.getLogger().handlers)
    with open_sandbox(tasks.app, database):
        handle = tasks.fail_twice.send()
        logging.getLogger("shop").setLevel("INFO")
        drain(retries="now")
        logs = tasks.app.ops.list_attempt_logs(handle.task_id)
    assert [said(log.lines) for log in logs] == [["attempt 1"], ["attempt 2"], ["attempt 3"]]
    assert logging.getLogger().handlers == before
