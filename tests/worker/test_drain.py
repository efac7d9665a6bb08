"""Many tasks: each runs exactly once, in order, within the limits, and slow tasks delay no others."""

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column, row
from tests.fixtures.workers import StartWorker
from tests.worker.steps import PATIENCE_MS, begun, insert, insert_lines, numbers, statuses, wait_until_ended, warm_up

MODES = ["0", "8", "auto"]


def tuned(prefetch: str) -> dict[str, str]:
    return {"HORSIES_TEST_PREFETCH": prefetch}


@pytest.mark.promise("W4", "W14")
@pytest.mark.parametrize(("prefetch", "count"), [("0", 400), ("8", 2_000), ("auto", 2_000)])
def test_two_workers_run_every_task_exactly_once(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, prefetch: str, count: int
) -> None:
    log = tmp_path / "log"
    for _ in range(2):
        worker("tests.apps.tuned:app", processes=2, env=tuned(prefetch))
    insert_lines(sql, log, count)
    assert wait_until_ended(sql, count) == {"COMPLETED": count}
    assert sorted(numbers(log)) == list(range(count))
    assert len(column(sql, "select distinct claimed_by from horsies.finished")) == 2  # they shared the work


@pytest.mark.promise("W4")
@pytest.mark.parametrize("prefetch", MODES)
def test_tasks_run_by_priority_and_then_in_the_order_they_were_sent(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, prefetch: str
) -> None:
    log = tmp_path / "log"
    for number in range(60):
        priority = (50, 10, 90)[number % 3]
        insert(sql, "write_line", priority=priority, path=str(log), line=str(number))
    worker("tests.apps.tuned:app", processes=1, env=tuned(prefetch))
    wait_until_ended(sql, 60)
    assert numbers(log) == [*range(1, 60, 3), *range(0, 60, 3), *range(2, 60, 3)]


@pytest.mark.promise("W4", "C22")
def test_tasks_that_are_not_due_wait_and_expired_tasks_never_run(
    basic: Any, worker: StartWorker, sql: psycopg.Connection
) -> None:
    for column_name, moment in (("enqueued_at", "1 day"), ("good_until", "-1 second")):
        sql.execute(
            f"insert into horsies.tasks (task_name, {column_name}) values ('whoami', now() + %s::interval)".encode(),
            [moment],
        )
    worker(processes=1)
    assert basic.add.send(1, 1).get(PATIENCE_MS).ok_value == 2
    expected = {"PENDING": 1, "EXPIRED": 1, "COMPLETED": 1}
    eventually(
        lambda: statuses(sql) == expected, seen=lambda: statuses(sql)
    )  # the maintenance leader ends expired tasks
    assert row(sql, "select claim_no, started_at, error_code from horsies.finished where status = 'EXPIRED'") == (
        0,
        None,
        "TASK_EXPIRED",
    )


@pytest.mark.promise("C1")
@pytest.mark.parametrize("prefetch", MODES)
def test_no_more_run_at_once_than_there_are_processes(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, prefetch: str
) -> None:
    """Each gate opens the one after the next, so two run at any time, and never three."""
    gate_files = [tmp_path / f"open {number}" for number in range(8)]
    note = tmp_path / "begun"
    for gate_file in gate_files:
        insert(sql, "gate", begun=str(note), until=str(gate_file))
    running = worker("tests.apps.tuned:app", processes=2, env=tuned(prefetch))
    children = {child.pid for child in running.children()}
    for ended, gate_file in enumerate(gate_files):
        ahead = min(ended + 2, len(gate_files))
        eventually(lambda ahead=ahead: len(numbers(note)) == ahead, what=f"{ahead} have begun")
        assert row(sql, "select count(*) from horsies.tasks where status = 'RUNNING'") <= (2,)
        gate_file.touch()
        eventually(lambda ended=ended: statuses(sql)["COMPLETED"] == ended + 1)
    assert set(numbers(note)) == children


@pytest.mark.promise("C13")
def test_a_worker_holds_no_more_than_its_processes_and_its_buffer(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    worker("tests.apps.tuned:app", processes=2, env=tuned("3"))
    gate_file = tmp_path / "open"
    for _ in range(10):
        insert(sql, "gate", begun=str(tmp_path / "begun"), until=str(gate_file))
    held = {"RUNNING": 2, "CLAIMED": 3, "PENDING": 5}
    eventually(lambda: statuses(sql) == held, seen=lambda: statuses(sql))
    gate_file.touch()
    assert wait_until_ended(sql, 10) == {"COMPLETED": 10}
    assert len(numbers(tmp_path / "begun")) == 10


@pytest.mark.parametrize("prefetch", MODES)
def test_a_slow_task_does_not_delay_others(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, prefetch: str
) -> None:
    """What was prefetched behind it in its child is recalled and runs in the other child while the slow task still runs."""
    worker("tests.apps.tuned:app", processes=2, env=tuned(prefetch))
    warm_up(basic)
    log, gate_file = tmp_path / "log", tmp_path / "open"
    with sql.transaction():  # all at once, so that one child prefetches them
        slow = insert(sql, "gate", begun=str(tmp_path / "begun"), until=str(gate_file))
        insert_lines(sql, log, 100)
    begun(tmp_path / "begun")
    eventually(lambda: len(numbers(log)) == 100, what="all the others have run", seen=lambda: len(numbers(log)))
    assert row(sql, "select status from horsies.tasks where id = %s", slow) == ("RUNNING",)
    gate_file.touch()
    wait_until_ended(sql, 60 + 101)
    assert sorted(numbers(log)) == list(range(100))
    assert column(sql, "select distinct attempts from horsies.finished") == [1]


def test_tasks_that_end_together_are_finished_together(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, database: str, tmp_path: Path
) -> None:
    """While one ending waits for a lock, twenty more arrive: they need one statement, and so one transaction."""
    worker("tests.apps.tuned:app", processes=1, env=tuned("auto"))
    warm_up(basic)
    log = tmp_path / "log"

    def handed_over() -> list[object]:
        """Return the RUNNING tasks, once all of them have run; fewer than all on a busy machine. Nothing more is claimed until then."""
        ids = column(sql, "select id from horsies.tasks where status = 'RUNNING'")
        return ids if len(ids) == len(numbers(log)) > 5 else []

    with psycopg.connect(database) as holder:
        holder.execute("lock table horsies.finished in share mode")
        insert_lines(sql, log, 21)
        ids = eventually(handed_over)
    wait_until_ended(sql, 60 + 21)
    transactions = column(sql, "select count(*) from horsies.finished where id = any(%s) group by xmin::text", ids)
    assert len(transactions) <= 2


@pytest.mark.promise("A2")
def test_the_view_shows_live_and_finished_tasks_as_one_table(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    worker(processes=1)
    done = basic.echo.send("done")
    done.get(PATIENCE_MS)
    running = basic.gate.send(str(tmp_path / "begun"), str(tmp_path / "open"))
    begun(tmp_path / "begun")
    waiting = basic.echo.send("waiting")
    shown = sql.execute("select id::text, status, result::text, args::text from horsies.all_tasks").fetchall()
    assert {row[0]: row[1] for row in shown} == {
        done.task_id: "COMPLETED",
        running.task_id: "RUNNING",
        waiting.task_id: "PENDING",
    }
    assert json.loads(next(row[2] for row in shown if row[0] == done.task_id)) == "done"
    (tmp_path / "open").touch()
    assert waiting.get(PATIENCE_MS).ok_value == "waiting"
