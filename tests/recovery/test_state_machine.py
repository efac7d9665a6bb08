"""Workers, a leader and a user act in any order: each task has one owner and one ending, none is lost, no cap is exceeded."""

import json
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import psycopg
import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from horsies.db.broker import PostgresBroker
from horsies.maintenance import rescue
from horsies.model.retry_policy import RetryPolicy
from horsies.model.status import TaskStatus
from horsies.model.task import Claim, Ending, NewTask, TaskOptions
from horsies.tasks.claim import Caps, ClaimFrom, ClaimRequest, lanes_from_start
from horsies.tasks.control import CancelOutcome, cancel_task
from horsies.tasks.enqueue import enqueue
from horsies.tasks.ids import new_task_id
from horsies.worker.batch import Batch, BatchResult, run_batch
from tests.fixtures.journey import column

WORKERS = [f"00000000-0000-4000-8000-00000000000{digit}" for digit in "abc"]
QUEUES = ["capped", "free"]
CAPS = Caps(cluster_wide=4, queues={"capped": 2})
CODES = ["BROKEN", "WORKER_CRASHED"]

# Hypothesis creates the machines itself, so `sql` and `broker` are passed to them from the test's fixtures.


@dataclass(slots=True)
class Given:
    broker: PostgresBroker
    sql: psycopg.Connection


@dataclass(slots=True)
class Expected:
    """The state that a task should have, by what the verbs returned."""

    retries: int
    claim_no: int = 0
    owner: str | None = None
    """None if it is not claimed."""
    ending: tuple[Any, ...] | None = None


