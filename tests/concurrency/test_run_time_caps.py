"""Caps that operators set at run time: obeyed by all workers, without locks and counts for the queues that have none."""

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from horsies import AppConfig, Horsies
from horsies.db.broker import PostgresBroker
from horsies.model.config import PostgresConfig
from horsies.model.status import TaskStatus
from horsies.model.task import Claim
from horsies.ops import Ops
from horsies.tasks.claim import (
    Caps,
    ClaimFrom,
    ClaimRequest,
    claim_tasks,
    get_caps_set_at_run_time,
    lanes_from_start,
)
from horsies.worker.batch import BatchResult
from horsies.worker.plan import BufferedClaim
from tests.fixtures.dispatching import Child, claim, ending, simulate, statements
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import ME, do, new_task, row, send
from tests.fixtures.workers import StartWorker
from tests.recovery.steps import CLUSTER, FORKED, held_intervals, insert_spans, most_at_once, notes, settings
from tests.worker.steps import wait_until_ended

REQUEST = ClaimRequest(ME, TaskStatus.RUNNING, 10, 60_000)
QUEUES = ("capped", "free")


@pytest.fixture
def ops(database: str, broker: PostgresBroker) -> Generator[Ops]:
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=database)))
    yield app.ops.acting_as("alice")
    app.close()


# -- one claim


def claimed(broker: PostgresBroker, caps: Caps, *, watermarks: bool = False) -> list[str]:
    """Claim as a worker that knows these caps. Returns the queues of what it got."""
    claim_from = ClaimFrom.WATERMARKS if watermarks else ClaimFrom.START
    lanes = [replace(lane, priority=100) for lane in lanes_from_start(QUEUES)]
    (rows,) = do(broker, claim_tasks(replace(REQUEST, caps=caps), lanes, claim_from))
    return sorted(Claim(*row).queue_name for row in rows)


@pytest.fixture
def waiting(broker: PostgresBroker) -> None:
    send(broker, *[new_task(queue_name=queue) for queue in QUEUES for _ in range(4)])


@pytest.mark.usefixtures("waiting")
@pytest.mark.parametrize("watermarks", [False, True])
def test_a_worker_that_does_not_know_of_a_cap_claims_nothing_from_that_queue(
    *, watermarks: bool, ops: Ops, broker: PostgresBroker
) -> None:
    ops.set_queue_cap("capped", 2)
    assert claimed(broker, Caps(), watermarks=watermarks) == ["free"] * 4
    ops.set_queue_cap("capped", None)
    assert claimed(broker, Caps(), watermarks=watermarks) == ["capped"] * 4


@pytest.mark.usefixtures("waiting")
@pytest.mark.parametrize("known", [1, 9])
def test_a_worker_that_knows_of_a_cap_uses_the_number_in_the_database(
    known: int, ops: Ops, broker: PostgresBroker
) -> None:
    ops.set_queue_cap("capped", 2)
    caps = Caps(set_at_run_time={"capped": known})
    assert claimed(broker, caps) == ["capped"] * 2 + ["free"] * 4
    assert claimed(broker, caps) == []
    ops.set_queue_cap("capped", 3)
    assert claimed(broker, caps) == ["capped"]


@pytest.mark.usefixtures("waiting")
@pytest.mark.parametrize(("declared", "cap", "expected"), [(1, 3, 3), (3, 1, 1), (2, None, 2)])
def test_a_cap_set_at_run_time_replaces_that_of_the_app(
    declared: int, cap: int | None, expected: int, ops: Ops, broker: PostgresBroker
) -> None:
    ops.set_queue_cap("capped", 4)
    ops.set_queue_cap("capped", cap)
    assert claimed(broker, Caps(queues={"capped": declared})).count("capped") == expected


