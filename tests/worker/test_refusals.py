"""The server refuses a batch of the worker: the part at fault is found, and the others are stored."""

from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column, row
from tests.fixtures.workers import StartWorker
from tests.recovery.steps import CLUSTER, insert_rows, settings
from tests.worker.steps import begun, insert, insert_lines, numbers, statuses, wait_until_ended

BY_VALUES, BY_A_TRIGGER = "22023", "P0001"


def refuse(sql: psycopg.Connection, table: str, event: str, condition: str, sqlstate: str = BY_A_TRIGGER) -> None:
    """Make the server refuse such rows from now on. A second call replaces the condition."""
    sql.execute(
        "create or replace function refuse() returns trigger language plpgsql as $$ begin "
        f"if {condition} then raise exception 'refused by a test' using errcode = '{sqlstate}'; end if; "
        "return new; end $$".encode()
    )
    sql.execute(
        f"create or replace trigger refuse before {event} on horsies.{table} for each row execute function refuse()".encode()
    )


def accept(sql: psycopg.Connection) -> None:
    """Accept everything again. Dropping the trigger would lock the partitions before their parent, against the usual order."""
    sql.execute(b"create or replace function refuse() returns trigger language plpgsql as $$ begin return new; end $$")


def endings(sql: psycopg.Connection, name: str) -> list[tuple[Any, ...]]:
    return sql.execute("select status, error_code from horsies.finished where task_name = %s", [name]).fetchall()


# -- claims


@pytest.mark.promise("D6", "W4")
@pytest.mark.parametrize("prefetch", [0, 4, "auto"])
def test_a_row_that_can_never_be_claimed_is_ended_and_its_queue_continues(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, prefetch: int | str
) -> None:
    refuse(sql, "tasks", "update", "new.task_name = 'echo'", BY_VALUES)
    bad = insert(sql, "echo", value=1)
    insert_lines(sql, tmp_path / "log", 50)
    lease = {} if prefetch == 0 else {"claim_lease_ms": 5_000}
    running = worker(CLUSTER, processes=2, env=settings(prefetch_buffer=prefetch, **lease))
    assert wait_until_ended(sql, 51) == {"COMPLETED": 50, "FAILED": 1}
    assert endings(sql, "echo") == [("FAILED", "WORKER_SERIALIZATION_ERROR")]
    assert sorted(numbers(tmp_path / "log")) == list(range(50)), "each ran once"
    (error,) = row(sql, "select error ->> 'message' from horsies.finished where id = %s", bad)
    assert "cannot be claimed" in str(error)
    assert "refused by a test" in str(error)
    assert running.terminate() == 0


