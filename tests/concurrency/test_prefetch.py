"""Prefetch with a number: rows wait in a worker's buffer under a lease, and caps count only running tasks."""

import signal
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.journey import row
from tests.fixtures.workers import StartWorker
from tests.recovery.steps import CLUSTER, FORKED, insert_rows, insert_spans, notes, settings
from tests.worker.steps import begun, insert, insert_lines, numbers, statuses, wait_until_ended


@pytest.mark.promise("C13", "C17")
@pytest.mark.parametrize(("options", "claimed"), [((), 3), (("--max-claim-per-worker=1",), 1)])
def test_a_worker_holds_its_slots_and_its_buffer_and_no_more(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, options: tuple[str, ...], claimed: int
) -> None:
    worker(CLUSTER, processes=2, options=options, env=settings(prefetch_buffer=3, claim_lease_ms=60_000))
    for number in range(10):
        insert(sql, "gate", begun=str(tmp_path / str(number)), until=str(tmp_path / "open"))
    held = {"RUNNING": 2, "CLAIMED": claimed, "PENDING": 8 - claimed}
    eventually(lambda: statuses(sql) == held, seen=lambda: statuses(sql))
    (tmp_path / "open").touch()
    assert wait_until_ended(sql, 10) == {"COMPLETED": 10}


@pytest.mark.promise("C13", "C14", "C17")
@pytest.mark.parametrize(("options", "claimed"), [((), 100), (("--max-claim-per-worker=2",), 2)])
def test_buffered_rows_stay_claimed_also_after_many_short_tasks(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path, options: tuple[str, ...], claimed: int
) -> None:
    """Only what had begun is RUNNING: what a killed worker only held is run by another."""
    env = settings(prefetch_buffer=100, claim_lease_ms=60_000)
    first = worker(CLUSTER, options=(*options, *FORKED), env=env)
    insert_lines(sql, tmp_path / "log", 500)
    wait_until_ended(sql, 500)
    insert(sql, "gate", begun=str(tmp_path / "begun"), until=str(tmp_path / "open"))
    insert_lines(sql, tmp_path / "log", 150, first=500)
    begun(tmp_path / "begun")
    held = {"COMPLETED": 500, "RUNNING": 1, "CLAIMED": claimed, "PENDING": 150 - claimed}
    eventually(lambda: statuses(sql) == held, seen=lambda: statuses(sql))
    first.kill()
    worker(CLUSTER, options=FORKED, env=env)
    assert wait_until_ended(sql, 651) == {"COMPLETED": 650, "FAILED": 1}
    assert sorted(numbers(tmp_path / "log")) == list(range(650))


