"""Limits on what a real worker claims, none of which makes it wait without need."""

from pathlib import Path

import psycopg
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column
from tests.fixtures.workers import StartWorker
from tests.recovery.steps import insert_rows
from tests.worker.steps import begun, insert, insert_lines, numbers, statuses, wait_until_ended

TUNED = "tests.apps.tuned:app"  # which polls only every five minutes


@pytest.mark.promise("C16")
@pytest.mark.parametrize("prefetch", ["0", "8", "auto"])
def test_a_small_max_claim_batch_does_not_make_a_worker_with_free_slots_wait(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, prefetch: str
) -> None:
    """A queue from which a claim took all that it may take can have more."""
    log = tmp_path / "log"
    insert_lines(sql, log, 20)
    worker(TUNED, processes=2, options=("--max-claim-batch=1",), env={"HORSIES_TEST_PREFETCH": prefetch})
    insert_lines(sql, log, 20, first=20)
    assert wait_until_ended(sql, 40) == {"COMPLETED": 40}
    assert sorted(numbers(log)) == list(range(40))


@pytest.mark.promise("C17")
def test_without_a_buffer_a_worker_never_holds_more_than_max_claim_per_worker(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """Measured by the times of all claims and endings, and by the tasks that wait for the gate to open."""
    gate_file = tmp_path / "open"
    worker(TUNED, processes=4, options=("--max-claim-per-worker=2",))
    for number in range(4):
        insert(sql, "gate", begun=str(tmp_path / str(number)), until=str(gate_file))
    for number in range(2):
        begun(tmp_path / str(number))
    assert statuses(sql) == {"RUNNING": 2, "PENDING": 2}
    gate_file.touch()
    insert_lines(sql, tmp_path / "log", 60)
    wait_until_ended(sql, 64)
    assert most_at_once(sql) == 2


def most_at_once(sql: psycopg.Connection) -> int:
    """Return how many tasks were held at once. Of a claim and an ending at the same time, the ending counts first."""
    changes = sql.execute(
        "select claimed_at, 1 from horsies.finished union all select finished_at, -1 from horsies.finished"
    ).fetchall()
    held = most = 0
    for _at, change in sorted(changes):
        held += change
        most = max(most, held)
    return most


@pytest.mark.promise("C17", "C13")
def test_with_a_buffer_max_claim_per_worker_limits_the_waiting_claims(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    env = {"HORSIES_TEST_PREFETCH": "8"}
    worker(TUNED, processes=2, options=("--max-claim-per-worker=3",), env=env)
    gate_file = tmp_path / "open"
    for number in range(10):
        insert(sql, "gate", begun=str(tmp_path / str(number)), until=str(gate_file))
    eventually(
        lambda: statuses(sql) == {"RUNNING": 2, "CLAIMED": 3, "PENDING": 5},
        what="two run and three are buffered",
        seen=lambda: statuses(sql),
    )
    gate_file.touch()
    assert wait_until_ended(sql, 10) == {"COMPLETED": 10}


@pytest.mark.promise("C17")
@pytest.mark.parametrize(
    ("prefetch", "held"), [("0", {"RUNNING": 2}), ("8", {"RUNNING": 4, "CLAIMED": 2})], ids=["hard", "soft"]
)
def test_the_ceiling_holds_for_each_worker_whatever_its_processes(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, prefetch: str, held: dict[str, int]
) -> None:
    """Without a buffer it counts what runs, too; with one only what waits."""
    for _ in range(2):
        worker(TUNED, processes=4, options=("--max-claim-per-worker=2",), env={"HORSIES_TEST_PREFETCH": prefetch})
    gate_file = tmp_path / "open"
    insert_rows(sql, "gate", [{"begun": str(tmp_path / str(number)), "until": str(gate_file)} for number in range(20)])
    per_worker = "select status, count(*)::integer from horsies.tasks where claimed_by = %s group by status"

    def held_by_each() -> list[dict[str, int]]:
        ids = column(sql, "select id from horsies.workers")
        return [dict(sql.execute(per_worker.encode(), [worker_id]).fetchall()) for worker_id in ids]

    eventually(lambda: held_by_each() == [held, held], what="each holds its ceiling", seen=held_by_each)
    gate_file.touch()
    assert wait_until_ended(sql, 20, 60) == {"COMPLETED": 20}
