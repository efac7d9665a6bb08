"""A real worker on more queues than one claim asks."""

import json
from pathlib import Path

import psycopg

from horsies.worker.watermarks import LANES_AT_ONCE
from tests.apps.settings import VARIABLE
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import row
from tests.fixtures.workers import StartWorker
from tests.worker.steps import insert, numbers, wait_until_ended

QUEUES = [f"queue-{number}" for number in range(60)]
"""In order of service, which is not the order of their names."""
SETTINGS = {
    "queues": [{"name": queue, "priority": place} for place, queue in enumerate(QUEUES)],
    "resilience": {"notify_poll_interval_ms": 300_000},
}
APP, ENV = "tests.apps.cluster:app", {VARIABLE: json.dumps(SETTINGS)}


ASLEEP = (
    "select now() - max(state_change) > interval '500 ms' from pg_stat_activity "
    "where datname = current_database() and application_name = 'horsies worker'"
)
"""Claims from the start, which would find everything, are over: from now on it knows only what it hears."""


def insert_one_in_each(sql: psycopg.Connection, log: Path) -> None:
    """The last to be served is the first to be sent."""
    for number, queue in reversed([*enumerate(QUEUES)]):
        insert(sql, "write_line", queue_name=queue, path=str(log), line=str(number))


def test_what_waits_in_many_queues_runs_in_their_order_and_what_comes_to_sleeping_ones_wakes_them(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    assert len(QUEUES) > LANES_AT_ONCE
    log = tmp_path / "log"
    insert_one_in_each(sql, log)
    worker(APP, env=ENV)
    wait_until_ended(sql, len(QUEUES))
    assert numbers(log) == [*range(len(QUEUES))]

    eventually(lambda: row(sql, ASLEEP) == (True,))
    insert_one_in_each(sql, log)
    wait_until_ended(sql, 2 * len(QUEUES))
    assert sorted(numbers(log)[len(QUEUES) :]) == [*range(len(QUEUES))]
