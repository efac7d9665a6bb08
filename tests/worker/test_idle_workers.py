"""More idle workers than listen: tasks reach all of them, and none is lost when some of them are killed.

The workers never poll by `notify_poll_interval_ms`, so only the group of `db/listen_group.py` brings tasks to those that do not listen.
"""

from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.db.listen_group import SLOTS
from horsies.db.statement import rows
from horsies.model.status import TaskStatus
from horsies.tasks.claim import EPOCH, NO_CAPS, Caps, Lane
from horsies.worker.wakeups import call_for_help, look_for_work
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import ME, claim, column
from tests.fixtures.workers import StartWorker, Worker
from tests.worker.steps import PATIENCE_MS, insert, statuses, wait_until_ended

WORKERS = SLOTS + 2
HELD = (
    "select objid from pg_locks where locktype = 'advisory' and objsubid = 2 and objid < 100 and granted "
    "and database = (select oid from pg_database where datname = current_database())"
)


@pytest.fixture
def workers(worker: StartWorker, sql: psycopg.Connection) -> list[Worker]:
    """More than can listen, each with one child."""
    started = [worker("tests.apps.tuned:app") for _ in range(WORKERS)]
    eventually(lambda: len(column(sql, HELD)) == SLOTS, what="all slots are taken")
    return started


@pytest.mark.promise("A7")
def test_a_burst_occupies_every_worker(workers: list[Worker], sql: psycopg.Connection, tmp_path: Path) -> None:
    for number in range(WORKERS):
        insert(sql, "gate", begun=str(tmp_path / f"begun-{number}"), until=str(tmp_path / "open"))
    eventually(lambda: statuses(sql)["RUNNING"] == WORKERS, what="every child has a task")
    (tmp_path / "open").touch()
    wait_until_ended(sql, WORKERS)
    assert len(workers) == WORKERS


@pytest.mark.promise("W14", "A7")
def test_tasks_are_run_although_idle_workers_are_killed(
    workers: list[Worker], basic: Any, sql: psycopg.Connection
) -> None:
    """Also those whose turn it would be to take them."""
    for killed in workers[: WORKERS - 1]:
        killed.kill()
        handles = [basic.echo.send(number) for number in range(8)]
        assert all(handle.get(PATIENCE_MS).is_ok() for handle in handles)
    eventually(lambda: len(column(sql, HELD)) == 1, what="the last one listens alone")


def test_a_worker_that_does_not_listen_is_not_called_for_a_paused_queue(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    """It would claim without success at every poll."""
    insert(sql, "echo", value=1)
    assert broker.run(lambda: rows(look_for_work(ME, ["default"]))) == [(True, False)]
    sql.execute("insert into horsies.queues (name, paused_at) values ('default', now())")
    assert broker.run(lambda: rows(look_for_work(ME, ["default"]))) == [(False, False)]
    assert broker.run(lambda: rows(look_for_work(ME, ["default", "other"]))) == [(False, False)]
    insert(sql, "echo", queue_name="other", value=1)
    assert broker.run(lambda: rows(look_for_work(ME, ["default", "other"]))) == [(True, False)]


@pytest.mark.parametrize("by", ["app", "operator", "cluster"])
def test_a_worker_that_does_not_listen_leaves_a_queue_at_its_cap_alone(
    broker: PostgresBroker, sql: psycopg.Connection, by: str
) -> None:
    """Each claim without a result would hold the lock of the cap, which the workers with work wait for."""
    for _ in range(3):
        insert(sql, "echo", value=1)
    claim(broker, 2)

    def looks(cap: int, *queues: str) -> tuple[bool, bool]:
        """Return what it finds with this cap, and whether it calls others."""
        caps = {"app": Caps(queues={"default": cap}), "operator": NO_CAPS, "cluster": Caps(cluster_wide=cap)}[by]
        if by == "operator":
            sql.execute("delete from horsies.queues")
            sql.execute("insert into horsies.queues (name, max_concurrency) values ('default', %s)", [cap])
        (found,) = broker.run(lambda: rows(look_for_work(ME, queues, caps)))
        return found[0], bool(broker.run(partial(call_for_help, queues, Lane("default", 100, EPOCH), caps)))

    assert looks(3, "default") == (True, True)
    assert looks(2, "default") == (False, False)
    insert(sql, "echo", queue_name="other", value=1)
    assert looks(2, "default", "other") == (by != "cluster", by != "cluster")


def test_with_a_prefetch_buffer_only_running_tasks_count(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    caps = Caps(queues={"default": 1}, counted=(TaskStatus.RUNNING,))
    insert(sql, "echo", value=1)
    insert(sql, "echo", value=1)
    claim(broker, 1, status=TaskStatus.CLAIMED)
    assert broker.run(lambda: rows(look_for_work(ME, ["default"], caps))) == [(True, False)]


def test_a_worker_that_stops_leaves_new_tasks_to_the_others(
    worker: StartWorker, basic: Any, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """While it waits for its task to end, it is no longer called."""
    first = worker("tests.apps.tuned:app")
    eventually(lambda: len(column(sql, HELD)) == 1)  # a worker that is full takes no slot
    gate = basic.gate.send(str(tmp_path / "begun"), str(tmp_path / "open"))
    eventually((tmp_path / "begun").exists)
    worker("tests.apps.tuned:app")
    eventually(lambda: len(column(sql, HELD)) == 2)
    first.process.terminate()
    eventually(lambda: len(column(sql, HELD)) == 1, what="it has given up its slot")
    assert all(basic.echo.send(number).get(PATIENCE_MS).is_ok() for number in range(5))
    (tmp_path / "open").touch()
    assert gate.get(PATIENCE_MS).is_ok()
    assert first.wait() == 0


def test_a_task_is_cancelled_on_a_worker_that_does_not_listen(
    worker: StartWorker, basic: Any, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """Its heartbeats are far apart; it finds the request when it polls."""
    env = {"HORSIES_TEST_HEARTBEAT_MS": "60000", "HORSIES_TEST_DEAD_AFTER_MS": "300000"}
    for _ in range(WORKERS):
        worker("tests.apps.tuned:app", env=env)
    gates = [basic.gate.send(str(tmp_path / f"begun-{number}"), str(tmp_path / "open")) for number in range(WORKERS)]
    eventually(lambda: statuses(sql)["RUNNING"] == WORKERS)
    for gate in gates:
        gate.cancel()
    assert [gate.get(PATIENCE_MS).err_value.error_code for gate in gates] == ["TASK_CANCELLED"] * WORKERS
