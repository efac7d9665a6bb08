"""The pending work of a dispatcher, without children or database: what is sent, what is applied, and that nothing is lost."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from horsies.db.statement import Request
from horsies.model.config import PostgresConfig, WorkerResilienceConfig
from horsies.model.payload_errors import MOST_BYTES
from horsies.model.status import TaskStatus
from horsies.model.task import Claim, Ending
from horsies.tasks.claim import EPOCH, MAX_LOAD_BYTES, NO_CAPS, Caps, ClaimRequest, Payload
from horsies.tasks.ids import new_task_id
from horsies.tasks.unknown import KnownTasks
from horsies.worker.batch import Batch, BatchResult, ClaimFrom, run_batch
from horsies.worker.capacity import PREFETCH_MAX, ClaimLimits, PrefetchPolicy
from horsies.worker.child import Assignments
from horsies.worker.pending import BYTES_PER_BATCH, ENDINGS_PER_BATCH, BufferedClaim, PendingWork
from horsies.worker.quarantine import Quarantine, Refusal
from horsies.worker.watermarks import Watermarks
from tests.fixtures.budget import Budget, QueueRoom

WORKER = "00000000-0000-4000-8000-00000000000a"
DATABASE = PostgresConfig(database_url="postgresql://localhost/unused")
NOTHING = BatchResult()
ONE_CAP = Caps(queues={"default": 5})


@dataclass
class Child:
    """The attributes of a child that the pending work reads."""

    load: int = 0
    is_open: bool = True
    budget_left: int | None = None
    assignments: Assignments = field(default_factory=Assignments)
    unsent_bytes: int = 0


def make_pending(
    *children: Child,
    prefetch: int | Literal["auto"] = 0,
    concurrency: int = 1,
    processes: int = 2,
    queues: tuple[str, ...] = ("default",),
    caps: Caps = NO_CAPS,
    max_claim_batch: int = 0,
    max_claim_per_worker: int = 0,
) -> PendingWork:
    pool_children: Any = list(children)
    return PendingWork(
        worker=WORKER,
        database=DATABASE,
        limits=ClaimLimits(5_000, caps, max_claim_batch, max_claim_per_worker),
        children=pool_children,
        prefetch=PrefetchPolicy(prefetch, processes, concurrency),
        watermarks=Watermarks(queues),
        quarantine=Quarantine(WorkerResilienceConfig()),
        known_tasks=KnownTasks({"add": 1}),
        may_have_due_tasks=False,
    )


def claim() -> Claim:
    return Claim(new_task_id(), 1, "add", "default", 100, datetime(2026, 1, 1, tzinfo=UTC), 1, "{}")


def ending(of: Claim | None = None) -> Ending:
    of = of or claim()
    return Ending(of.id, of.claim_no, TaskStatus.COMPLETED, "1")


def taken(pending: PendingWork, now: float = 0.0) -> Batch:
    planned = pending.next_batch(now)
    assert planned is not None
    return planned


def claimed_by(planned: Batch | None) -> dict[str, int]:
    """Return how many rows it claims, by their new status."""
    return {request.status.value: request.limit for request in (planned.claim_requests if planned else ())}


def starting(pending: PendingWork, *claims: Claim) -> Batch:
    """Add a batch in flight that starts these."""
    planned = Batch(worker=WORKER, database=DATABASE, caps=pending.limits.caps, endings=[], starts=claims)
    pending.in_flight.append(planned)
    return planned


def statements(planned: Batch) -> list[str]:
    """Return the names of the statements of a batch."""
    request = next(run_batch(planned))
    assert isinstance(request, Request)
    return [query.statement.name for query in (*request.framed_queries, *request.after_commit)]


def test_without_pending_work_there_is_no_batch() -> None:
    pending = make_pending()
    assert pending.next_batch(0.0) is None
    assert pending.is_empty


def test_twenty_endings_are_stored_by_one_statement() -> None:
    pending = make_pending()
    endings = [ending() for _ in range(20)]
    pending.endings.extend(endings)
    planned = taken(pending)
    assert list(planned.endings) == endings
    assert statements(planned) == ["begin_batch", "set_batch_limits", "finish_tasks", "commit_batch", "notify_done"]
    assert pending.next_batch(0.0) is None


def test_a_batch_finishes_releases_starts_and_claims_together() -> None:
    pending = make_pending(Child(), Child(), prefetch=4)
    pending.endings.append(ending())
    pending.releases.append(claim())
    pending.buffer.append(BufferedClaim(claim(), 100.0))
    planned = taken(pending)
    names = statements(planned)
    assert names[:5] == ["begin_batch", "set_batch_limits", "finish_tasks", "release_tasks", "start_tasks"]
    assert names[5:8] == ["claim_from_queues", "claim_from_queues", "commit_batch"]  # to run, and to wait
    assert sorted(names[8:]) == ["notify_done", "notify_new_tasks"]  # after the commit: NOTIFY takes a lock


def test_very_many_endings_are_sent_in_several_batches() -> None:
    pending = make_pending()
    pending.endings.extend(ending() for _ in range(ENDINGS_PER_BATCH + 1))
    assert [len(taken(pending).endings), len(taken(pending).endings)] == [ENDINGS_PER_BATCH, 1]


def refuse(pending: PendingWork, planned: Batch, *, is_about_values: bool = True, now: float = 0.0) -> None:
    """Handle a refused batch as the dispatcher does."""
    if planned.is_single_part:
        pending.on_part_refused(planned, Refusal("refused", is_about_values, is_about_server=False), now)
    else:
        pending.split(planned)


@pytest.mark.promise("D6")
def test_the_parts_of_a_refused_batch_are_sent_alone_and_without_a_statement_timeout() -> None:
    pending = make_pending(Child())
    first, second, returned = ending(), ending(), claim()
    pending.endings.extend([first, second])
    pending.releases.append(returned)
    refused = taken(pending)
    assert claimed_by(refused) == {"RUNNING": 1}
    pending.split(refused)
    pending.endings.append(other := ending())
    batches = [taken(pending) for _ in range(4)]
    assert [(list(planned.endings), list(planned.releases)) for planned in batches] == [
        ([first], []),
        ([second], []),
        ([], [returned]),
        ([other], []),
    ]
    assert [claimed_by(planned) for planned in batches] == [{}, {}, {}, {}]
    assert ["disable_statement_timeout" in statements(planned) for planned in batches] == [True, True, True, False]
    assert claimed_by(taken(pending)) == {"RUNNING": 1}


@pytest.mark.promise("D6")
def test_claims_have_batches_of_their_own_until_one_succeeds() -> None:
    pending = make_pending(Child())
    pending.endings.append(ending())
    pending.split(taken(pending))
    pending.apply(taken(pending), BatchResult(), until=0.0)
    pending.endings.append(ending())
    assert claimed_by(taken(pending)) == {}
    claiming = taken(pending)
    assert claimed_by(claiming) == {"RUNNING": 1}
    pending.apply(claiming, BatchResult(claimed=[[]]), until=0.0)
    pending.endings.append(ending())
    pending.may_have_tasks = True
    assert claimed_by(taken(pending)) == {"RUNNING": 1}


@pytest.mark.promise("D6")
def test_an_ending_that_is_refused_alone_is_tried_in_simpler_forms_and_replaced_last() -> None:
    pending = make_pending()
    pending.endings.append(
        bad := replace(ending(), status=TaskStatus.FAILED, error_code="BAD", may_retry=True, root_id="a")
    )
    pending.split(taken(pending))
    tried: list[Ending] = []
    for _ in range(4):
        planned = taken(pending)
        tried += planned.endings
        refuse(pending, planned)
    without_step = replace(bad, root_id=None)
    assert tried[:3] == [bad, without_step, replace(without_step, may_retry=False)]
    assert tried[3].error_code == "WORKER_SERIALIZATION_ERROR"
    assert pending.next_batch(0.0) is None, "it pauses"
    again = taken(pending, now=60.0)
    assert list(again.endings) == [tried[3]]


@pytest.mark.promise("D6", "W11")
def test_a_result_is_not_replaced_because_of_an_error_that_may_pass() -> None:
    """A full disk, a trigger that raises: it is retried with growing pauses, and delays no other."""
    pending = make_pending()
    pending.endings.append(good := ending())
    pending.split(taken(pending))
    refuse(pending, taken(pending), is_about_values=False)
    pending.endings.append(other := ending())
    assert list(taken(pending).endings) == [other]
    (first,) = [part.not_before for part in pending.quarantine.waiting]
    again = taken(pending, now=first)
    assert list(again.endings) == [good]
    refuse(pending, again, is_about_values=False, now=first)
    (second,) = [part.not_before for part in pending.quarantine.waiting]
    assert second - first > first
    assert not pending.is_empty


def test_large_payloads_are_read_after_the_claim_by_one_batch_at_a_time() -> None:
    pending = make_pending(Child(), Child())
    small, large, larger = claim(), replace(claim(), args=None), replace(claim(), takes_inputs=True)
    claiming = taken(pending)
    runnable = pending.apply(claiming, BatchResult(claimed=[[small, large, larger]]), until=0.0)
    assert runnable == [small]
    loading = taken(pending)
    assert list(loading.loads) == [large, larger]
    assert "load_payloads" in statements(loading)
    assert claimed_by(pending.next_batch(0.0)) == {}, "their slots are taken"
    read = {large.id: Payload(5, "args", None), larger.id: Payload(9, None, None)}
    assert pending.apply(loading, BatchResult(payloads=read), until=0.0) == [replace(large, args="args")]
    assert list(taken(pending).loads) == [larger], "it did not fit into the first"


def test_no_more_payloads_are_read_while_children_have_not_received_the_last_ones() -> None:
    child = Child(unsent_bytes=MAX_LOAD_BYTES)
    pending = make_pending(child)
    pending.may_have_tasks = False
    pending.unread.append(replace(claim(), args=None))
    assert pending.next_batch(0.0) is None
    child.unsent_bytes = 0
    assert taken(pending).loads


def test_a_payload_above_the_limit_ends_its_task_and_a_lost_claim_is_released() -> None:
    pending = make_pending(Child(), Child())
    pending.may_have_tasks = False
    pending.unread.extend([huge := replace(claim(), args=None), lost := replace(claim(), args=None)])
    loading = taken(pending)
    assert pending.apply(loading, BatchResult(payloads={huge.id: Payload(MOST_BYTES + 1, None, None)}), until=0.0) == []
    planned = taken(pending)
    assert [(of.id, of.error_code) for of in planned.endings] == [(huge.id, "WORKER_SERIALIZATION_ERROR")]
    assert list(planned.releases) == [lost]


def test_a_payload_that_cannot_be_read_ends_its_task_and_no_other() -> None:
    pending = make_pending(Child(), Child())
    pending.may_have_tasks = False
    pending.unread.extend([good := replace(claim(), args=None), bad := replace(claim(), args=None)])
    pending.split(taken(pending))
    one, other = taken(pending), taken(pending)
    assert [list(one.loads), list(other.loads)] == [[good], [bad]]
    refuse(pending, other)
    assert pending.apply(one, BatchResult(payloads={good.id: Payload(2, "{}", None)}), until=0.0) == [
        replace(good, args="{}")
    ]
    assert [of.id for of in taken(pending).endings] == [bad.id]


def test_capacity_that_a_batch_in_flight_may_fill_is_not_claimed_twice() -> None:
    pending = make_pending(prefetch=4)
    assert sum(request.limit for request in taken(pending).claim_requests) == 6  # two processes and four in the buffer
    assert pending.next_batch(0.0) is None


@pytest.mark.promise("C13")
def test_the_buffer_is_never_filled_beyond_its_size() -> None:
    pending = make_pending(prefetch=4)
    planned = taken(pending)
    claims = [claim() for _ in range(6)]
    assert pending.apply(planned, BatchResult(claimed=[claims]), until=5.0) == []
    assert len(pending.buffer) == 6
    assert pending.next_batch(0.0) is None


@pytest.mark.promise("C14")
def test_a_buffered_claim_is_released_when_its_lease_ends_here() -> None:
    pending = make_pending(prefetch=4)
    old, young = claim(), claim()
    pending.buffer.extend([BufferedClaim(old, 5.0), BufferedClaim(young, 6.0)])
    pending.may_have_tasks = False
    assert pending.next_batch(4.9) is None
    assert list(taken(pending, 5.0).releases) == [old]
    assert [buffered.claim for buffered in pending.buffer] == [young]


@pytest.mark.promise("W10")
def test_when_stopping_nothing_is_claimed_and_the_buffer_is_released() -> None:
    pending = make_pending(prefetch=4)
    held = [claim(), claim()]
    pending.buffer.extend(BufferedClaim(one, 100.0) for one in held)
    pending.is_stopping = True
    planned = taken(pending)
    assert list(planned.releases) == held
    assert not planned.claim_requests
    pending.apply(planned, NOTHING, until=0.0)
    assert pending.is_empty


def test_a_failed_batch_puts_back_all_its_parts_in_order() -> None:
    pending = make_pending()
    endings, releases = [ending(), ending(), ending()], [claim()]
    pending.endings.extend(endings[:2])
    pending.releases.extend(releases)
    planned = taken(pending)
    pending.endings.append(endings[2])
    pending.put_back(planned)
    assert list(pending.endings) == endings
    assert pending.releases == releases


def test_starts_of_a_failed_batch_are_released_because_their_outcome_is_unknown() -> None:
    pending = make_pending(prefetch=4)
    started = claim()
    planned = starting(pending, started)
    pending.put_back(planned)
    assert pending.releases == [started]


def test_tasks_that_were_not_started_are_not_run() -> None:
    pending = make_pending(prefetch=4)
    kept, lost = claim(), claim()
    planned = starting(pending, kept, lost)
    assert pending.apply(planned, BatchResult(started=frozenset({kept.id})), until=0.0) == [kept]
    assert pending.releases == [lost]  # its queue may be at its cap: what is still held is released


# -- capacity


@pytest.mark.promise("C1", "C12")
def test_without_a_buffer_only_tasks_that_can_run_at_once_are_claimed() -> None:
    pending = make_pending(Child(), Child(load=1), Child(is_open=False), processes=3)
    planned = taken(pending)
    assert claimed_by(planned) == {"RUNNING": 1}
    assert [request.queue_limit for request in planned.claim_requests] == [None]


@pytest.mark.promise("C13")
def test_with_a_buffer_some_claims_run_at_once_and_some_wait() -> None:
    pending = make_pending(Child(), Child(load=1), prefetch=4)
    assert claimed_by(taken(pending)) == {"RUNNING": 1, "CLAIMED": 4}


@pytest.mark.promise("X2", "X4")
def test_a_child_with_concurrency_has_as_many_slots() -> None:
    pending = make_pending(Child(load=3), Child(), concurrency=10)
    assert claimed_by(taken(pending)) == {"RUNNING": 17}


@pytest.mark.promise("C2")
def test_a_child_is_assigned_no_more_than_its_budget() -> None:
    pending = make_pending(Child(budget_left=2), Child(load=9, budget_left=7), concurrency=10)
    assert claimed_by(taken(pending)) == {"RUNNING": 3}


def test_batches_overlap_as_children_become_free() -> None:
    first, second = Child(), Child(load=1)
    pending = make_pending(first, second)
    assert claimed_by(taken(pending)) == {"RUNNING": 1}
    second.load = 0
    assert claimed_by(taken(pending)) == {"RUNNING": 1}
    assert pending.next_batch(0.0) is None


@pytest.mark.promise("C11", "C12", "C19")
@pytest.mark.parametrize("caps", [ONE_CAP, Caps(cluster_wide=5)])
def test_with_caps_one_batch_at_a_time_claims_and_the_others_still_end_tasks(caps: Caps) -> None:
    first, second = Child(), Child(load=1)
    pending = make_pending(first, second, caps=caps)
    claiming = taken(pending)
    assert claimed_by(claiming) == {"RUNNING": 1}
    second.load = 0
    pending.endings.append(ending())
    assert claimed_by(taken(pending)) == {}
    pending.apply(claiming, BatchResult(claimed=[[]]), until=0.0)
    assert claimed_by(taken(pending)) == {"RUNNING": 2}


@pytest.mark.promise("C17")
def test_without_a_buffer_max_claim_per_worker_counts_all_held_claims() -> None:
    busy = [Child(load=1), Child(load=1), Child(), Child(), Child()]
    pending = make_pending(*busy, processes=5, max_claim_per_worker=3)
    assert claimed_by(taken(pending)) == {"RUNNING": 1}
    assert pending.next_batch(0.0) is None


@pytest.mark.promise("C17")
def test_without_a_buffer_max_claim_per_worker_counts_endings_until_they_are_committed() -> None:
    """Otherwise more rows than the limit would be RUNNING for a moment."""
    pending = make_pending(Child(), Child(), max_claim_per_worker=1)
    pending.may_have_tasks = False
    pending.endings.append(ending())
    ending_batch = taken(pending)
    pending.may_have_tasks = True
    assert pending.next_batch(0.0) is None
    pending.apply(ending_batch, NOTHING, until=0.0)
    assert claimed_by(taken(pending)) == {"RUNNING": 1}


@pytest.mark.promise("C17")
def test_with_a_buffer_max_claim_per_worker_counts_only_waiting_claims() -> None:
    pending = make_pending(Child(load=1), Child(load=1), prefetch=9, max_claim_per_worker=4)
    pending.buffer.append(BufferedClaim(claim(), 100.0))
    assert claimed_by(taken(pending)) == {"CLAIMED": 3}


@pytest.mark.promise("C16")
def test_max_claim_batch_limits_what_one_batch_claims_from_a_queue() -> None:
    pending = make_pending(*[Child() for _ in range(9)], processes=9, max_claim_batch=4)
    planned = taken(pending)
    assert [(request.limit, request.queue_limit) for request in planned.claim_requests] == [(9, 4)]
    assert planned.claim_from is ClaimFrom.START


@pytest.mark.promise("C16")
@pytest.mark.parametrize(("batch", "expected"), [(1, [(2, 1)]), (2, [(2, 2)]), (5, [(2, 5), (4, 3)])])
def test_running_and_buffered_claims_share_max_claim_batch(batch: int, expected: list[tuple[int, int]]) -> None:
    pending = make_pending(Child(), Child(), prefetch=4, max_claim_batch=batch)
    assert [(request.limit, request.queue_limit) for request in taken(pending).claim_requests] == expected


@pytest.mark.promise("C19", "C20")
def test_with_caps_each_queue_is_one_lane() -> None:
    pending = make_pending(Child(), queues=("urgent", "default"), caps=ONE_CAP)
    pending.watermarks.on_rescanned([], limit=1, sent_at=0, now=0.0, cost_s=1e9)
    for payload in ("5 1000000 default", "9 1000000 default", "7 1000000 urgent"):
        pending.watermarks.add_hint(payload)
    # Until a claim has found rows in a queue, it is read from its start.
    served = [
        Claim("id", 1, "add", queue, priority, EPOCH, 1, "{}") for queue, priority in (("urgent", 7), ("default", 9))
    ]
    pending.watermarks.on_claimed(served, limit=9, sent_at=pending.watermarks.sequence)
    planned = taken(pending)
    assert planned.claim_from is ClaimFrom.QUEUES
    assert [(lane.queue_name, lane.priority) for lane in planned.lanes] == [("urgent", 7), ("default", 5)]
    assert "lock_caps" in statements(planned)


@pytest.mark.promise("C10", "C19")
def test_without_caps_nothing_is_counted_and_nothing_locked() -> None:
    pending = make_pending(Child())
    pending.watermarks.on_rescanned([], limit=1, sent_at=0, now=0.0, cost_s=1e9)
    pending.watermarks.add_hint("5 1000000 default")
    planned = taken(pending)
    assert planned.claim_from is ClaimFrom.WATERMARKS
    assert statements(planned) == ["begin_batch", "set_batch_limits", "claim_from_watermarks", "commit_batch"]


@given(
    loads=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    prefetch=st.integers(0, 6),
    buffered=st.integers(0, 8),
    limit=st.integers(0, 12),
    batch=st.integers(0, 8),
)
@pytest.mark.promise("C12", "C13", "C16", "C17", "C18")
def test_a_batch_claims_exactly_what_the_budget_allows(
    loads: list[int], prefetch: int, buffered: int, limit: int, batch: int
) -> None:
    """The oracle counts rows in the database, where the buffered rows that this batch starts are RUNNING by then."""
    concurrency = 3
    pending = make_pending(
        *[Child(load) for load in loads],
        prefetch=prefetch,
        concurrency=concurrency,
        processes=len(loads),
        max_claim_per_worker=limit,
        max_claim_batch=batch,
    )
    pending.buffer.extend(BufferedClaim(claim(), 100.0) for _ in range(buffered if prefetch else 0))
    planned = pending.next_batch(0.0)
    started = len(planned.starts) if planned else 0
    budget = Budget(
        slots=len(loads) * concurrency,
        running=sum(loads) + started,
        claimed=len(pending.buffer),
        prefetch_buffer=prefetch,
        max_claim_per_worker=limit,
        max_claim_batch=batch,
    )
    requests: list[ClaimRequest] = list(planned.claim_requests) if planned else []
    from_one_queue = sum(min(request.limit, request.queue_limit or request.limit) for request in requests)
    assert from_one_queue == budget.queue_limit(QueueRoom(name="default"), budget.pass_limit())
    if not batch:
        assert sum(request.limit for request in requests) == budget.pass_limit()
    assert claimed_by(planned).get("RUNNING", 0) <= len(loads) * concurrency - sum(loads) - started


# -- short tasks


def test_endings_of_short_tasks_wait_for_each_other() -> None:
    """While another task will end soon, or a batch in flight may bring more."""
    pending = with_short_tasks(make_pending(Child(load=1), Child()))
    assert pending.should_delay_batch()
    pending = with_short_tasks(make_pending(Child(), Child()))
    starting(pending)
    assert pending.should_delay_batch()


def with_short_tasks(pending: PendingWork) -> PendingWork:
    pending.endings.append(ending())
    for _ in range(100):
        pending.prefetch.observe(10)
    return pending


def test_the_ending_of_a_single_short_task_does_not_wait() -> None:
    assert not with_short_tasks(make_pending(Child(), Child())).should_delay_batch()


def test_endings_do_not_wait_when_there_are_no_more_tasks() -> None:
    pending = with_short_tasks(make_pending(Child(load=1)))
    pending.may_have_tasks = False
    assert not pending.should_delay_batch()


def test_endings_do_not_wait_during_a_shutdown() -> None:
    pending = with_short_tasks(make_pending(Child(load=1)))
    pending.is_stopping = True
    assert not pending.should_delay_batch()


def test_endings_of_longer_tasks_do_not_wait() -> None:
    pending = with_short_tasks(make_pending(Child(load=1)))
    pending.prefetch.observe(1_000_000)
    assert not pending.should_delay_batch()


def test_with_prefetch_endings_do_not_wait_while_a_child_has_capacity() -> None:
    assert not with_short_tasks(make_pending(Child(load=1), prefetch="auto")).should_delay_batch()


def test_with_prefetch_endings_wait_for_the_next_claim_while_children_have_enough_to_do() -> None:
    pending = with_short_tasks(make_pending(Child(load=PREFETCH_MAX), prefetch="auto"))
    assert pending.should_delay_batch()
    pending.endings.extend(ending() for _ in range(ENDINGS_PER_BATCH))
    assert not pending.should_delay_batch(), "more than one batch takes"


# -- other parts of a batch


def test_due_tasks_are_promoted_once_per_reason() -> None:
    pending = make_pending()
    pending.may_have_due_tasks = True
    planned = taken(pending)
    assert statements(planned) == ["begin_batch", "set_batch_limits", "promote_tasks", "get_next_due", "commit_batch"]
    assert pending.next_batch(0.0) is None
    pending.put_back(planned)
    assert taken(pending).promotes


@pytest.mark.promise("W10", "W9")
def test_interrupted_tasks_are_released_by_their_policy_or_ended() -> None:
    pending = make_pending()
    interrupted = [ending(), ending()]
    pending.interrupted.extend(interrupted)
    pending.is_stopping = True
    planned = taken(pending)
    assert list(planned.interrupted) == interrupted
    assert statements(planned) == [
        "begin_batch",
        "set_batch_limits",
        "release_interrupted_tasks",  # before the ending, which then finds only the others
        "finish_tasks",
        "commit_batch",
        "notify_done",
        "notify_all_queues",
    ]
    pending.put_back(planned)
    assert pending.interrupted == interrupted


def test_only_the_last_progress_of_a_task_is_sent() -> None:
    pending = make_pending()
    pending.progress["an id", 1] = "old"
    pending.progress["an id", 1] = "new"
    planned = taken(pending)
    assert list(planned.progress) == [("an id", 1, "new")]
    assert "report_progress" in statements(planned)
    assert pending.next_batch(0.0) is None


def test_progress_of_a_failed_batch_is_sent_again_unless_there_is_a_later_report() -> None:
    pending = make_pending()
    pending.progress.update({("one", 1): "old", ("other", 1): "old"})
    planned = taken(pending)
    pending.progress["one", 1] = "new"
    pending.put_back(planned)
    assert sorted(taken(pending).progress) == [("one", 1, "new"), ("other", 1, "old")]


def test_progress_does_not_delay_a_shutdown() -> None:
    pending = make_pending()
    pending.progress["an id", 1] = "half"
    assert pending.is_empty


def test_failed_attempts_with_retries_left_are_stored_by_their_retry_policy() -> None:
    pending = make_pending()
    failed, final = claim(), ending()
    pending.endings.extend([Ending(failed.id, 1, TaskStatus.FAILED, error_code="BROKEN", may_retry=True), final])
    assert statements(taken(pending))[2:5] == ["finish_tasks", "end_or_retry_tasks", "commit_batch"]


def test_large_results_are_sent_in_several_batches() -> None:
    """PostgreSQL refuses a message of a gigabyte, and one batch must not delay all others."""
    pending = make_pending()
    large = "x" * (BYTES_PER_BATCH // 2)
    for _ in range(4):
        of = claim()
        pending.endings.append(Ending(of.id, 1, TaskStatus.COMPLETED, large))
    assert [len(taken(pending).endings), len(taken(pending).endings)] == [2, 2]


def test_a_result_larger_than_the_limit_of_a_batch_is_sent_alone() -> None:
    pending = make_pending()
    pending.endings.extend([Ending(claim().id, 1, TaskStatus.COMPLETED, "x" * (BYTES_PER_BATCH + 1)), ending()])
    assert [len(taken(pending).endings), len(taken(pending).endings)] == [1, 1]


@pytest.mark.promise("C11")
@pytest.mark.parametrize("kind", ["endings", "interrupted", "releases"])
@pytest.mark.parametrize(("caps", "is_announced"), [(ONE_CAP, True), (Caps(cluster_wide=5), True), (NO_CAPS, False)])
def test_freed_capacity_is_announced_only_with_caps(kind: str, caps: Caps, *, is_announced: bool) -> None:
    pending = make_pending(caps=caps)
    getattr(pending, kind).append(claim() if kind == "releases" else ending())
    assert ("notify_capacity_freed" in statements(taken(pending))) is is_announced


def _read(planned: Batch) -> dict[str, Payload]:
    return {claim.id: Payload(2, "{}", None) for claim in planned.loads}


class HeldClaimsMachine(RuleBasedStateMachine):
    """In any order of events: exactly the claims without an answer from the database are held."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.known: set[tuple[str, int]] = set()
        self.in_flight: list[Batch] = []

    @initialize(prefetch=st.integers(0, 5), caps=st.sampled_from([NO_CAPS, ONE_CAP]))
    def begin(self, prefetch: int, caps: Caps) -> None:
        self.pending = make_pending(Child(), Child(), prefetch=prefetch, caps=caps)

    def new(self) -> Claim:
        new = claim()
        self.known.add((new.id, new.claim_no))
        return new

    @rule()
    def a_task_ends(self) -> None:
        self.pending.endings.append(ending(self.new()))

    @rule()
    def a_large_payload_must_be_read(self) -> None:
        self.pending.unread.append(replace(self.new(), args=None))

    @precondition(lambda self: self.in_flight)
    @rule(is_about_values=st.booleans())
    def a_batch_is_refused(self, *, is_about_values: bool) -> None:
        refuse(self.pending, self.in_flight.pop(), is_about_values=is_about_values, now=self.now)

    @rule()
    def a_task_is_interrupted(self) -> None:
        self.pending.interrupted.append(ending(self.new()))

    @rule()
    def a_task_is_released(self) -> None:
        self.pending.releases.append(self.new())

    @rule()
    def a_task_waits_in_the_buffer(self) -> None:
        self.pending.buffer.append(BufferedClaim(self.new(), self.now + 5.0))

    @rule()
    def time_passes(self) -> None:
        self.now += 3.0

    @rule()
    def a_batch_is_sent(self) -> None:
        if planned := self.pending.next_batch(self.now):
            self.in_flight.append(planned)

    @precondition(lambda self: self.in_flight)
    @rule()
    def a_batch_fails(self) -> None:
        self.pending.put_back(self.in_flight.pop())

    @precondition(lambda self: self.in_flight)
    @rule()
    def a_batch_is_committed(self) -> None:
        planned = self.in_flight.pop(0)
        self.pending.apply(
            planned, BatchResult(claimed=[[] for _ in planned.claim_requests], payloads=_read(planned)), until=self.now
        )
        self.known -= {(item.id, item.claim_no) for item in self._stored_by(planned)}

    def _stored_by(self, planned: Batch) -> list[Claim | Ending]:
        """Return what is no longer held. (What was not started is released by another batch.)"""
        return [*planned.endings, *planned.interrupted, *planned.releases, *planned.loads]

    @invariant()
    def open_claims_are_held(self) -> None:
        assert self.pending.held_claims() == self.known
        assert self.pending.is_empty == (not self.known and not self.in_flight)


