"""How a task ends, whatever its function does. One worker with one child runs all of these."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from horsies import AppConfig, Horsies
from tests.fixtures.apps import load_fresh
from tests.fixtures.journey import row
from tests.fixtures.server import DatabaseServer
from tests.fixtures.workers import READY, Worker

PATIENCE_MS = 20_000


@dataclass(frozen=True)
class OneChild:
    tasks: Mapping[str, Any]
    worker: Worker
    sql: psycopg.Connection

    def run_to_error(self, name: str, *args: object) -> Any:
        return self.tasks[name].send(*args).get(PATIENCE_MS).err_value

    def run_to_value(self, name: str, *args: object) -> Any:
        return self.tasks[name].send(*args).get(PATIENCE_MS).ok_value

    def insert(self, name: str, args: str) -> Any:
        """Insert a row with plain SQL, and return a handle of it."""
        (task_id,) = row(
            self.sql, "insert into horsies.tasks (task_name, args) values (%s, %s) returning id::text", name, args
        )
        handle = self.tasks["echo"].send(None)
        handle.task_id = task_id
        return handle


@pytest.fixture(scope="module")
def child_of_worker(server: DatabaseServer) -> Generator[OneChild]:
    """A worker with one child, and a producer."""
    name = server.create_migrated()
    app = Horsies(AppConfig.for_database_url(server.url(name)))
    for task in load_fresh("unruly").app.tasks.values():
        app.task(task.name)(task.function)
    env = {"HORSIES_DATABASE_URL": server.url(name)}
    worker = Worker("tests.apps.unruly:app", processes=1, options=(), env=env)
    try:
        worker.wait_for_log(READY)
        with psycopg.connect(server.url(name), autocommit=True) as sql:
            child_of_worker = OneChild(app.tasks, worker, sql)
            assert (
                child_of_worker.run_to_value("add", 1, 1) == 2
            )  # its threads exist before the first test checks for leaks
            yield child_of_worker
    finally:
        app.close()
        worker.close()
        server.drop(name)


# -- how it can end


@pytest.mark.promise("A3", "W6", "W7")
def test_a_good_value_is_stored_as_completed(child_of_worker: OneChild) -> None:
    handle = child_of_worker.tasks["add"].send(1, 2)
    assert handle.get(PATIENCE_MS).ok_value == 3
    found = row(
        child_of_worker.sql,
        "select status, result::text, error_code, attempts, claim_no, claimed_by is not null, "
        "sent_at <= claimed_at and claimed_at <= started_at and started_at <= finished_at "
        "from horsies.finished where id = %s",
        handle.task_id,
    )
    assert found == ("COMPLETED", "3", None, 1, 1, True, True)


@pytest.mark.promise("A6", "W7")
def test_a_returned_error_is_stored_as_failed_with_its_own_code(child_of_worker: OneChild) -> None:
    handle = child_of_worker.tasks["decline"].send("CARD_DECLINED")
    error = handle.get(PATIENCE_MS).err_value
    assert (error.error_code, error.message, error.data) == ("CARD_DECLINED", "declined", {"by": "bank"})
    found = row(
        child_of_worker.sql, "select status, error_code, result from horsies.finished where id = %s", handle.task_id
    )
    assert found == ("FAILED", "CARD_DECLINED", None)


@pytest.mark.promise("W8", "X3")
@pytest.mark.parametrize(
    ("name", "exception", "message", "line"),
    [
        ("raise_deeply", "builtins.ZeroDivisionError", "ZeroDivisionError: deep inside", "in _deep"),
        ("raise_async", "builtins.LookupError", "LookupError: from a coroutine", "in raise_async"),
    ],
)
def test_an_exception_is_an_unhandled_error_with_its_traceback(
    child_of_worker: OneChild, name: str, exception: str, message: str, line: str
) -> None:
    error = child_of_worker.run_to_error(name)
    assert error.error_code == "UNHANDLED_ERROR"
    assert error.message == message
    assert error.data["exception"] == exception
    assert line in error.data["traceback"]
    _, first_frame, *_ = error.data["traceback"].splitlines()
    assert "unruly.py" in first_frame  # no frame of horsies comes before it


@pytest.mark.promise("W8", "A8")
@pytest.mark.parametrize(
    ("name", "exception"),
    [
        ("exit_politely", "SystemExit"),
        ("exit_politely_async", "SystemExit"),
        ("interrupt", "KeyboardInterrupt"),
        ("interrupt_async", "KeyboardInterrupt"),
        ("cancel_itself", "CancelledError"),
        ("recurse", "RecursionError"),
    ],
)
def test_no_exception_ends_the_child(child_of_worker: OneChild, name: str, exception: str) -> None:
    child = child_of_worker.run_to_value("whoami")
    error = child_of_worker.run_to_error(name)
    assert error.error_code == "UNHANDLED_ERROR"
    assert error.data["exception"].endswith(exception)
    assert child_of_worker.run_to_value("whoami") == child
    assert child_of_worker.run_to_value("loop_identity") > 0  # its event loop still works, too


def test_an_exception_that_cannot_be_printed_is_an_error_like_any_other(child_of_worker: OneChild) -> None:
    child = child_of_worker.run_to_value("whoami")
    error = child_of_worker.run_to_error("raise_unprintable")
    assert error.error_code == "UNHANDLED_ERROR"
    assert "UnprintableError" in error.message
    assert child_of_worker.run_to_value("whoami") == child


@pytest.mark.promise("A5")
@pytest.mark.parametrize("name", ["wrong_type", "not_a_result"])
def test_a_value_that_does_not_match_the_annotation_is_a_mismatch(child_of_worker: OneChild, name: str) -> None:
    error = child_of_worker.run_to_error(name)
    assert error.error_code == "RETURN_TYPE_MISMATCH"
    assert name in error.message


@pytest.mark.promise("A5")
@pytest.mark.parametrize(("name", "shown"), [("return_nothing", "NoneType"), ("return_bare_async", "int")])
def test_a_return_value_other_than_task_result_is_a_mismatch_that_says_what_to_return(
    child_of_worker: OneChild, name: str, shown: str
) -> None:
    error = child_of_worker.run_to_error(name)
    assert error.error_code == "RETURN_TYPE_MISMATCH"
    assert f"returned {shown}, not a TaskResult" in error.message
    assert "TaskResult(ok=" in error.message


@pytest.mark.promise("W8")
@pytest.mark.parametrize("name", ["return_unencodable", "return_half_a_pair"])
def test_a_result_that_cannot_be_encoded_is_a_serialization_error(child_of_worker: OneChild, name: str) -> None:
    error = child_of_worker.run_to_error(name)
    assert error.error_code == "WORKER_SERIALIZATION_ERROR"
    assert name in error.message


def test_a_nul_in_a_result_comes_back(child_of_worker: OneChild) -> None:
    assert child_of_worker.run_to_value("return_odd_text") == "nul \x00 here"


def test_an_error_is_stored_whatever_it_contains(child_of_worker: OneChild) -> None:
    error = child_of_worker.run_to_error("return_odd_error")
    assert error.error_code == "ODD"
    assert error.message == "nul \x00 half ?"
    assert error.data["nul"] == "\x00"
    assert "object" in error.data["object"]


def test_an_exception_is_stored_whatever_its_text(child_of_worker: OneChild) -> None:
    error = child_of_worker.run_to_error("raise_odd_text")
    assert error.error_code == "UNHANDLED_ERROR"
    assert "nul \x00 and half a pair" in error.message


# -- rows that were not written by horsies


@pytest.mark.promise("W8")
@pytest.mark.parametrize(
    "args",
    [
        "{}",
        "[]",
        "null",
        '"text"',
        '{"left": 1}',
        '{"left": 1, "right": "a secret"}',
        '{"left": 1, "right": 2, "more": 3}',
        '{"left": 1, "right": "\\u0000"}',
        '{"left": 1, "right": ' + "[" * 1000 + "]" * 1000 + "}",
    ],
    ids=lambda args: str(args)[:30],
)
def test_arguments_that_do_not_fit_are_a_serialization_error(child_of_worker: OneChild, args: str) -> None:
    error = child_of_worker.insert("add", args).get(PATIENCE_MS).err_value
    assert error.error_code == "WORKER_SERIALIZATION_ERROR"
    assert "add()" in error.message
    assert "secret" not in error.message


@pytest.mark.promise("W8")
def test_an_unknown_name_is_a_resolution_error(child_of_worker: OneChild) -> None:
    error = child_of_worker.insert("no such task", "{}").get(PATIENCE_MS).err_value
    assert error.error_code == "WORKER_RESOLUTION_ERROR"
    assert "'no such task'" in error.message
    assert "discover_tasks" in error.message


# -- coroutines


@pytest.mark.promise("X1")
def test_async_tasks_run_beside_sync_ones(child_of_worker: OneChild) -> None:
    handles = [child_of_worker.tasks["echo" if number % 2 else "echo_async"].send(number) for number in range(10)]
    assert [handle.get(PATIENCE_MS).ok_value for handle in handles] == list(range(10))


@pytest.mark.promise("X1")
def test_the_async_tasks_of_a_child_share_one_event_loop(child_of_worker: OneChild) -> None:
    first = child_of_worker.run_to_value("loop_identity")
    assert child_of_worker.run_to_value("whoami")  # a sync task between them
    assert child_of_worker.run_to_value("loop_identity") == first


def test_a_sync_task_may_run_an_event_loop_of_its_own(child_of_worker: OneChild) -> None:
    loop = child_of_worker.run_to_value("loop_identity")
    assert child_of_worker.run_to_value("run_own_loop") == "from a loop of its own"
    assert child_of_worker.run_to_value("loop_identity") == loop


# -- payloads and streams


def test_megabytes_travel_both_ways(child_of_worker: OneChild) -> None:
    text = "ä" * 5_000_000
    assert child_of_worker.run_to_value("measure", text) == 5_000_000
    assert child_of_worker.run_to_value("repeat", "ä", 5_000_000) == text


def test_the_output_of_a_task_goes_to_the_output_of_the_worker(child_of_worker: OneChild) -> None:
    assert child_of_worker.run_to_value("say", "hello there") is None
    child_of_worker.worker.wait_for_log("^hello there$")
    child_of_worker.worker.wait_for_log("^hello there again$")


def test_the_standard_input_of_a_task_is_empty(child_of_worker: OneChild) -> None:
    assert child_of_worker.run_to_value("read_input") == ""


@pytest.mark.promise("W3")
def test_a_task_may_send_another(child_of_worker: OneChild) -> None:
    handle = child_of_worker.tasks["add"].send(1, 1)
    handle.task_id = child_of_worker.run_to_value("send_add", 20, 22)
    assert handle.get(PATIENCE_MS).ok_value == 42
