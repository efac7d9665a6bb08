"""Caps across workers, under load and when workers are killed: never exceeded."""

import signal
import time
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column, row
from tests.fixtures.workers import READY, StartWorker, Worker
from tests.recovery.steps import (
    CLUSTER,
    FORKED,
    each_ended_once,
    held_intervals,
    insert_spans,
    most_at_once,
    noted_intervals,
    notes,
    settings,
)
from tests.worker.steps import insert_lines, wait_until_ended

CAP = 5


def start_four(worker: StartWorker, env: dict[str, str], options: tuple[str, ...] = ()) -> list[Worker]:
    """Start four workers with four slots each."""
    started = [
        worker(CLUSTER, processes=2, options=("--concurrency=2", *FORKED, *options), env=env, until_ready=False)
        for _ in range(4)
    ]
    for one in started:
        one.wait_for_log(READY, 30)
    return started


def kill_while_busy(worker: Worker, sql: psycopg.Connection) -> dict[int, float]:
    """Kill the worker with SIGKILL while it holds tasks. Returns when each of its children died."""
    children = {child.pid for child in psutil.Process(worker.pid).children(recursive=True)}
    holds = "select tasks.id from horsies.tasks join horsies.workers on workers.id = tasks.claimed_by where workers.pid = %s"

    def is_caught() -> bool:
        worker.signal(signal.SIGSTOP)
        if column(sql, holds, worker.pid):
            return True
        worker.signal(signal.SIGCONT)
        return False

    eventually(is_caught, 20, what="a task is its own")
    worker.kill()
    return dict.fromkeys(children, time.monotonic())


@pytest.mark.timeout(120)
@pytest.mark.promise("C11", "C12", "W14", "T2")
def test_a_cluster_wide_cap_is_never_exceeded_while_workers_are_killed(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    started = start_four(worker, settings(cluster_wide_cap=CAP))
    insert_spans(sql, log, 400, 0.02)
    died: dict[int, float] = {}
    for number, victim in enumerate(started[:2], 1):
        eventually(lambda least=40 * number: len(notes(log)) > least, 30)
        died |= kill_while_busy(victim, sql)
    assert wait_until_ended(sql, 400, 60) == {"COMPLETED": 400}
    each_ended_once(sql, 400)
    held = held_intervals(sql)
    assert len(held) > 400  # tasks whose worker was killed count twice
    assert most_at_once(held) == CAP
    assert most_at_once(noted_intervals(log, died)) <= CAP


@pytest.mark.timeout(120)
@pytest.mark.promise("C10", "C11", "C12")
def test_the_cap_of_a_queue_is_never_exceeded_across_workers(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    queues = [{"name": "narrow", "priority": 1, "max_concurrency": 3}, {"name": "wide", "priority": 2}]
    started = start_four(worker, settings(queues=queues))
    log, other = tmp_path / "narrow", tmp_path / "wide"
    insert_spans(sql, log, 150, 0.02, queue_name="narrow")
    insert_spans(sql, other, 150, 0.02, queue_name="wide")
    eventually(lambda: len(notes(log)) > 40, 30)
    died = kill_while_busy(started[0], sql)
    assert wait_until_ended(sql, 300, 60) == {"COMPLETED": 300}
    each_ended_once(sql, 300)
    assert most_at_once(held_intervals(sql, "narrow")) == 3
    assert most_at_once(noted_intervals(log, died)) <= 3
    assert most_at_once(held_intervals(sql, "wide")) > 3


@pytest.mark.promise("C10", "C11", "X4")
def test_the_tighter_of_two_caps_decides(worker: StartWorker, sql: psycopg.Connection, tmp_path: Path) -> None:
    queues = [{"name": "narrow", "max_concurrency": 2}, {"name": "wide", "max_concurrency": 50}]
    env = settings(queues=queues, cluster_wide_cap=4)
    for _ in range(2):
        worker(CLUSTER, processes=1, options=("--concurrency=8",), env=env)
    for name in ("narrow", "wide"):
        insert_spans(sql, tmp_path / name, 40, 0.02, name="span_async", queue_name=name)
    wait_until_ended(sql, 80)
    assert most_at_once(held_intervals(sql, "narrow")) == 2
    assert most_at_once(held_intervals(sql)) == 4


@pytest.mark.promise("C1", "C17", "X4")
@pytest.mark.parametrize("task", ["span", "span_async"])
@pytest.mark.parametrize(
    ("options", "most"),
    [
        ((), 2),
        (("--max-claim-per-worker=1",), 1),
        (("--concurrency=3",), 6),
        (("--concurrency=3", "--max-claim-per-worker=4"), 4),
    ],
)
def test_a_worker_holds_no_more_than_its_slots_or_max_claim_per_worker(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, task: str, options: tuple[str, ...], most: int
) -> None:
    worker(CLUSTER, processes=2, options=options, env=settings())
    insert_spans(sql, tmp_path / "log", 24, 0.02, name=task)
    wait_until_ended(sql, 24)
    assert most_at_once(held_intervals(sql)) == most
    assert row(sql, "select max(attempts), max(claim_no) from horsies.finished") == (1, 1)


def test_a_lock_of_another_program_is_logged_and_waited_for(
    worker: StartWorker, sql: psycopg.Connection, database: str, tmp_path: Path
) -> None:
    running = worker(CLUSTER, processes=1, env=settings(cluster_wide_cap=1))
    with psycopg.connect(database) as other_program:
        other_program.execute("select pg_advisory_xact_lock(hashtextextended('horsies cap horsies cluster', 0))")
        insert_lines(sql, tmp_path / "log", 1)
        running.wait_for_log("timed out waiting for a lock that another session holds", 30)
        other_program.rollback()
    assert wait_until_ended(sql, 1) == {"COMPLETED": 1}