@pytest.mark.promise("C13")
def test_the_cap_of_a_queue_counts_only_running_tasks(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """More than the cap may be in flight, but no more than the cap may run."""
    queues = [{"name": "narrow", "max_concurrency": 2}]
    env = settings(queues=queues, prefetch_buffer=4, claim_lease_ms=60_000)
    worker(CLUSTER, processes=1, env=env)
    for number in range(5):
        arguments = {"begun": str(tmp_path / str(number)), "until": str(tmp_path / "open")}
        insert_rows(sql, "gate", [arguments], queue_name="narrow")
        eventually(
            lambda held=number: statuses(sql) == {"RUNNING": 1, **({"CLAIMED": held} if held else {})},
            seen=lambda: statuses(sql),
        )
    worker(CLUSTER, processes=4, env=env)
    for number in range(5, 8):
        arguments = {"begun": str(tmp_path / str(number)), "until": str(tmp_path / "open")}
        insert_rows(sql, "gate", [arguments], queue_name="narrow")
    eventually(lambda: statuses(sql) == {"RUNNING": 2, "CLAIMED": 4, "PENDING": 2}, seen=lambda: statuses(sql))
    (tmp_path / "open").touch()
    assert wait_until_ended(sql, 8) == {"COMPLETED": 8}


@pytest.mark.promise("C14")
def test_an_expired_lease_is_taken_by_another_worker_and_the_first_one_does_not_run_it(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """The first is paused, so that it cannot release them itself; the second runs what it held, once."""
    env = settings(prefetch_buffer=4, claim_lease_ms=1_000, recovery={"dead_after_ms": 60_000})
    first = worker(CLUSTER, env=env)
    gate_file, log = tmp_path / "open", tmp_path / "log"
    insert(sql, "gate", begun=str(tmp_path / "begun"), until=str(gate_file))
    begun(tmp_path / "begun")
    second = worker(CLUSTER, env=env)
    insert(sql, "gate", begun=str(tmp_path / "other"), until=str(tmp_path / "other open"))
    begun(tmp_path / "other")
    second.signal(signal.SIGSTOP)
    insert_lines(sql, log, 3)
    eventually(lambda: statuses(sql) == {"RUNNING": 2, "CLAIMED": 3}, seen=lambda: statuses(sql))
    first.signal(signal.SIGSTOP)
    second.signal(signal.SIGCONT)
    (tmp_path / "other open").touch()
    eventually(lambda: statuses(sql) == {"RUNNING": 1, "COMPLETED": 4}, 30, seen=lambda: statuses(sql))
    first.signal(signal.SIGCONT)
    gate_file.touch()
    assert wait_until_ended(sql, 5) == {"COMPLETED": 5}
    assert sorted(numbers(log)) == [0, 1, 2]
    assert row(
        sql, "select min(claim_no) >= 2, max(attempts) from horsies.finished where task_name = 'write_line'"
    ) == (
        True,
        1,
    )


@pytest.mark.promise("C14")
def test_a_worker_does_not_run_what_another_has_taken_from_its_buffer(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """By its own clock the first worker still has a lease of a minute: only the database can stop it from running the tasks."""
    first = worker(CLUSTER, env=settings(prefetch_buffer=3, claim_lease_ms=60_000))
    insert(sql, "gate", begun=str(tmp_path / "begun"), until=str(tmp_path / "open"))
    begun(tmp_path / "begun")
    taken, later = [tmp_path / str(number) for number in range(3)], tmp_path / "later"
    insert_rows(sql, "gate", [{"begun": str(path), "until": str(later)} for path in taken])
    eventually(lambda: statuses(sql) == {"RUNNING": 1, "CLAIMED": 3}, seen=lambda: statuses(sql))
    second = worker(CLUSTER, processes=3, env=settings())
    sql.execute("update horsies.tasks set lease_until = now() - interval '1 s' where status = 'CLAIMED'")
    pids = {begun(path) for path in taken}
    assert pids <= {process.pid for process in psutil.Process(second.pid).children(recursive=True)}
    insert_lines(sql, tmp_path / "log", 1)  # the first worker's: the second is full, and it waits behind what was taken
    (tmp_path / "open").touch()
    runs = [1, 1, 1]
    eventually(lambda: numbers(tmp_path / "log") == [0] or [len(numbers(path)) for path in taken] != runs)
    assert [len(numbers(path)) for path in taken] == runs
    later.touch()
    assert wait_until_ended(sql, 5) == {"COMPLETED": 5}
    assert [len(numbers(path)) for path in taken] == runs
    assert first.terminate() == 0


@pytest.mark.promise("C14")
def test_a_worker_releases_what_it_could_not_start_within_the_lease(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """And claims it again, because there is no other worker."""
    worker(CLUSTER, env=settings(prefetch_buffer=2, claim_lease_ms=1_000))
    insert(sql, "gate", begun=str(tmp_path / "begun"), until=str(tmp_path / "open"))
    begun(tmp_path / "begun")
    insert_spans(sql, tmp_path / "log", 1, 0.0)
    eventually(lambda: row(sql, "select max(claim_no) from horsies.tasks") >= (3,), 20)
    (tmp_path / "open").touch()
    assert wait_until_ended(sql, 2) == {"COMPLETED": 2}
    assert [note.what for note in notes(tmp_path / "log")] == ["begins", "ends"]
