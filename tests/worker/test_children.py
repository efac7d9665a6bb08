"""What operators see of the child processes of a worker."""

import json
from collections.abc import Generator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from horsies import AppConfig, Horsies
from horsies.db.broker import PostgresBroker
from horsies.model.config import PostgresConfig
from horsies.ops import ChildState, ChildStatus, ChildTask, Ops
from horsies.tasks.ids import new_task_id
from horsies.tasks.workers import MAX_CHILDREN, MAX_NAME, MAX_TASKS, children_from_json, children_to_json
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import ME, column, row
from tests.fixtures.pools import FakeDispatcher, open_pool
from tests.fixtures.workers import StartWorker
from tests.recovery.steps import CLUSTER, FORKED, settings
from tests.worker.steps import begun, insert

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
CHILD = ChildState(7, ChildStatus.BUSY, 20.5, NOON, [ChildTask(new_task_id(), "add", NOON)], 1, 0)


@pytest.fixture
def ops(database: str, broker: PostgresBroker) -> Generator[Ops]:
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=database)))
    yield app.ops
    app.close()


def test_the_children_of_a_worker_are_listed_with_what_they_run(
    ops: Ops, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    running = worker(CLUSTER, processes=2, options=FORKED, env=settings())
    pids = {child.pid for child in running.children()}
    (worker_id,) = map(str, column(sql, "select id::text from horsies.workers"))
    before = row(sql, "select clock_timestamp()")[0]
    gate = insert(sql, "gate", begun=str(tmp_path / "begun"), until=str(tmp_path / "open"))
    pid = begun(tmp_path / "begun")
    ops.request_heartbeats([worker_id])

    def busy() -> list[ChildState]:
        return [child for child in ops.list_children(worker_id) if child.state is ChildStatus.BUSY]

    (found,) = eventually(busy, what="a child is shown as busy")
    assert (found.pid, found.running, found.waiting) == (pid, 1, 0)
    measured = eventually(lambda: [child.memory_mb for child in ops.list_children(worker_id) if child.memory_mb])
    assert min(measured) > 1
    (task,) = found.tasks
    assert (task.id, task.name) == (gate, "gate")
    # By the clock of the database, which is that of this machine. Its offset is measured, so it is not exact.
    assert abs(task.since - before) < timedelta(seconds=10)
    assert found.started_at < task.since
    assert {child.pid for child in ops.list_children(worker_id)} == pids
    assert {child.state for child in ops.list_children(worker_id) if child.pid != pid} == {ChildStatus.IDLE}
    (tmp_path / "open").touch()
    eventually(lambda: not busy(), what="its end is shown")


def test_a_worker_that_is_not_registered_has_no_children(ops: Ops) -> None:
    assert ops.list_children(ME) == []
    with pytest.raises(ValueError, match="'x' is not a valid worker id"):
        ops.list_children("x")


def test_what_is_stored_reads_as_it_was() -> None:
    idle = ChildState(8, ChildStatus.IDLE, None, NOON, [], 0, 0)
    assert children_from_json(children_to_json([CHILD, idle])) == [CHILD, idle]


def test_of_very_many_tasks_those_that_have_run_longest_are_stored() -> None:
    def child(pid: int, first: int, count: int) -> ChildState:
        tasks = [
            ChildTask(new_task_id(), "x" * 10_000, NOON + timedelta(seconds=first + 2 * number))
            for number in range(count)
        ]
        return replace(CHILD, pid=pid, tasks=tasks, running=count)

    text = children_to_json([child(1, 0, 150), child(2, 1, 150), child(3, 10_000, 150)])
    found = children_from_json(text)
    assert [(each.pid, each.running, len(each.tasks)) for each in found] == [(1, 150, 100), (2, 150, 100), (3, 150, 0)]
    assert max(task.since for each in found for task in each.tasks) == NOON + timedelta(seconds=MAX_TASKS - 1)
    assert len(text) < MAX_TASKS * (MAX_NAME + 100)
    same = [replace(CHILD, tasks=[replace(CHILD.tasks[0]) for _ in range(MAX_TASKS)]) for _ in range(2)]
    assert sum(len(each.tasks) for each in children_from_json(children_to_json(same))) == MAX_TASKS
    assert len(children_from_json(children_to_json([CHILD] * (MAX_CHILDREN + 1)))) == MAX_CHILDREN


@pytest.mark.parametrize(
    "stored",
    [
        "null",
        "7",
        '"x"',
        "{}",
        "[null, 7, [], {}]",
        '[{"pid": "x"}]',
        json.dumps([{**json.loads(children_to_json([CHILD]))[0], "started_at": 1e300}]),
        json.dumps([{**json.loads(children_to_json([CHILD]))[0], "started_at": 1e17}]),
        json.dumps([{**json.loads(children_to_json([CHILD]))[0], "tasks": [[1]]}]),
        json.dumps([{**json.loads(children_to_json([CHILD]))[0], "state": "asleep"}]),
    ],
)
def test_what_other_software_has_written_is_left_out(stored: str, ops: Ops, sql: psycopg.Connection) -> None:
    assert children_from_json(stored) == []
    sql.execute(
        "insert into horsies.workers (id, hostname, pid, processes, concurrency, queues, library_version, children) "
        "values (%s, 'h', 1, 1, 1, '{default}', '1', %s)",
        [ME, stored],
    )
    assert ops.list_children(ME) == []
    assert [worker.id for worker in ops.list_workers()] == [ME]


async def test_spares_and_children_that_leave_are_shown_as_such(tmp_path: Path) -> None:
    async with open_pool(max_tasks=2, concurrency=2, prefetch=2) as dispatcher:

        def states() -> dict[int, str]:
            return {child.pid: child.state.value for child in described(dispatcher)}

        (old,) = dispatcher.children
        assert states() == {old.pid: "idle"}
        gate = dispatcher.send("gate", until=str(tmp_path / "open"))
        await dispatcher.beginning(gate)
        assert states()[old.pid] == "busy"
        await dispatcher.until(lambda: "spare" in states().values(), "a spare is shown")
        (spare,) = set(states()) - {old.pid}
        await dispatcher.value("whoami")  # its last one
        await dispatcher.until(lambda: states() == {old.pid: "stopping", spare: "idle"}, "the spare has its place")
        (child,) = [child for child in described(dispatcher) if child.pid == old.pid]
        assert ([task.id for task in child.tasks], child.running) == ([gate], 1)
        (tmp_path / "open").touch()
        await dispatcher.ending(gate)


async def test_times_are_those_of_the_database_clock() -> None:
    async with open_pool() as dispatcher:
        (ours,), (ahead,) = described(dispatcher), described(dispatcher, 3_600.0)
        assert timedelta(minutes=59) < ahead.started_at - ours.started_at < timedelta(minutes=61)


def described(dispatcher: FakeDispatcher, offset_s: float = 0.0) -> list[ChildState]:
    assert dispatcher.pool is not None
    return dispatcher.pool.child_states(offset_s)
