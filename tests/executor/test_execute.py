"""What becomes of a task, whatever its function does. One worker with one child serves all of these."""

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
class House:
    tasks: Mapping[str, Any]
    worker: Worker
    sql: psycopg.Connection

    def error_of(self, name: str, *args: object) -> Any:
        return self.tasks[name].send(*args).get(PATIENCE_MS).err_value

    def value_of(self, name: str, *args: object) -> Any:
        return self.tasks[name].send(*args).get(PATIENCE_MS).ok_value

    def inserted(self, name: str, args: str) -> Any:
        """A handle of a row that was written by hand."""
        (task_id,) = row(
            self.sql, "insert into horsies.tasks (task_name, args) values (%s, %s) returning id::text", name, args
        )
        handle = self.tasks["echo"].send(None)
        handle.task_id = task_id
        return handle


@pytest.fixture(scope="module")
def house(server: DatabaseServer) -> Generator[House]:
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
            house = House(app.tasks, worker, sql)
            assert house.value_of("add", 1, 1) == 2  # its threads are there before the first test looks for leaks
            yield house
    finally:
        app.close()
        worker.close()
        server.drop(name)


# -- how it can end


@pytest.mark.promise("A3", "W6", "W7")
def test_a_good_value_is_stored_as_completed(house: House) -> None:
    handle = house.tasks["add"].send(1, 2)
    assert handle.get(PATIENCE_MS).ok_value == 3
    found = row(
        house.sql,
        "select status, result::text, error_code, attempts, claim_no, claimed_by is not null, "
        "sent_at <= claimed_at and claimed_at <= started_at and started_at <= finished_at "
        "from horsies.finished where id = %s",
        handle.task_id,
    )
    assert found == ("COMPLETED", "3", None, 1, 1, True, True)


@pytest.mark.promise("A6", "W7")
def test_a_returned_error_is_stored_as_failed_with_its_own_code(house: House) -> None:
    handle = house.tasks["decline"].send("CARD_DECLINED")
    error = handle.get(PATIENCE_MS).err_value
    assert (error.error_code, error.message, error.data) == ("CARD_DECLINED", "declined", {"by": "bank"})
    found = row(house.sql, "select status, error_code, result from horsies.finished where id = %s", handle.task_id)
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
    house: House, name: str, exception: str, message: str, line: str
) -> None:
    error = house.error_of(name)
    assert error.error_code == "UNHANDLED_ERROR"
    assert error.message == message
    assert error.data["exception"] == exception
    assert line in error.data["traceback"]
    _, first_frame, *_ = error.data["traceback"].splitlines()
    assert "unruly.py" in first_frame  # nothing of ours comes before it


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
def test_no_exception_ends_the_child(house: House, name: str, exception: str) -> None:
    child = house.value_of("whoami")
    error = house.error_of(name)
    assert error.error_code == "UNHANDLED_ERROR"
    assert error.data["exception"].endswith(exception)
    assert house.value_of("whoami") == child
    assert house.value_of("loop_identity") > 0  # its event loop lives, too


def test_an_exception_that_cannot_be_printed_is_an_error_like_any_other(house: House) -> None:
    child = house.value_of("whoami")
    error = house.error_of("raise_unprintable")
    assert error.error_code == "UNHANDLED_ERROR"
    assert "UnprintableError" in error.message
    assert house.value_of("whoami") == child


@pytest.mark.promise("A5")
@pytest.mark.parametrize("name", ["wrong_type", "not_a_result"])
def test_what_the_annotation_does_not_promise_is_a_mismatch(house: House, name: str) -> None:
    error = house.error_of(name)
    assert error.error_code == "RETURN_TYPE_MISMATCH"
    assert name in error.message


@pytest.mark.promise("A5")
@pytest.mark.parametrize(("name", "shown"), [("return_nothing", "NoneType"), ("return_bare_async", "int")])
def test_what_is_no_task_result_is_a_mismatch_that_says_what_to_return(house: House, name: str, shown: str) -> None:
    error = house.error_of(name)
    assert error.error_code == "RETURN_TYPE_MISMATCH"
    assert f"returned {shown}, not a TaskResult" in error.message
    assert "TaskResult(ok=" in error.message


@pytest.mark.promise("W8")
@pytest.mark.parametrize("name", ["return_unencodable", "return_half_a_pair"])
def test_a_result_that_cannot_be_encoded_is_a_serialization_error(house: House, name: str) -> None:
    error = house.error_of(name)
    assert error.error_code == "WORKER_SERIALIZATION_ERROR"
    assert name in error.message


def test_a_nul_in_a_result_comes_back(house: House) -> None:
    assert house.value_of("return_odd_text") == "nul \x00 here"


def test_an_error_gets_through_whatever_it_holds(house: House) -> None:
    error = house.error_of("return_odd_error")
    assert error.error_code == "ODD"
    assert error.message == "nul \x00 half ?"
    assert error.data["nul"] == "\x00"
    assert "object" in error.data["object"]


def test_an_exception_gets_through_whatever_its_text(house: House) -> None:
    error = house.error_of("raise_odd_text")
    assert error.error_code == "UNHANDLED_ERROR"
    assert "nul \x00 and half a pair" in error.message


# -- rows that nobody of ours has written


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
def test_arguments_that_do_not_fit_are_a_serialization_error(house: House, args: str) -> None:
    error = house.inserted("add", args).get(PATIENCE_MS).err_value
    assert error.error_code == "WORKER_SERIALIZATION_ERROR"
    assert "add()" in error.message
    assert "secret" not in error.message


@pytest.mark.promise("W8")
def test_an_unknown_name_is_a_resolution_error(house: House) -> None:
    error = house.inserted("no such task", "{}").get(PATIENCE_MS).err_value
    assert error.error_code == "WORKER_RESOLUTION_ERROR"
    assert "'no such task'" in error.message
    assert "discover_tasks" in error.message


# -- coroutines


@pytest.mark.promise("X1")
def test_async_tasks_run_beside_sync_ones(house: House) -> None:
    handles = [house.tasks["echo" if number % 2 else "echo_async"].send(number) for number in range(10)]
    assert [handle.get(PATIENCE_MS).ok_value for handle in handles] == list(range(10))


@pytest.mark.promise("X1")
def test_the_async_tasks_of_a_child_share_one_event_loop(house: House) -> None:
    first = house.value_of("loop_identity")
    assert house.value_of("whoami")  # a sync task between them
    assert house.value_of("loop_identity") == first


def test_a_sync_task_may_run_an_event_loop_of_its_own(house: House) -> None:
    loop = house.value_of("loop_identity")
    assert house.value_of("run_own_loop") == "from a loop of its own"
    assert house.value_of("loop_identity") == loop


# -- payloads and streams


def test_megabytes_travel_both_ways(house: House) -> None:
    text = "ä" * 5_000_000
    assert house.value_of("measure", text) == 5_000_000
    assert house.value_of("repeat", "ä", 5_000_000) == text


def test_what_a_task_prints_goes_where_the_worker_prints(house: House) -> None:
    assert house.value_of("say", "hello there") is None
    house.worker.wait_for_log("^hello there$")
    house.worker.wait_for_log("^hello there again$")


def test_a_task_finds_its_input_empty(house: House) -> None:
    assert house.value_of("read_input") == ""


@pytest.mark.promise("W3")
def test_a_task_may_send_another(house: House) -> None:
    handle = house.tasks["add"].send(1, 1)
    handle.task_id = house.value_of("send_add", 20, 22)
    assert handle.get(PATIENCE_MS).ok_value == 42
