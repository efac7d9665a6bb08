"""Many tasks in one child, recycling under load, and the health that workers report."""

import os
import signal
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from tests.fixtures.apps import load_fresh
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column, row
from tests.fixtures.workers import StartWorker
from tests.recovery.steps import (
    CLUSTER,
    held_intervals,
    insert_rows,
    insert_spans,
    most_at_once,
    notes,
    settings,
    workers,
)
from tests.worker.steps import PATIENCE_MS, begun, statuses, wait_until_ended

MANY = 3_000


@pytest.mark.timeout(120)
@pytest.mark.promise("X1", "X2", "X4")
def test_thousands_of_async_sleeps_in_one_child_take_little_longer_than_one(
    worker: StartWorker, sql: psycopg.Connection
) -> None:
    worker(CLUSTER, processes=1, options=(f"--concurrency={MANY}", "--max-tasks-per-child=0"), env=settings())
    insert_rows(sql, "nap", ({"seconds": 1.0} for _ in range(MANY)))
    assert wait_until_ended(sql, MANY, 60) == {"COMPLETED": MANY}
    (running_s,) = row(
        sql, "select extract(epoch from max(finished_at) - min(started_at))::float8 from horsies.finished"
    )
    assert most_at_once(held_intervals(sql)) > MANY // 2
    assert running_s < 1 + 3


@pytest.mark.promise("X1", "X3")
def test_sync_tasks_run_beside_async_ones_and_failures_affect_no_others(
    basic: Any, worker: StartWorker, tmp_path: Path
) -> None:
    worker(CLUSTER, processes=1, options=("--concurrency=8",), env=settings())
    gate_file = tmp_path / "open"
    gates = [
        basic.gate.send(str(tmp_path / "sync"), str(gate_file)),
        basic.gate_async.send(str(tmp_path / "async"), str(gate_file)),
    ]
    pids = [begun(tmp_path / "sync"), begun(tmp_path / "async")]
    assert pids[0] == pids[1]  # one child
    broken = [basic.raise_error.send("no"), basic.decline.send("DECLINED"), basic.wrong_type.send()]
    codes = [handle.get(PATIENCE_MS).err_value.error_code for handle in broken]
    assert codes == ["UNHANDLED_ERROR", "DECLINED", "RETURN_TYPE_MISMATCH"]
    assert basic.add.send(2, 3).get(PATIENCE_MS).ok_value == 5
    gate_file.touch()
    assert [gate.get(PATIENCE_MS).ok_value for gate in gates] == pids


# -- what holds for workers holds for async tasks, with slots = processes x concurrency

SIX_SLOTS = ("--concurrency=3",)


def begin_six(basic: Any, folder: Path) -> dict[int, list[Any]]:
    """Six async gates, all begun: their handles by the child that runs them."""
    handles = [basic.gate_async.send(str(folder / str(number)), str(folder / "open")) for number in range(6)]
    running: dict[int, list[Any]] = {}
    for number, handle in enumerate(handles):
        running.setdefault(begun(folder / str(number)), []).append(handle)
    return running


