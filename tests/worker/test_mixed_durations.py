"""With `prefetch_buffer="auto"` no fast task waits for a slow one, as long as one child of any worker is free."""

import json
from pathlib import Path

import psycopg
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.journey import row
from tests.fixtures.workers import StartWorker
from tests.worker.steps import begun, insert, insert_lines, numbers, statuses, wait_until_ended

AUTO = {"HORSIES_TEST_PREFETCH": "auto"}  # the app polls only every five minutes
FORKED = ("--max-tasks-per-child=0",)  # no child is recycled, so the prefetch limit may grow
FLOOD, FAST = 300, 200
MANY = "select count(*) from (select from horsies.finished group by claimed_by having count(*) >= %s) as worker"


@pytest.mark.promise("C13")
def test_fast_tasks_run_in_children_without_a_slow_one(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """Even if only one of the four is free."""
    flooded, slow_count = start_two_and_flood(worker, sql, tmp_path), 3
    for number in range(slow_count):
        insert(sql, "gate", begun=str(tmp_path / str(number)), until=str(tmp_path / "open"))
        begun(tmp_path / str(number))
    for first in range(0, FAST, 50):
        insert_lines(sql, tmp_path / "log", 50, first=first)
    assert_all_but_the_slow_ones_end(sql, tmp_path, flooded, slow_count)


@pytest.mark.promise("C13")
@pytest.mark.parametrize("slow_count", [1, 3])
def test_fast_tasks_that_came_with_a_slow_one_do_not_wait_for_it(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, slow_count: int
) -> None:
    """A child may have been assigned slow tasks among fast ones: what waits behind them runs in other children."""
    flooded = start_two_and_flood(worker, sql, tmp_path)
    insert_together(sql, tmp_path, slow_count)
    assert_all_but_the_slow_ones_end(sql, tmp_path, flooded, slow_count)


def start_two_and_flood(worker: StartWorker, sql: psycopg.Connection, tmp_path: Path) -> int:
    """Start two workers and run short tasks until both prefetch many. Returns how many tasks that took."""
    for _ in range(2):
        worker("tests.apps.tuned:app", processes=2, options=FORKED, env=AUTO)
    flooded = 0

    def both_have_run_many() -> bool:
        nonlocal flooded
        insert_lines(sql, tmp_path / "flood", FLOOD)
        flooded += FLOOD
        wait_until_ended(sql, flooded)
        return row(sql, MANY, FLOOD // 2) == (2,)

    eventually(both_have_run_many, 60, what="both workers have run many tasks")
    return flooded


def insert_together(sql: psycopg.Connection, tmp_path: Path, slow_count: int) -> None:
    """Insert fast tasks with slow ones at even distances among them, in one statement."""
    fast = [("write_line", {"path": str(tmp_path / "log"), "line": str(number)}) for number in range(FAST)]
    tasks: list[tuple[str, dict[str, str]]] = list(fast)
    for number in range(slow_count):
        gate = {"begun": str(tmp_path / str(number)), "until": str(tmp_path / "open")}
        tasks.insert((number + 1) * len(fast) // (slow_count + 1), ("gate", gate))
    sql.execute(
        "insert into horsies.tasks (task_name, args) select name, args from unnest(%s::text[], %s::json[]) as new (name, args)",
        [[name for name, _ in tasks], [json.dumps(args) for _, args in tasks]],
    )


def assert_all_but_the_slow_ones_end(sql: psycopg.Connection, tmp_path: Path, flooded: int, slow_count: int) -> None:
    expected = {"COMPLETED": flooded + FAST, "RUNNING": slow_count}
    eventually(
        lambda: statuses(sql) == expected,
        30,
        what="all fast tasks have ended, while the slow ones are held",
        seen=lambda: statuses(sql),
    )
    assert sorted(numbers(tmp_path / "log")) == list(range(FAST))  # each ran once, however often it was released
    (tmp_path / "open").touch()
    assert wait_until_ended(sql, flooded + FAST + slow_count) == {"COMPLETED": flooded + FAST + slow_count}