@pytest.mark.usefixtures("waiting")
def test_after_a_reset_a_worker_that_still_knows_the_cap_is_not_limited(ops: Ops, broker: PostgresBroker) -> None:
    ops.set_queue_cap("capped", 1)
    ops.set_queue_cap("capped", None)
    assert claimed(broker, Caps(set_at_run_time={"capped": 1})).count("capped") == 4


@pytest.mark.usefixtures("waiting")
def test_a_queue_that_is_paused_and_capped_stays_paused(ops: Ops, broker: PostgresBroker) -> None:
    caps = Caps(set_at_run_time={"capped": 2})
    ops.pause_queue("capped")
    ops.set_queue_cap("capped", 2)
    assert claimed(broker, caps) == ["free"] * 4
    ops.resume_queue("capped")
    assert claimed(broker, caps) == ["capped"] * 2


def test_the_caps_are_read_for_the_queues_of_the_worker(ops: Ops, broker: PostgresBroker) -> None:
    ops.set_queue_cap("capped", 2)
    ops.set_queue_cap("other", 3)
    ops.pause_queue("free")
    assert do(broker, get_caps_set_at_run_time(lanes_from_start(QUEUES))) == [[("capped", 2)]]


# -- what a worker sends


def test_a_worker_reads_the_caps_when_it_starts_and_counts_only_what_is_capped() -> None:
    simulation = simulate(Child())
    first = simulation.taken()
    assert "get_caps_set_at_run_time" in statements(first)
    simulation.commit(first, BatchResult(claimed=[[]], caps_set_at_run_time={}))
    simulation.dispatcher.on_notification("100 5000000 default")
    assert not {"lock_caps", "get_caps_set_at_run_time"} & {*statements(simulation.taken())}


def test_a_worker_that_learns_of_a_cap_claims_again_with_its_lock_and_announces_what_it_frees() -> None:
    simulation = simulate(Child(), Child())
    first = simulation.taken()
    simulation.commit(first, BatchResult(claimed=[[]], caps_set_at_run_time={"default": 2}))
    simulation.state.endings.append(ending())
    second = simulation.taken(10.0)
    names = statements(second)
    assert names.index("lock_caps") < names.index("claim_from_queues")
    assert "notify_capacity_freed" in names
    simulation.commit(second, BatchResult(claimed=[[]], caps_set_at_run_time={}))
    assert "lock_caps" not in statements(simulation.taken(20.0))


@pytest.mark.parametrize("payload", ["*", None])
def test_a_worker_reads_the_caps_again_when_any_queue_may_have_changed(payload: str | None) -> None:
    simulation = simulate(Child())
    simulation.commit(simulation.taken(), BatchResult(claimed=[[]], caps_set_at_run_time={}))
    simulation.dispatcher.on_notification(payload)
    batch = simulation.taken(10.0)
    assert batch.reads_caps
    simulation.lose(batch)
    assert simulation.taken(20.0).reads_caps


def test_what_is_announced_while_the_caps_are_read_is_read_again() -> None:
    simulation = simulate(Child())
    batch = simulation.taken()
    simulation.dispatcher.on_notification("*")
    simulation.commit(batch, BatchResult(claimed=[[]], caps_set_at_run_time={}))
    assert simulation.taken(10.0).reads_caps


def test_buffered_tasks_start_under_the_cap_set_at_run_time() -> None:
    simulation = simulate(Child(), prefetch=4, caps=Caps(queues={"default": 5}, set_at_run_time={"default": 1}))
    simulation.state.buffer.append(BufferedClaim(claim(), 100.0))
    batch = simulation.taken()
    assert [batch.caps.cap_of(each.queue_name) for each in batch.starts] == [1]


# -- real workers