TestHeldClaims = HeldClaimsMachine.TestCase


# -- workflows


def node_ending(root_id: str) -> Ending:
    return replace(ending(), root_id=root_id)


def test_a_batch_that_ends_a_node_claims_the_next_one() -> None:
    pending = make_pending(Child())
    pending.may_have_tasks = False
    pending.endings.append(node_ending("a"))
    planned = taken(pending)
    assert claimed_by(planned) == {"RUNNING": 1}
    names = statements(planned)
    assert (
        names.index("lock_roots")
        < names.index("finish_tasks")
        < names.index("advance_nodes")
        < names.index("enqueue_ready_nodes")
    )
    assert names.index("finish_runs") < names.index("claim_from_queues")


def test_with_prefetch_endings_of_a_workflow_wait_for_the_batch_that_advances_it() -> None:
    pending = make_pending(prefetch="auto")
    first, second, other = node_ending("a"), node_ending("a"), node_ending("b")
    pending.endings.append(first)
    planned = taken(pending)
    pending.endings.extend([second, other])
    assert taken(pending).endings == [other]
    assert pending.next_batch(0.0) is None
    pending.apply(planned, BatchResult(claimed=[[] for _ in planned.claim_requests]), until=0.0)
    assert taken(pending).endings == [second]


def test_the_rest_of_a_step_is_sent_with_the_next_batch_also_after_a_failure() -> None:
    pending = make_pending()
    pending.endings.append(node_ending("a"))
    pending.apply(
        planned := taken(pending), BatchResult(claimed=[[] for _ in planned.claim_requests], unsettled=["a"]), until=0.0
    )
    assert not pending.is_empty
    pending.put_back(again := taken(pending))
    assert again.unsettled == ["a"]
    assert "start_runs" in statements(taken(pending))


def test_tasks_without_a_workflow_send_no_workflow_statements() -> None:
    pending = make_pending()
    pending.endings.append(ending())
    assert not {"lock_roots", "advance_nodes", "enqueue_ready_nodes", "finish_runs"} & {*statements(taken(pending))}
