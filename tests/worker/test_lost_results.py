"""Faults at one statement of a worker: a lost answer, an error, a crash. Every task ends exactly once."""

from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from tests.fixtures.eventually import eventually, wait_until_blocked
from tests.fixtures.journey import column, row
from tests.fixtures.workers import StartWorker
from tests.worker.steps import begun, insert, insert_lines, numbers, statuses, wait_until_ended

BATCH = ["begin_batch", "set_batch_limits", "finish_tasks", "claim_from_queues", "commit_batch"]
MODES = ["0", "8", "auto"]
QUICK_MAINTENANCE = {
    "HORSIES_TEST_HEARTBEAT_MS": "300",
    "HORSIES_TEST_DEAD_AFTER_MS": "1500",
    "HORSIES_TEST_MAINTENANCE_MS": "200",
}


def tuned(prefetch: str = "0") -> dict[str, str]:
    return {"HORSIES_TEST_PREFETCH": prefetch}


@pytest.mark.promise("W11")
@pytest.mark.parametrize("prefetch", MODES)
@pytest.mark.parametrize(
    "fault",
    [
        "finish_tasks:before:drop",
        "finish_tasks:after:drop",
        "finish_tasks:before:error",
        "claim_from_queues:before:drop",
        "claim_from_queues:after:drop",
        "claim_from_watermarks:after:drop",
        "begin_batch:after:drop,begin_batch:after:drop",
    ],
)
def test_every_task_ends_exactly_once_whatever_answer_is_lost(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, fault: str, prefetch: str
) -> None:
    log = tmp_path / "log"
    insert_lines(sql, log, 10)  # for the first claim, which is from the start
    running = worker("tests.apps.tuned:app", processes=2, env=tuned(prefetch), faults=fault)
    insert_lines(sql, log, 30, first=10)
    assert wait_until_ended(sql, 40) == {"COMPLETED": 40}
    assert sorted(numbers(log)) == list(range(40))
    assert column(sql, "select distinct attempts from horsies.finished") == [1]
    if fault.endswith("error"):
        running.wait_for_log("batch refused by the database.*planted fault")
    else:
        running.wait_for_log("planted fault")
    assert not any("starting again" in line for line in running.logs)