@pytest.mark.timeout(120)
@pytest.mark.promise("C10", "C11")
def test_workers_obey_a_cap_that_is_set_raised_and_reset_while_they_work(
    worker: StartWorker, ops: Ops, sql: psycopg.Connection, tmp_path: Path
) -> None:
    env, log = settings(queues=[{"name": "email"}]), tmp_path / "log"
    workers = [worker(CLUSTER, processes=1, options=("--concurrency=4", *FORKED), env=env) for _ in range(2)]

    def run_capped(cap: int, count: int) -> int:
        """Set the cap, and return how many tasks were in flight at once among those that were claimed when all workers knew it."""
        seen = [len(one.logs) for one in workers]
        ops.set_queue_cap("email", cap)
        for one, after in zip(workers, seen, strict=True):
            one.wait_for_log(f"caps of queues set at run time: email={cap}$", after=after)
        sql.execute("delete from horsies.finished")
        insert_spans(sql, log, count, 0.05, name="span_async", queue_name="email")
        wait_until_ended(sql, count, 60)
        return most_at_once(held_intervals(sql, "email"))

    insert_spans(sql, log, 40, 0.05, name="span_async", queue_name="email")
    eventually(lambda: len(notes(log)) > 8)
    seen = [len(one.logs) for one in workers]
    ops.set_queue_cap("email", 3)
    for one, after in zip(workers, seen, strict=True):
        one.wait_for_log("caps of queues set at run time: email=3$", after=after)
    wait_until_ended(sql, 40)
    assert most_at_once(held_intervals(sql, "email")) > 3  # before it was set
    assert run_capped(2, 30) == 2
    assert run_capped(5, 40) == 5
    ops.set_queue_cap("email", None)
    sql.execute("delete from horsies.finished")
    insert_spans(sql, log, 60, 0.05, name="span_async", queue_name="email")
    wait_until_ended(sql, 60)
    assert most_at_once(held_intervals(sql, "email")) > 5


def test_workers_that_wait_at_a_cap_go_on_when_it_is_raised(
    worker: StartWorker, ops: Ops, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """Without a notification they would look again after an hour."""
    ops.set_queue_cap("email", 1)
    env = settings(queues=[{"name": "email"}], resilience={"notify_poll_interval_ms": 300_000})
    worker(CLUSTER, processes=1, options=("--concurrency=4",), env=env)
    insert_spans(sql, tmp_path / "log", 3, 3600, name="span_async", queue_name="email")
    eventually(lambda: len(notes(tmp_path / "log")) == 1)
    ops.set_queue_cap("email", 2)
    eventually(lambda: len(notes(tmp_path / "log")) == 2)
    ops.set_queue_cap("email", None)
    eventually(lambda: len(notes(tmp_path / "log")) == 3)
    sql.execute("update horsies.tasks set cancel_requested_at = now()")


# -- the verb


def test_a_cap_is_stored_shown_and_recorded(ops: Ops, sql: psycopg.Connection) -> None:
    ops.set_queue_cap("email", 5)
    assert [(queue.name, queue.cap) for queue in ops.list_queues() if queue.name == "email"] == [("email", 5)]
    ops.set_queue_cap("email", None)
    assert row(sql, "select max_concurrency from horsies.queues where name = 'email'") == (None,)
    found = [(entry.actor, entry.action, entry.target, entry.count) for entry in ops.list_audit()]
    assert found == [
        ("alice", "reset cap of queue", "email", 1),
        ("alice", "set cap of queue to 5", "email", 1),
    ]


def test_a_cap_that_is_no_cap_is_refused(ops: Ops) -> None:
    with pytest.raises(ValueError, match=r"a cap of 0 would be a pause: use pause_queue\('email'\)"):
        ops.set_queue_cap("email", 0)
    for wrong in (-1, 2**31, True, "5"):
        with pytest.raises(ValueError, match="choose a whole number from 1 to 1000000, or None"):
            ops.set_queue_cap("email", wrong)  # pyright: ignore[reportArgumentType] - wrong types are the point
    for name in ("", "é" * 501, "a\0b"):
        with pytest.raises(ValueError, match="is not the name of a queue"):
            ops.set_queue_cap(name, 5)
    assert ops.list_audit() == []
