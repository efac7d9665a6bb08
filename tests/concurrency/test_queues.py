"""Queues: their order, pausing and resuming, and the locks of their caps."""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.model.errors import QueueError
from horsies.model.status import TaskStatus
from horsies.tasks.claim import (
    Caps,
    ClaimFrom,
    ClaimRequest,
    claim_tasks,
    lanes_from_start,
    lock_caps,
)
from tests.fixtures.apps import load_fresh
from tests.fixtures.eventually import eventually, wait_until_blocked
from tests.fixtures.journey import ME, column, do, row
from tests.fixtures.workers import StartWorker
from tests.recovery.steps import CLUSTER, insert_rows, insert_spans, notes, settings
from tests.worker.steps import statuses, wait_until_ended

QUEUES = [{"name": "first", "priority": 1}, {"name": "second", "priority": 2}, {"name": "third", "priority": 3}]


@pytest.fixture
def cluster(database: str, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    """The app with three queues, as a producer and to pause and resume them."""
    monkeypatch.setenv("HORSIES_DATABASE_URL", database)
    for name, value in settings(queues=QUEUES).items():
        monkeypatch.setenv(name, value)
    module = load_fresh("cluster")
    yield module
    module.app.close()


def lines(sql: psycopg.Connection, log: Path, queue_name: str, *words: object) -> None:
    insert_rows(sql, "write_line", [{"path": str(log), "line": str(word)} for word in words], queue_name=queue_name)


def written(log: Path) -> list[str]:
    return log.read_text().split() if log.exists() else []


@pytest.mark.promise("C9", "C20", "W4")
def test_queues_are_served_in_the_order_of_their_priority(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    for queue in ("third", "first", "second"):
        lines(sql, log, queue, *[queue] * 5)
    worker(CLUSTER, env=settings(queues=QUEUES))
    wait_until_ended(sql, 15)
    assert written(log) == ["first"] * 5 + ["second"] * 5 + ["third"] * 5


@pytest.mark.promise("C20", "C10")
def test_slots_that_a_capped_queue_leaves_free_go_to_the_next_queue(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    queues = [{"name": "first", "priority": 1, "max_concurrency": 1}, {"name": "second", "priority": 2}]
    for queue in ("first", "second"):
        insert_spans(sql, tmp_path / queue, 8, 30.0, name="span_async", queue_name=queue)
    running = worker(CLUSTER, options=("--concurrency=4",), env=settings(queues=queues))
    counts = "select queue_name, count(*) from horsies.tasks where status = 'RUNNING' group by 1 order by 1"
    eventually(lambda: sql.execute(counts.encode()).fetchall() == [("first", 1), ("second", 3)])
    running.kill()


@pytest.mark.promise("C9")
def test_a_worker_serves_only_its_configured_queues(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    for queue in ("first", "second", "third"):
        lines(sql, log, queue, queue)
    worker(CLUSTER, options=("--queues=third,second",), env=settings(queues=QUEUES))
    eventually(lambda: statuses(sql) == {"COMPLETED": 2, "PENDING": 1})
    assert written(log) == ["second", "third"]


@pytest.mark.promise("C10")
def test_a_cap_of_zero_pauses_a_queue(worker: StartWorker, sql: psycopg.Connection, tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines(sql, log, "closed", "no")
    lines(sql, log, "open", "yes", "yes")
    queues = [{"name": "closed", "priority": 1, "max_concurrency": 0}, {"name": "open", "priority": 2}]
    worker(CLUSTER, env=settings(queues=queues))
    eventually(lambda: statuses(sql) == {"COMPLETED": 2, "PENDING": 1})
    assert written(log) == ["yes", "yes"]


def test_a_queue_is_paused_and_resumed_for_every_worker_at_once(
    cluster: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    env = settings(queues=QUEUES, resilience={"notify_poll_interval_ms": 300_000})
    for _ in range(2):
        worker(CLUSTER, env=env)
    log = tmp_path / "log"
    cluster.app.pause_queue("first")
    cluster.app.pause_queue("first")  # pausing twice is harmless
    lines(sql, log, "first", *["first"] * 3)
    lines(sql, log, "second", *["second"] * 3)
    eventually(lambda: statuses(sql) == {"COMPLETED": 3, "PENDING": 3})
    assert set(written(log)) == {"second"}
    sleeps = "select max(state_change) < now() - interval '300 ms' from pg_stat_activity where application_name = %s"
    eventually(lambda: row(sql, sleeps, "horsies worker") == (True,), what="they have nothing to do")
    cluster.app.resume_queue("first")  # wakes them: they do not poll
    assert wait_until_ended(sql, 6) == {"COMPLETED": 6}


async def test_pausing_and_resuming_have_async_variants_and_check_the_name_of_the_queue(
    cluster: Any, sql: psycopg.Connection
) -> None:
    paused = "select name from horsies.queues where paused_at is not null"
    await cluster.app.pause_queue_async("second")
    assert column(sql, paused) == ["second"]
    await cluster.app.resume_queue_async("second")
    assert column(sql, paused) == []
    with pytest.raises(QueueError, match="there is no queue 'nowhere'; this app has 'first', 'second', 'third'"):
        await cluster.app.pause_queue_async("nowhere")
    await cluster.app.close_async()


# -- what a cap costs


def cap_lock(queue: str | None) -> str:
    return f"select pg_advisory_xact_lock(hashtextextended('{cap_key(queue)}', 0))"


def cap_key(queue: str | None) -> str:
    return f"horsies cap horsies {'cluster' if queue is None else f'queue {queue}'}"


def test_the_lock_used_in_these_tests_is_the_one_that_claims_take(
    broker: PostgresBroker, sql: psycopg.Connection, database: str
) -> None:
    """Otherwise the tests below would hold a lock that no claim needs."""
    with psycopg.connect(database) as holder, ThreadPoolExecutor(1) as thread:
        holder.execute(cap_lock("first").encode())
        locking = thread.submit(do, broker, lock_caps(Caps(queues={"first": 1}).lock_keys(["first"]), "horsies"))
        wait_until_blocked(sql, on=holder)
        holder.rollback()
        locking.result(10)


@pytest.mark.promise("C19")
def test_workers_on_disjoint_capped_queues_do_not_contend(
    worker: StartWorker, sql: psycopg.Connection, database: str, tmp_path: Path
) -> None:
    queues = [{"name": "first", "max_concurrency": 2}, {"name": "second", "max_concurrency": 2}]
    log = tmp_path / "log"
    for queue in ("first", "second"):
        worker(CLUSTER, options=(f"--queues={queue}",), env=settings(queues=queues))
    with psycopg.connect(database) as holder:
        holder.execute(cap_lock("first").encode())
        for queue in ("first", "second"):
            lines(sql, log, queue, *[queue] * 5)
        wait_until_blocked(sql, on=holder)
        eventually(lambda: statuses(sql) == {"COMPLETED": 5, "PENDING": 5}, seen=lambda: statuses(sql))
        assert set(written(log)) == {"second"}
    assert wait_until_ended(sql, 10) == {"COMPLETED": 10}


@pytest.mark.promise("C19")
def test_a_pass_locks_its_capped_queues_one_after_the_other_in_sorted_order(
    worker: StartWorker, sql: psycopg.Connection, database: str, tmp_path: Path
) -> None:
    """The key of `d` is held: a worker that waits for it has the keys that sort before it, and nothing but those."""
    queues = [
        {"name": "d", "priority": 1, "max_concurrency": 2},
        {"name": "a", "priority": 2, "max_concurrency": 2},
        {"name": "e", "priority": 3, "max_concurrency": 2},
        {"name": "b", "priority": 4},
        {"name": "c", "priority": 5, "max_concurrency": 2},
    ]
    worker(CLUSTER, options=("--queues=a,b,d,e",), env=settings(queues=queues))
    with psycopg.connect(database) as holder:
        holder.execute(cap_lock("d").encode())
        for name in ("a", "b", "d", "e"):
            lines(sql, tmp_path / "log", name, name)
        claiming = wait_until_blocked(sql, on=holder)
        assert cap_locks(sql, claiming, ["a", "b", "c", "d", "e", None]) == {"a": True, "d": False}
    assert wait_until_ended(sql, 4) == {"COMPLETED": 4}


@pytest.mark.promise("C19")
def test_with_a_cluster_wide_cap_one_lock_comes_first(
    worker: StartWorker, sql: psycopg.Connection, database: str, tmp_path: Path
) -> None:
    """Its key is held: a worker that waits for it has no other."""
    queues = [{"name": "a", "max_concurrency": 2}, {"name": "z", "max_concurrency": 2}]
    worker(CLUSTER, env=settings(queues=queues, cluster_wide_cap=3))
    with psycopg.connect(database) as holder:
        holder.execute(cap_lock(None).encode())
        for name in ("a", "z"):
            lines(sql, tmp_path / "log", name, name)
        claiming = wait_until_blocked(sql, on=holder)
        assert cap_locks(sql, claiming, ["a", "z", None]) == {None: False}
    assert wait_until_ended(sql, 2) == {"COMPLETED": 2}


def cap_locks(sql: psycopg.Connection, pid: int, queues: list[str | None]) -> dict[str | None, bool]:
    """Of the session with this process id: the locks of these caps that it has (True) or waits for (False)."""
    found: dict[str | None, bool] = {}
    for queue in queues:
        query = (
            "select granted from pg_locks where locktype = 'advisory' and pid = %s and objsubid = 1 "
            "and (classid::bigint << 32) | objid::bigint = hashtextextended(%s, 0)"
        )
        for granted in column(sql, query, pid, cap_key(queue)):
            found[queue] = bool(granted)
    return found


@pytest.mark.promise("C19")
def test_a_cluster_wide_cap_takes_one_lock_for_all(
    worker: StartWorker, sql: psycopg.Connection, database: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    worker(CLUSTER, env=settings(cluster_wide_cap=3))
    with psycopg.connect(database) as holder:
        holder.execute(cap_lock(None).encode())
        lines(sql, log, "default", "late")
        wait_until_blocked(sql, on=holder)
        assert statuses(sql) == {"PENDING": 1}
    assert wait_until_ended(sql, 1) == {"COMPLETED": 1}


@pytest.mark.promise("C19", "C10")
def test_without_caps_there_is_no_lock_and_no_count(
    broker: PostgresBroker, sql: psycopg.Connection, worker: StartWorker, tmp_path: Path
) -> None:
    assert Caps().lock_keys(["first"]) == []
    assert Caps(queues={"second": 1}).lock_keys(["first"]) == []
    # The plan of a claim has a step that counts what is in flight; without a cap it is never executed.
    insert_spans(sql, tmp_path / "log", 3, 0.0)
    uncapped = explained(broker, ClaimRequest(ME, TaskStatus.RUNNING, 1, 60_000))
    capped = explained(broker, ClaimRequest(ME, TaskStatus.RUNNING, 1, 60_000, caps=Caps(queues={"default": 9})))
    assert "never executed" in counting(uncapped)
    assert "never executed" not in counting(capped)
    from_marks = explained(broker, ClaimRequest(ME, TaskStatus.RUNNING, 1, 60_000), watermarks=True)
    assert "Aggregate" not in from_marks or "never executed" in counting(from_marks)


def explained(broker: PostgresBroker, request: ClaimRequest, *, watermarks: bool = False) -> str:
    query = claim_tasks(request, lanes_from_start(["default"]), ClaimFrom.WATERMARKS if watermarks else ClaimFrom.START)
    statement = query.statement
    prefixed = type(statement)(statement.name, f"explain (analyze, costs off, timing off) {statement.text}")
    (rows,) = do(broker, type(query)(prefixed, query.params))
    return "\n".join(line for (line,) in rows)


def counting(plan: str) -> str:
    """Return the lines of the plan that count tasks."""
    return "\n".join(line for line in plan.splitlines() if "Aggregate" in line)


@pytest.mark.promise("C16", "X4")
def test_max_claim_batch_limits_what_is_claimed_from_one_queue(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    for queue in ("first", "second"):
        insert_spans(sql, tmp_path / queue, 6, 0.05, name="span_async", queue_name=queue)
    worker(CLUSTER, options=("--concurrency=12", "--max-claim-batch=2"), env=settings(queues=QUEUES))
    wait_until_ended(sql, 12)
    batches = "select count(*) as size from horsies.finished group by queue_name, claimed_at"
    assert row(sql, f"select max(size) from ({batches}) as batch") == (2,)
    assert len(notes(tmp_path / "first")) == 12