@pytest.mark.promise("D6")
def test_a_row_that_a_trigger_keeps_from_being_claimed_waits_and_its_queue_continues(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """It can be claimed once the trigger is fixed, so it must not be ended."""
    refuse(sql, "tasks", "update", "new.task_name = 'echo'")
    insert(sql, "echo", value=1)
    insert_lines(sql, tmp_path / "log", 50)
    first = worker(CLUSTER, processes=2, env=settings())
    eventually(lambda: statuses(sql) == {"COMPLETED": 50, "PENDING": 1}, 30, seen=lambda: statuses(sql))
    assert first.terminate() == 0
    accept(sql)
    worker(CLUSTER, processes=2, env=settings())
    assert wait_until_ended(sql, 51) == {"COMPLETED": 51}


@pytest.mark.promise("D6")
def test_rows_are_not_ended_when_all_of_them_are_refused(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """A constraint that was added by mistake must end no task."""
    refuse(sql, "tasks", "update", "true", BY_VALUES)
    insert_lines(sql, tmp_path / "log", 10)
    running = worker(CLUSTER, processes=2, env=settings())
    running.wait_for_log("cannot be claimed")
    assert statuses(sql) == {"PENDING": 10}
    assert running.terminate() == 0
    accept(sql)
    worker(CLUSTER, processes=2, env=settings())
    assert wait_until_ended(sql, 10) == {"COMPLETED": 10}


@pytest.mark.promise("D6")
def test_results_are_stored_though_the_claim_beside_them_is_refused(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """The ending of a task shares a batch with the claim of the next one."""
    running = worker(CLUSTER, processes=1, env=settings())
    insert(sql, "gate", begun=str(tmp_path / "begun"), until=str(tmp_path / "open"))
    begun(tmp_path / "begun")
    refuse(sql, "tasks", "update", "new.task_name = 'echo'", BY_VALUES)
    for value in range(3):
        insert(sql, "echo", value=value)
    (tmp_path / "open").touch()
    eventually(lambda: endings(sql, "gate") == [("COMPLETED", None)], seen=lambda: statuses(sql))
    insert_lines(sql, tmp_path / "log", 5)
    eventually(lambda: len(endings(sql, "write_line")) == 5, 30, seen=lambda: statuses(sql))
    assert set(endings(sql, "write_line")) == {("COMPLETED", None)}
    assert running.terminate() == 0


# -- endings


@pytest.mark.promise("D6", "W11")
def test_a_result_that_a_trigger_refuses_is_kept_until_it_is_accepted_and_delays_no_other(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    refuse(sql, "finished", "insert", "new.task_name = 'echo'")
    worker(CLUSTER, processes=2, env=settings())
    insert(sql, "echo", value="precious")
    insert_lines(sql, tmp_path / "log", 50)
    eventually(lambda: statuses(sql) == {"COMPLETED": 50, "RUNNING": 1}, 30, seen=lambda: statuses(sql))
    accept(sql)
    assert wait_until_ended(sql, 51) == {"COMPLETED": 51}
    assert row(sql, "select result::text, attempts from horsies.finished where task_name = 'echo'") == (
        '"precious"',
        1,
    )


@pytest.mark.promise("D6", "W8")
def test_a_result_with_refused_values_becomes_an_error_and_others_do_not(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    refuse(sql, "finished", "insert", "new.task_name = 'echo' and new.status = 'COMPLETED'", BY_VALUES)
    insert(sql, "echo", value=1)
    insert_lines(sql, tmp_path / "log", 50)
    worker(CLUSTER, processes=2, env=settings())
    assert wait_until_ended(sql, 51) == {"COMPLETED": 50, "FAILED": 1}
    assert endings(sql, "echo") == [("FAILED", "WORKER_SERIALIZATION_ERROR")]


@pytest.mark.promise("D6", "W9")
def test_a_failure_with_a_refused_retry_keeps_its_own_error(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """If the retry cannot be stored, the failure is final and keeps its error."""
    refuse(sql, "tasks", "update", "new.status = 'PENDING' and new.attempts > 0", "23502")
    insert_rows(
        sql, "raise_error", [{"message": "its own"}], retry_delays_ms="array[10]", retry_for="array['UNHANDLED_ERROR']"
    )
    insert_lines(sql, tmp_path / "log", 20)
    worker(CLUSTER, processes=2, env=settings())
    assert wait_until_ended(sql, 21) == {"COMPLETED": 20, "FAILED": 1}
    assert endings(sql, "raise_error") == [("FAILED", "UNHANDLED_ERROR")]


@pytest.mark.promise("D6")
def test_an_ending_that_takes_longer_than_the_statement_timeout_is_stored_alone(
    worker: StartWorker, sql: psycopg.Connection, database: str, tmp_path: Path
) -> None:
    sql.execute(
        b"create function dawdle() returns trigger language plpgsql as $$ begin "
        b"if new.task_name = 'echo' then perform pg_sleep(0.5); end if; return new; end $$"
    )
    sql.execute(b"create trigger dawdle before insert on horsies.finished for each row execute function dawdle()")
    insert(sql, "echo", value=1)
    insert_lines(sql, tmp_path / "log", 20)
    env = settings(broker={"database_url": database, "statement_timeout_ms": 200})
    worker(CLUSTER, processes=2, env=env)
    assert wait_until_ended(sql, 21) == {"COMPLETED": 21}


# -- payloads


@pytest.mark.promise("D6")
def test_large_arguments_reach_their_tasks_in_pieces_that_fit(worker: StartWorker, sql: psycopg.Connection) -> None:
    """Together they are larger than what is read at once, or sent in one message."""
    sql.execute(
        "insert into horsies.tasks (task_name, args) select 'echo_async', json_build_object('value', repeat('x', 15000000)) "
        "from generate_series(1, 8)"
    )
    small = insert(sql, "echo", value="small")
    worker(CLUSTER, processes=1, options=("--concurrency=20",), env=settings())
    assert wait_until_ended(sql, 9, 60.0) == {"COMPLETED": 9}
    assert column(sql, "select distinct octet_length(result::text) from horsies.finished where id <> %s", small) == [
        15_000_002
    ]
    assert row(sql, "select max(claim_no), max(attempts) from horsies.finished") == (1, 1)


@pytest.mark.promise("D6", "W8")
def test_arguments_above_the_size_limit_end_their_task_and_no_other(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    sql.execute(
        "insert into horsies.tasks (task_name, args) values ('echo', json_build_object('value', repeat('x', 270000000)))"
    )
    insert_lines(sql, tmp_path / "log", 20)
    worker(CLUSTER, processes=1, env=settings())
    assert wait_until_ended(sql, 21) == {"COMPLETED": 20, "FAILED": 1}
    (code, message) = row(sql, "select error_code, error ->> 'message' from horsies.finished where task_name = 'echo'")
    assert code == "WORKER_SERIALIZATION_ERROR"
    assert "270,000,014 bytes" in str(message)
