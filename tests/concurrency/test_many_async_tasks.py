"""Many tasks in one child, recycling under load, and the health that workers report."""

import time
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
from tests.recovery.steps import CLUSTER, held_intervals, insert_rows, insert_spans, most_at_once, settings, workers
from tests.worker.steps import PATIENCE_MS, begun, wait_until_ended

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
        alive = sum(is_alive(child) for child in psutil.Process(running.pid).children())
        least, most = min(least, alive), max(most, alive)
        assert time.monotonic() < deadline
    assert least >= 2
    assert most <= 3  # one spare at a time
    assert wait_until_ended(sql, 16) == {"COMPLETED": 16}
    pids = {line.split()[-1] for line in (tmp_path / "log").read_text().splitlines()}
    assert len(pids) >= 8
    assert row(sql, "select max(attempts) from horsies.finished") == (1,)


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
    running = worker(CLUSTER, processes=2, options=("--concurrency=3",), env=settings())
    gate = cluster.app.tasks["gate"].send(str(tmp_path / "begun"), str(tmp_path / "open"))
    begun(tmp_path / "begun")
    eventually(lambda: [state.tasks_running for state in cluster.app.worker_states()] == [1])
    (state,) = cluster.app.worker_states()
    assert [state.worker_id] == workers(sql)
    assert (state.pid, state.processes, state.concurrency, state.queues) == (running.pid, 2, 3, ["default"])
    parent = psutil.Process(running.pid).memory_info().rss / (1 << 20)
    children = sum(child.memory_info().rss for child in running.children()) / (1 << 20)
    assert state.memory_usage_mb == pytest.approx(parent, rel=0.5)
    assert state.children_memory_mb == pytest.approx(children, rel=0.5)
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