@pytest.mark.promise("X4", "C1", "W10")
def test_async_tasks_fill_all_slots_and_end_before_a_worker_stops(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    stopping = worker(CLUSTER, processes=2, options=SIX_SLOTS, env=settings())
    running = begin_six(basic, tmp_path)
    assert sorted(len(handles) for handles in running.values()) == [3, 3]
    waiting = [basic.add.send(number, 1) for number in range(2)]
    stopping.signal(signal.SIGTERM)
    stopping.wait_for_log("claiming no more tasks")
    assert statuses(sql) == {"RUNNING": 6, "PENDING": 2}
    (tmp_path / "open").touch()
    assert stopping.wait() == 0
    assert statuses(sql) == {"COMPLETED": 6, "PENDING": 2}
    worker(CLUSTER, processes=1, options=SIX_SLOTS, env=settings())
    assert [handle.get(PATIENCE_MS).ok_value for handle in waiting] == [1, 2]


@pytest.mark.promise("X4", "W8", "W9", "A8")
def test_a_child_that_dies_fails_its_own_async_tasks_and_no_others(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    worker(CLUSTER, processes=2, options=SIX_SLOTS, env=settings())
    (dying, lost), (living, kept) = begin_six(basic, tmp_path).items()
    os.kill(dying, signal.SIGKILL)
    assert [handle.get(PATIENCE_MS).err_value.error_code for handle in lost] == ["WORKER_CRASHED"] * 3
    assert statuses(sql) == {"FAILED": 3, "RUNNING": 3}
    (begun_again,) = begin_three_more(basic, tmp_path)
    assert begun_again not in {dying, living}
    (tmp_path / "open").touch()
    assert [handle.get(PATIENCE_MS).ok_value for handle in kept] == [living] * 3


def begin_three_more(basic: Any, folder: Path) -> set[int]:
    """They find the slots of the child that died: the processes that run them."""
    for number in range(6, 9):
        basic.gate_async.send(str(folder / str(number)), str(folder / "open"))
    return {begun(folder / str(number)) for number in range(6, 9)}


# -- children that come and go


@pytest.mark.timeout(120)
@pytest.mark.promise("C2", "C3", "C4")
def test_recycling_under_load_never_leaves_fewer_children_than_processes(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    running = worker(CLUSTER, processes=2, options=("--max-tasks-per-child=2",), env=settings())
    insert_spans(sql, tmp_path / "log", 16, 0.1)
    least, most = 99, 0
    deadline = time.monotonic() + 60
    while row(sql, "select count(*) from horsies.finished") < (16,):
        # One that has left since it was listed may have a replacement that was not listed: so the list is read again.
        alive = max(sum(is_alive(child) for child in running.children()) for _ in range(2))
        least, most = min(least, alive), max(most, alive)
        assert time.monotonic() < deadline
    assert least >= 2
    assert most <= 4  # never more spares than children
    assert wait_until_ended(sql, 16) == {"COMPLETED": 16}
    pids = {line.split()[-1] for line in (tmp_path / "log").read_text().splitlines()}
    assert len(pids) >= 8
    assert row(sql, "select max(attempts) from horsies.finished") == (1,)


@pytest.mark.promise("C2")
@pytest.mark.parametrize(
    ("options", "served"),
    [
        ((), [100, 100, 50]),
        (("--max-tasks-per-child=60",), [60, 60, 60, 60, 10]),
        (("--max-tasks-per-child=0",), [250]),
    ],
    ids=["default", "60", "0"],
)
def test_a_child_serves_a_hundred_tasks_or_as_many_as_configured_and_with_zero_all_of_them(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, options: tuple[str, ...], served: list[int]
) -> None:
    worker(CLUSTER, processes=1, options=options, env=settings())
    insert_spans(sql, tmp_path / "log", 250, 0.0)
    assert wait_until_ended(sql, 250) == {"COMPLETED": 250}
    by_child = Counter(note.pid for note in notes(tmp_path / "log") if note.what == "begins")
    assert list(by_child.values()) == served


def is_alive(child: psutil.Process) -> bool:
    """Return whether it is alive now: it may exit at any time."""
    try:
        return child.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# -- health


@pytest.fixture
def cluster(database: str, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    monkeypatch.setenv("HORSIES_DATABASE_URL", database)
    module = load_fresh("cluster")
    yield module
    module.app.close()


@pytest.mark.promise("C8", "T5")
def test_health_snapshots_show_what_a_worker_and_its_children_use(
    cluster: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    running = worker(CLUSTER, processes=3, options=("--concurrency=3",), env=settings())
    gate = cluster.app.tasks["gate"].send(str(tmp_path / "begun"), str(tmp_path / "open"))
    begun(tmp_path / "begun")
    eventually(lambda: [state.tasks_running for state in cluster.app.worker_states()] == [1])
    (state,) = cluster.app.worker_states()
    assert [state.worker_id] == workers(sql)
    assert (state.pid, state.processes, state.concurrency, state.queues) == (running.pid, 3, 3, ["default"])
    parent = psutil.Process(running.pid).memory_info().rss / (1 << 20)
    children = [child.memory_info().rss / (1 << 20) for child in running.children()]
    assert len(children) == 3
    assert state.memory_usage_mb == pytest.approx(parent, rel=0.2)
    assert state.children_memory_mb == pytest.approx(sum(children), rel=0.2)
    assert state.tasks_claimed == 0
    assert state.cpu_percent >= 0
    (tmp_path / "open").touch()
    gate.get(PATIENCE_MS)
    eventually(lambda: [state.tasks_running for state in cluster.app.worker_states()] == [0])
    history = cluster.app.worker_states(state.worker_id)
    assert len(history) >= 2
    assert [one.snapshot_at for one in history] == sorted((one.snapshot_at for one in history), reverse=True)


@pytest.mark.promise("T5")
async def test_health_has_an_async_variant_and_one_state_for_each_worker(
    cluster: Any, worker: StartWorker, sql: psycopg.Connection
) -> None:
    for _ in range(2):
        worker(CLUSTER, env=settings())
    eventually(lambda: len(column(sql, "select distinct worker_id from horsies.worker_states")) == 2)
    states = await cluster.app.worker_states_async()
    assert sorted(state.worker_id for state in states) == sorted(workers(sql))
    await cluster.app.close_async()