class TaskLifecycles(RuleBasedStateMachine):
    def __init__(self, given: Given) -> None:
        super().__init__()
        self.given = given
        self.tasks: dict[str, Expected] = {}
        self.claims: list[tuple[str, Claim]] = []
        """Every claim that was ever made, the lost ones too: its holder may use it at any time."""
        self.registered: set[str] = set()
        given.sql.execute("truncate horsies.tasks, horsies.finished, horsies.workers, horsies.queues")
        for worker in WORKERS:
            self._register(worker)

    # -- the user

    @rule(
        queue=st.sampled_from(QUEUES),
        priority=st.integers(1, 3),
        retries=st.integers(0, 2),
        code=st.sampled_from(CODES),
        good_s=st.none() | st.just(60),
    )
    def send(self, queue: str, priority: int, retries: int, code: str, good_s: int | None) -> None:
        policy = RetryPolicy.fixed([0.0] * retries, auto_retry_for=[code]) if retries else None
        new = NewTask(new_task_id(), "{}", TaskOptions("work", queue, priority, retry=policy))
        self.given.broker.run(partial(enqueue, [new]))
        if good_s is not None:
            self._sql("update horsies.tasks set good_until = now() + %s * interval '1 s' where id = %s", good_s, new.id)
        self.tasks[new.id] = Expected(retries)

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def request_cancellation(self, data: st.DataObject) -> None:
        task_id = data.draw(st.sampled_from(sorted(self.tasks)))
        expected = self.tasks[task_id]
        before = self._status(task_id)
        outcome = self.given.broker.run(partial(cancel_task, task_id))
        if before.is_final:
            assert outcome is CancelOutcome.ALREADY_ENDED
        elif before is TaskStatus.RUNNING:
            assert outcome is CancelOutcome.REQUESTED
        else:
            assert outcome is CancelOutcome.CANCELLED
            expected.owner = None

    @rule(queue=st.sampled_from(QUEUES), paused=st.sampled_from(["now()", "null"]))
    def switch_queue(self, queue: str, paused: str) -> None:
        self._sql(
            f"insert into horsies.queues values (%s, {paused}) on conflict (name) do update set paused_at = {paused}",
            queue,
        )

    # -- time in the database

    @rule(column_name=st.sampled_from(["good_until", "lease_until"]))
    def let_expire(self, column_name: str) -> None:
        self._sql(f"update horsies.tasks set {column_name} = now() - interval '1 s' where {column_name} is not null")

    # -- workers

    @rule(worker=st.sampled_from(WORKERS), limit=st.integers(1, 6), status=st.sampled_from(["RUNNING", "CLAIMED"]))
    def claim(self, worker: str, limit: int, status: str) -> None:
        wanted = ClaimRequest(worker, TaskStatus(status), limit, 60_000, caps=CAPS)
        outcome = self._batch(
            worker, claim_requests=[wanted], claim_from=ClaimFrom.QUEUES, lanes=lanes_from_start(QUEUES)
        )
        (claimed,) = outcome.claimed
        assert len(claimed) <= limit
        for found in claimed:
            expected = self.tasks[found.id]
            assert expected.owner is None, "claimed while it had an owner"
            assert expected.ending is None
            assert found.claim_no > expected.claim_no
            expected.owner, expected.claim_no = worker, found.claim_no
            self.claims.append((worker, found))

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        worker, held = data.draw(st.sampled_from(self.claims))
        before = self._status(held.id)
        outcome = self._batch(worker, starts=[held])
        if outcome.started:
            assert self._is_current(worker, held)
            assert before is TaskStatus.CLAIMED

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), failure=st.none() | st.sampled_from(CODES), claims_after=st.integers(0, 2))
    def finish(self, data: st.DataObject, failure: str | None, claims_after: int) -> None:
        """End one claim, and perhaps claim tasks for the free slot."""
        worker, held = data.draw(st.sampled_from(self.claims))
        assume(self._status(held.id) is not TaskStatus.CLAIMED or not self._is_current(worker, held))
        ending = Ending(held.id, held.claim_no, TaskStatus.COMPLETED, "1")
        if failure:
            error = json.dumps({"error_code": failure, "message": ""})
            ending = Ending(
                held.id, held.claim_no, TaskStatus.FAILED, None, failure, error, may_retry=held.retries_left
            )
        was_current = self._is_current(worker, held)
        outcome = self._batch(worker, endings=[ending])
        assert bool(outcome.ended) == was_current, "the holder, and only the holder, can end a task"
        if was_current:
            self.tasks[held.id].owner = None
        if claims_after:
            self.claim(worker, claims_after, "RUNNING")

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        worker, held = data.draw(st.sampled_from(self.claims))
        was_current = self._is_current(worker, held)
        self._batch(worker, releases=[held])
        if was_current:
            assert self._status(held.id) is TaskStatus.PENDING
            self.tasks[held.id].owner = None

    @rule(worker=st.sampled_from(WORKERS))
    def promote(self, worker: str) -> None:
        self._batch(worker, promotes=True)
        assert column(self.given.sql, "select id from horsies.tasks where not ready and enqueued_at <= now()") == []

    # -- the maintenance leader

    @rule(worker=st.sampled_from(WORKERS), returns=st.booleans())
    def declare_dead(self, worker: str, returns: bool) -> None:  # noqa: FBT001 - drawn
        """Its claims stay in `self.claims`: a worker that was declared dead may still use them."""
        run = self.given.broker.run
        heartbeat = run(rescue.get_heartbeats).get(worker)
        if heartbeat is not None:
            assert run(partial(rescue.remove_dead_worker, worker, heartbeat))
        run(rescue.rescue_orphans)
        assert column(self.given.sql, "select id from horsies.tasks where claimed_by = %s", worker) == []
        self.registered.discard(worker)
        self._forget_orphans()
        if returns:
            self._register(worker)

    @rule()
    def rescue_orphans(self) -> None:
        """Rescue also the claims that a worker made after it was declared dead, and no others."""
        self.given.broker.run(rescue.rescue_orphans)
        self._forget_orphans()

    @rule(duty=st.sampled_from([rescue.expire_tasks, rescue.release_expired_claims, rescue.cancel_pending_tasks]))
    def do_maintenance(self, duty: Any) -> None:
        """Maintenance may take tasks that have not begun from their owner, but no running ones."""
        not_started = column(self.given.sql, "select id::text from horsies.tasks where status = 'CLAIMED'")
        self.given.broker.run(duty)
        for task_id in map(str, not_started):
            if self._status(task_id) is not TaskStatus.CLAIMED:
                self.tasks[task_id].owner = None

    # -- invariants

    @invariant()
    def each_task_exists_exactly_once(self) -> None:
        ids = column(self.given.sql, "select id::text from horsies.all_tasks")
        assert sorted(map(str, ids)) == sorted(self.tasks)

    @invariant()
    def rows_match_what_the_verbs_returned(self) -> None:
        rows = self.given.sql.execute(
            "select id::text, status, claim_no, attempts, claimed_by::text, coalesce(cardinality(failed_attempts), 0) "
            "from horsies.all_tasks"
        ).fetchall()
        for task_id, status, claim_no, attempts, claimed_by, failures in rows:
            expected = self.tasks[task_id]
            assert claim_no == expected.claim_no, "every claim is counted, and the number never falls"
            assert attempts <= claim_no
            assert attempts <= expected.retries + 1
            assert failures <= attempts
            if not TaskStatus(status).is_final:
                assert expected.ending is None, "an ending is final"
                assert claimed_by == expected.owner

    @invariant()
    def an_ending_never_changes(self) -> None:
        rows = self.given.sql.execute(
            "select id::text, status, result::text, error_code, attempts, finished_at from horsies.finished"
        ).fetchall()
        for task_id, *ending in rows:
            expected = self.tasks[task_id]
            assert expected.ending in (None, tuple(ending))
            expected.ending = tuple(ending)

    @invariant()
    def caps_hold(self) -> None:
        queues = column(self.given.sql, "select queue_name from horsies.tasks where status <> 'PENDING'")
        assert len(queues) <= (CAPS.cluster_wide or 0)
        assert queues.count("capped") <= CAPS.queues["capped"]

    # -- helpers

    def _forget_orphans(self) -> None:
        for expected in self.tasks.values():
            if expected.owner not in self.registered:
                expected.owner = None

    def _batch(self, worker: str, **what: Any) -> BatchResult:
        batch = replace(Batch(worker, self.given.broker.config, CAPS, endings=()), **what)
        return self.given.broker.run(partial(run_batch, batch))

    def _is_current(self, worker: str, held: Claim) -> bool:
        expected = self.tasks[held.id]
        return expected.owner == worker and expected.claim_no == held.claim_no

    def _status(self, task_id: str) -> TaskStatus:
        (status,) = column(self.given.sql, "select status from horsies.all_tasks where id = %s", task_id)
        return TaskStatus(str(status))

    def _register(self, worker: str) -> None:
        self.registered.add(worker)
        self._sql(
            "insert into horsies.workers (id, hostname, pid, processes, concurrency, queues, library_version) "
            "values (%s, 'here', 1, 1, 1, '{}', '0') on conflict do nothing",
            worker,
        )

    def _sql(self, query: str, *params: object) -> None:
        self.given.sql.execute(query.encode(), params)


@pytest.mark.timeout(120)
@pytest.mark.promise("W4", "W5", "W9", "C10", "C11", "C12", "C22", "T1", "T2")
def test_the_promises_hold_for_any_order_of_events(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    run_state_machine_as_test(
        cast(
            "type[TaskLifecycles]", partial(TaskLifecycles, Given(broker, sql))
        ),  # any factory of machines is accepted
        settings=settings(
            max_examples=100,
            stateful_step_count=40,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
        ),
    )
