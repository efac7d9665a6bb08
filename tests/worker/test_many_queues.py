"""A real worker on more queues than one claim reads."""

import json
from pathlib import Path

import psycopg

from horsies.worker.watermarks import LANE_LIMITS
from tests.apps.settings import VARIABLE
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import row
from tests.fixtures.workers import StartWorker
from tests.worker.steps import insert, numbers, wait_until_ended

QUEUES = [f"queue-{number}" for number in range(60)]
"""In order of service, which is not the order of their names."""
SETTINGS = {
    "queues": [{"name": queue, "priority": position} for position, queue in enumerate(QUEUES)],
    "resilience": {"notify_poll_interval_ms": 300_000},
}
APP, ENV = "tests.apps.cluster:app", {VARIABLE: json.dumps(SETTINGS)}


IDLE = (
    "select now() - max(state_change) > interval '500 ms' from pg_stat_activity "
    "where datname = current_database() and application_name = 'horsies worker'"
)
"""The rescans, which would find everything, are over: from now on it claims only what is announced."""


def insert_one_in_each(sql: psycopg.Connection, log: Path) -> None:
    """Insert a task in each queue; the last to be served comes first."""
    for number, queue in reversed([*enumerate(QUEUES)]):
        insert(sql, "write_line", queue_name=queue, path=str(log), line=str(number))


def test_tasks_in_many_queues_run_in_order_and_new_ones_wake_sleeping_lanes(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    assert len(QUEUES) > LANE_LIMITS.lanes_per_claim
    log = tmp_path / "log"
    insert_one_in_each(sql, log)
    worker(APP, env=ENV)
    wait_until_ended(sql, len(QUEUES))
    assert numbers(log) == [*range(len(QUEUES))]

    eventually(lambda: row(sql, IDLE) == (True,))
    insert_one_in_each(sql, log)
    wait_until_ended(sql, 2 * len(QUEUES))
    assert sorted(numbers(log)[len(QUEUES) :]) == [*range(len(QUEUES))]