@pytest.mark.promise("W11")
def test_a_batch_with_a_lost_answer_runs_the_tasks_it_started_once(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    running = worker("tests.apps.tuned:app", processes=1, env=tuned("8"), faults="start_tasks:after:drop")
    insert_lines(sql, log, 30)
    assert wait_until_ended(sql, 30) == {"COMPLETED": 30}
    assert sorted(numbers(log)) == list(range(30))
    running.wait_for_log("planted fault")


@pytest.mark.promise("W11")
def test_claims_with_a_lost_answer_are_released_and_run_once(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    insert_lines(sql, log, 1)
    running = worker("tests.apps.tuned:app", processes=1, env=tuned(), faults="claim_from_queues:after:drop")
    running.wait_for_log("releasing 1 tasks claimed by a transaction whose result was lost")
    wait_until_ended(sql, 1)
    assert numbers(log) == [0]
    assert row(sql, "select claim_no, attempts from horsies.finished") == (2, 1)


def test_a_release_with_a_lost_answer_is_repeated(worker: StartWorker, sql: psycopg.Connection, tmp_path: Path) -> None:
    """During a shutdown: buffered claims must not stay with a worker that has exited."""
    log, gate_file = tmp_path / "log", tmp_path / "open"
    running = worker("tests.apps.tuned:app", processes=1, env=tuned("8"), faults="release_tasks:after:drop")
    insert(sql, "gate", begun=str(tmp_path / "begun"), until=str(gate_file))
    begun(tmp_path / "begun")
    insert_lines(sql, log, 5)
    eventually(lambda: statuses(sql) == {"RUNNING": 1, "CLAIMED": 5}, seen=lambda: statuses(sql))
    running.process.terminate()
    running.wait_for_log("planted fault")
    eventually(lambda: statuses(sql)["PENDING"] == 5)
    gate_file.touch()
    assert running.wait() == 0
    assert statuses(sql) == {"COMPLETED": 1, "PENDING": 5}


@pytest.mark.promise("W11")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("statement", ["register_worker", "record_heartbeat", "deregister_worker"])
def test_a_lost_heartbeat_does_no_harm(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, statement: str, when: str
) -> None:
    # The lost claim causes a heartbeat at once.
    faults = f"{statement}:{when}:drop,claim_from_queues:before:drop"
    running = worker("tests.apps.tuned:app", processes=1, env=tuned(), faults=faults)
    assert basic.add.send(1, 1).get(20_000).ok_value == 2
    assert len(column(sql, "select id from horsies.workers")) == 1
    assert running.terminate() == 0
    assert not any("starting again" in line for line in running.logs)
    if (statement, when) != ("deregister_worker", "before"):
        assert column(sql, "select id from horsies.workers") == []


# -- deaths


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("statement", BATCH)
def test_a_worker_that_dies_at_any_statement_leaves_every_task_in_one_place(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, statement: str, when: str
) -> None:
    log = tmp_path / "log"
    insert_lines(sql, log, 20)
    running = worker(
        "tests.apps.tuned:app",
        processes=2,
        env=tuned("auto"),
        faults=f"{statement}:{when}:kill",
        until_ready=False,
    )
    assert running.wait() == -9
    # A child may still be writing its last line, and the server may still be executing the last batch.
    eventually(lambda: not _busy(sql))
    counts = statuses(sql)  # which also fails for tasks that are in both tables
    assert counts.total() == 20
    assert set(counts) <= {"PENDING", "RUNNING", "COMPLETED"}
    owners = column(sql, "select distinct claimed_by from horsies.tasks where status = 'RUNNING'")
    assert owners == (column(sql, "select id from horsies.workers") if counts["RUNNING"] else [])
    ran = numbers(log)
    assert len(ran) == len(set(ran))  # nothing twice
    assert counts["COMPLETED"] <= len(ran) <= counts["COMPLETED"] + counts["RUNNING"]

    # The next worker runs what is PENDING, and as maintenance leader it ends what the dead one ran: no task runs twice, none is left.
    worker("tests.apps.tuned:app", processes=2, env={**tuned("auto"), **QUICK_MAINTENANCE})
    assert wait_until_ended(sql, 20) == {
        status: count
        for status, count in {
            "FAILED": counts["RUNNING"],
            "COMPLETED": counts["COMPLETED"] + counts["PENDING"],
        }.items()
        if count
    }
    assert set(column(sql, "select error_code from horsies.finished where status = 'FAILED'")) <= {"WORKER_CRASHED"}
    again = numbers(log)
    assert len(again) == len(set(again))


def _busy(sql: psycopg.Connection) -> bool:
    sessions = column(
        sql,
        "select pid from pg_stat_activity where datname = current_database() and application_name like 'horsies%%'",
    )
    return bool(sessions)


def test_a_worker_that_dies_while_its_batch_waits_for_a_lock_leaves_the_task_in_one_place(
    worker: StartWorker, sql: psycopg.Connection, database: str, tmp_path: Path
) -> None:
    """The server executes what was sent, without checking whether the client is still connected."""
    running = worker(processes=1)
    gate_file = tmp_path / "open"
    insert(sql, "gate", begun=str(tmp_path / "begun"), until=str(gate_file))
    begun(tmp_path / "begun")
    with psycopg.connect(database) as holder:
        holder.execute("select from horsies.tasks for update")
        gate_file.touch()
        wait_until_blocked(sql, on=holder)
        running.kill()
    eventually(lambda: not _busy(sql))
    assert statuses(sql) in ({"RUNNING": 1}, {"COMPLETED": 1})


@pytest.mark.parametrize("refusal", ["data_exception", "program_limit_exceeded"])
def test_a_result_that_the_database_refuses_ends_as_an_error_and_the_others_are_stored(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, refusal: str
) -> None:
    """The server itself refuses it: a constraint stands in for any value that it cannot store."""
    rule = (
        "create function refuse() returns trigger language plpgsql as $$ begin "
        f"if new.result::text = '13' then raise {refusal} using message = 'not this one'; end if; "
        "return new; end $$"
    )
    sql.execute(rule.encode())
    sql.execute("create trigger refuse before insert on horsies.finished for each row execute function refuse()")
    worker("tests.apps.tuned:app", processes=2, env=tuned("auto"))
    handles = [basic.echo.send(number) for number in range(10, 20)]
    results = [handle.get(20_000) for handle in handles]
    assert [result.ok_value for result in results if result.is_ok()] == [10, 11, 12, 14, 15, 16, 17, 18, 19]
    (refused,) = [result.err_value for result in results if result.is_err()]
    assert refused.error_code == "WORKER_SERIALIZATION_ERROR"
    assert "not this one" in refused.message


def test_contention_is_retried_without_a_log_line(basic: Any, worker: StartWorker, sql: psycopg.Connection) -> None:
    sql.execute("create sequence tries")
    sql.execute(
        "create function refuse() returns trigger language plpgsql as $$ begin "
        "if nextval('public.tries') < 3 then raise serialization_failure using message = 'too busy'; end if; "
        "return new; end $$"
    )
    sql.execute("create trigger refuse before insert on horsies.finished for each row execute function refuse()")
    running = worker(processes=1)
    assert basic.add.send(1, 1).get(20_000).ok_value == 2
    assert not any("database unavailable" in line for line in running.logs)
    assert psutil.pid_exists(running.pid)
