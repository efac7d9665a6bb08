"""Several hosts, as network namespaces. One is cut off while it runs a task, and is connected again."""

import random
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from benchmarks.chaos.fleet import Fleet, Worker, WorkerSpec
from benchmarks.chaos.hosts import Hosts, scratch_hosts, why_unavailable
from benchmarks.chaos.notes import Note, read_notes
from benchmarks.chaos.shop import make_shop
from horsies.db.broker import PostgresBroker
from horsies.model.config import PostgresConfig
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import row

ONE_SLOT = ("--processes=1", "--max-tasks-per-child=0")
DEAD_AFTER_MS = 2_000
SECONDS = 2.0
PATIENCE_S = 60


@pytest.fixture
def hosts() -> Generator[Hosts]:
    if (reason := why_unavailable()) is not None:
        pytest.skip(reason)
    with scratch_hosts(2, {"fsync": "off"}) as made:
        PostgresBroker(PostgresConfig(database_url=made.server.socket_url())).migrate()
        yield made


@pytest.fixture
def fleet(hosts: Hosts, tmp_path: Path) -> Generator[Fleet]:
    """A worker with one slot on each host."""
    specs = [WorkerSpec(hosts.url(host), ONE_SLOT, before=host.enter) for host in hosts.all]
    with closing(Fleet(tmp_path, specs, dead_after_ms=DEAD_AFTER_MS, rng=random.Random(1))) as made:  # noqa: S311 - no secret
        made.start()
        yield made


@pytest.mark.timeout(240)
@pytest.mark.promise("W14", "T2")
def test_a_host_that_is_cut_off_loses_its_task_and_registers_with_a_new_id(hosts: Hosts, fleet: Fleet) -> None:
    host, worker = hosts.all[0], fleet.live[0]
    with psycopg.connect(hosts.server.socket_url(), autocommit=True) as sql:
        former = incarnation(sql, worker)
        begun = begin_at(worker, hosts, fleet)
        host.down()
        eventually(lambda: crashes(sql, begun.task_id), PATIENCE_S, what="its task is rescued")
        eventually(lambda: has_ended(begun, fleet), PATIENCE_S, what="its run ends late")
        host.up()
        eventually(lambda: incarnation(sql, worker) not in (None, former), PATIENCE_S, what="it registers again")
        eventually(lambda: has_finished(sql, begun.task_id), PATIENCE_S, what="the task ends")
        status, attempts, result = row(
            sql, "select status, attempts, result from horsies.finished where id = %s", begun.task_id
        )
    assert worker.is_alive
    assert attempts > 1
    # The result of the last attempt: that of the first one came too late.
    assert (status, result[1]) == ("COMPLETED", attempts)


def begin_at(worker: Worker, hosts: Hosts, fleet: Fleet) -> Note:
    """Send two tasks for two slots: one of them begins at this worker. Return its note."""
    shop = make_shop(hosts.server.socket_url(), dead_after_ms=DEAD_AFTER_MS)
    with closing(shop.app):
        for n in range(2):
            shop.steady.send(n, SECONDS)

    def begun() -> Note | None:
        return next((note for note in read_notes(fleet.notes) if note.worker == worker.name), None)

    found = eventually(begun, PATIENCE_S, what="a task begins there")
    assert found is not None
    return found


def has_ended(begun: Note, fleet: Fleet) -> bool:
    return any(
        (note.what, note.task_id, note.attempt) == ("end", begun.task_id, begun.attempt)
        for note in read_notes(fleet.notes)
    )


def incarnation(sql: psycopg.Connection, worker: Worker) -> str | None:
    row = sql.execute("select id::text from horsies.workers where pid = %s", [worker.pid]).fetchone()
    return None if row is None else row[0]


def crashes(sql: psycopg.Connection, task_id: str) -> int:
    return row(sql, "select attempts from horsies.all_tasks where id = %s", task_id)[0]


def has_finished(sql: psycopg.Connection, task_id: str) -> bool:
    return row(sql, "select exists (select from horsies.finished where id = %s)", task_id)[0]
