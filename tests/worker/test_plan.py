"""What a dispatcher plans, sends and puts back, without children or database: nothing is lost, and nothing above the limits is claimed."""

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.model.attempt_log import StoredLog
from horsies.model.payload_errors import MOST_BYTES
from horsies.model.status import TaskStatus
from horsies.model.task import Claim, Ending
from horsies.tasks.claim import EPOCH, MAX_LOAD_BYTES, NO_CAPS, Caps, ClaimFrom, ClaimRequest, Payload
from horsies.tasks.unknown import unknown_task_claim
from horsies.worker.batch import Batch, BatchResult
from horsies.worker.plan import (
    BYTES_PER_BATCH,
    ENDINGS_PER_BATCH,
    PREFETCH_MAX,
    BufferedClaim,
    Sent,
    is_drained,
    should_delay_batch,
)
from tests.fixtures.budget import Budget, QueueRoom
from tests.fixtures.dispatching import (
    ABOUT_VALUES,
    DATABASE,
    MAY_PASS,
    ONE_CAP,
    WORKER,
    Child,
    Simulation,
    claim,
    claimed_by,
    ending,
    simulate,
    statements,
)


def starting(simulation: Simulation, *claims: Claim) -> Batch:
    """Add a batch in flight that starts these."""
    batch = Batch(WORKER, DATABASE, simulation.state.limits.caps, starts=claims)
    simulation.state.in_flight[batch] = Sent(simulation.now, 0, 0)
    return batch


def add(simulation: Simulation, part: str) -> None:
    """Add one item to a part of the next batch."""
    match part:
        case "endings":
            simulation.state.endings.append(ending())
        case "interrupted":
            simulation.state.interrupted.append(ending())
        case "releases":
            simulation.state.releases.append(claim())
        case _:
            simulation.state.unfit.append(unknown_task_claim(claim()))


def test_without_pending_work_there_is_no_batch() -> None:
    simulation = simulate()
    assert simulation.next_batch(0.0) is None
    assert is_drained(simulation.state)


def test_twenty_endings_are_stored_by_one_statement() -> None:
    simulation = simulate()
    endings = [ending() for _ in range(20)]
    simulation.state.endings.extend(endings)
    planned = simulation.taken()
    assert list(planned.endings) == endings
    assert statements(planned) == ["begin_batch", "set_batch_limits", "finish_tasks", "commit_batch", "notify_done"]
    assert simulation.next_batch(0.0) is None


def test_a_batch_finishes_releases_starts_and_claims_together() -> None:
    simulation = simulate(Child(), Child(), prefetch=4)
    simulation.state.endings.append(ending())
    simulation.state.releases.append(claim())
    simulation.state.buffer.append(BufferedClaim(claim(), 100.0))
    planned = simulation.taken()
    names = statements(planned)
    assert names[:5] == ["begin_batch", "set_batch_limits", "finish_tasks", "release_tasks", "start_tasks"]
    assert names[5:7] == ["claim_from_queues", "claim_from_queues"]  # to run, and to wait
    assert names[7:9] == ["get_caps_set_at_run_time", "commit_batch"]
    assert sorted(names[9:]) == ["notify_done", "notify_new_tasks"]  # after the commit: NOTIFY takes a lock


def test_very_many_endings_are_sent_in_several_batches() -> None:
    simulation = simulate()
    simulation.state.endings.extend(ending() for _ in range(ENDINGS_PER_BATCH + 1))
    assert [len(simulation.taken().endings), len(simulation.taken().endings)] == [ENDINGS_PER_BATCH, 1]


@pytest.mark.promise("D6")
def test_the_parts_of_a_refused_batch_are_sent_alone_and_without_a_statement_timeout() -> None:
    simulation = simulate(Child())
    first, second, returned = ending(), ending(), claim()
    simulation.state.endings.extend([first, second])
    simulation.state.releases.append(returned)
    refused = simulation.taken()
    assert claimed_by(refused) == {"RUNNING": 1}
    simulation.refuse(refused)
    simulation.state.endings.append(other := ending())
    batches = [simulation.taken() for _ in range(4)]
    assert [(list(planned.endings), list(planned.releases)) for planned in batches] == [
        ([first], []),
        ([second], []),
        ([], [returned]),
        ([other], []),
    ]
    assert [claimed_by(planned) for planned in batches] == [{}, {}, {}, {}]
    assert ["disable_statement_timeout" in statements(planned) for planned in batches] == [True, True, True, False]
    assert claimed_by(simulation.taken()) == {"RUNNING": 1}


@pytest.mark.promise("D6")
def test_claims_have_batches_of_their_own_until_one_succeeds() -> None:
    simulation = simulate(Child())
    simulation.state.endings.append(ending())
    simulation.refuse(simulation.taken())
    simulation.commit(simulation.taken(), BatchResult())
    simulation.state.endings.append(ending())
    assert claimed_by(simulation.taken()) == {}
    claiming = simulation.taken()
    assert claimed_by(claiming) == {"RUNNING": 1}
    simulation.commit(claiming, BatchResult(claimed=[[]]))
    simulation.state.endings.append(ending())
    simulation.state.may_have_tasks = True
    assert claimed_by(simulation.taken()) == {"RUNNING": 1}


@pytest.mark.promise("D6")
def test_an_ending_that_is_refused_alone_is_tried_in_simpler_forms_and_replaced_last() -> None:
    simulation = simulate()
    simulation.state.endings.append(
        bad := ending()._replace(status=TaskStatus.FAILED, error_code="BAD", may_retry=True, root_id="a")
    )
    simulation.refuse(simulation.taken())
    tried: list[Ending] = []
    for _ in range(4):
        planned = simulation.taken()
        tried += planned.endings
        simulation.refuse(planned)
    without_step = bad._replace(root_id=None)
    assert tried[:3] == [bad, without_step, without_step._replace(may_retry=False)]
    assert tried[3].error_code == "WORKER_SERIALIZATION_ERROR"
    assert simulation.next_batch(0.0) is None, "it pauses"
    again = simulation.taken(60.0)
    assert list(again.endings) == [tried[3]]


@pytest.mark.promise("D6")
def test_forged_notifications_of_delayed_tasks_cause_few_promotions() -> None:
    simulation, promotions = simulate(), 0
    for millisecond in range(1_000):
        simulation.now = 100 + millisecond / 1_000
        simulation.dispatcher.on_notification("later 0")
        simulation.dispatcher.on_timer()
        while (batch := simulation.next_batch()) is not None:
            promotions += batch.promotes
            simulation.commit(batch)
    assert 50 <= promotions <= 101


@pytest.mark.promise("D6", "W11")
def test_a_result_is_not_replaced_because_of_an_error_that_may_pass() -> None:
    """A full disk, a trigger that raises: it is retried with growing pauses, and delays no other."""
    simulation = simulate()
    simulation.state.endings.append(good := ending())
    simulation.refuse(simulation.taken())
    simulation.refuse(simulation.taken(), MAY_PASS)
    simulation.state.endings.append(other := ending())
    assert list(simulation.taken().endings) == [other]
    (first,) = [part.not_before for part in simulation.state.quarantine]
    again = simulation.taken(first)
    assert list(again.endings) == [good]
    simulation.refuse(again, MAY_PASS)
    (second,) = [part.not_before for part in simulation.state.quarantine]
    assert second - first > first
    assert not is_drained(simulation.state)


LOG = StoredLog(1, "[]", 0)


def test_logs_are_stored_in_the_batch_of_their_endings_and_cost_others_no_statement() -> None:
    simulation = simulate()
    simulation.state.endings.extend([ending(), ending()._replace(log=LOG)])
    assert statements(simulation.taken())[2:4] == ["store_logs", "finish_tasks"]
    simulation.state.interrupted.append(ending()._replace(log=LOG))
    assert statements(simulation.taken())[2:5] == ["store_logs", "release_interrupted_tasks", "finish_tasks"]
    simulation.state.endings.append(ending())
    assert "store_logs" not in statements(simulation.taken())


@pytest.mark.promise("D6")
@pytest.mark.parametrize("reason", [ABOUT_VALUES, MAY_PASS])
def test_an_ending_that_is_refused_with_its_log_is_tried_as_it_is_without_it(reason: psycopg.Error) -> None:
    for place in ("endings", "interrupted"):
        simulation = simulate()
        getattr(simulation.state, place).append(bad := ending()._replace(log=LOG, root_id="a"))
        simulation.refuse(simulation.taken())
        simulation.refuse(simulation.taken(), reason)
        assert [*getattr(simulation.taken(), place)] == [bad._replace(log=None)]


def test_endings_with_large_logs_are_split_over_batches() -> None:
    simulation = simulate()
    large = StoredLog(1, "x" * (BYTES_PER_BATCH // 2), 0)
    simulation.state.endings.extend(ending()._replace(log=large) for _ in range(3))
    assert [len(simulation.taken().endings) for _ in range(2)] == [2, 1]


def test_large_payloads_are_read_after_the_claim_by_one_batch_at_a_time() -> None:
    simulation = simulate(Child(), Child())
    small, large, larger = claim(), claim()._replace(args=None), claim()._replace(takes_inputs=True)
    claiming = simulation.taken()
    runnable = simulation.commit(claiming, BatchResult(claimed=[[small, large, larger]]))
    assert runnable == [small]
    loading = simulation.taken()
    assert list(loading.loads) == [large, larger]
    assert "load_payloads" in statements(loading)
    assert claimed_by(simulation.next_batch(0.0)) == {}, "their slots are taken"
    read = {large.id: Payload(5, "args", None), larger.id: Payload(9, None, None)}
    assert simulation.commit(loading, BatchResult(payloads=read)) == [large._replace(args="args")]
    assert list(simulation.taken().loads) == [larger], "it did not fit into the first"


def test_no_more_payloads_are_read_while_children_have_not_received_the_last_ones() -> None:
    child = Child(unsent_bytes=MAX_LOAD_BYTES)
    simulation = simulate(child)
    simulation.state.may_have_tasks = False
    simulation.state.unread.append(claim()._replace(args=None))
    assert simulation.next_batch(0.0) is None
    child.unsent_bytes = 0
    assert simulation.taken().loads


def test_a_payload_above_the_limit_ends_its_task_and_a_lost_claim_is_released() -> None:
    simulation = simulate(Child(), Child())
    simulation.state.may_have_tasks = False
    simulation.state.unread.extend([huge := claim()._replace(args=None), lost := claim()._replace(args=None)])
    loading = simulation.taken()
    assert simulation.commit(loading, BatchResult(payloads={huge.id: Payload(MOST_BYTES + 1, None, None)})) == []
    planned = simulation.taken()
    assert [(of.id, of.error_code) for of in planned.endings] == [(huge.id, "WORKER_SERIALIZATION_ERROR")]
    assert list(planned.releases) == [lost]


def test_a_payload_that_cannot_be_read_ends_its_task_and_no_other() -> None:
    simulation = simulate(Child(), Child())
    simulation.state.may_have_tasks = False
    simulation.state.unread.extend([good := claim()._replace(args=None), bad := claim()._replace(args=None)])
    simulation.refuse(simulation.taken())
    one, other = simulation.taken(), simulation.taken()
    assert [list(one.loads), list(other.loads)] == [[good], [bad]]
    simulation.refuse(other)
    assert simulation.commit(one, BatchResult(payloads={good.id: Payload(2, "{}", None)})) == [good._replace(args="{}")]
    assert [of.id for of in simulation.taken().endings] == [bad.id]


def test_capacity_that_a_batch_in_flight_may_fill_is_not_claimed_twice() -> None:
    simulation = simulate(prefetch=4)
    assert (
        sum(request.limit for request in simulation.taken().claim_requests) == 6
    )  # two processes and four in the buffer
    assert simulation.next_batch(0.0) is None


@pytest.mark.promise("C13")
def test_the_buffer_is_never_filled_beyond_its_size() -> None:
    simulation = simulate(prefetch=4)
    planned = simulation.taken()
    claims = [claim() for _ in range(6)]
    assert simulation.commit(planned, BatchResult(claimed=[claims])) == []
    assert len(simulation.state.buffer) == 6
    assert simulation.next_batch(0.0) is None


@pytest.mark.promise("C14")
def test_a_buffered_claim_is_released_when_its_lease_ends_here() -> None:
    simulation = simulate(prefetch=4)
    old, young = claim(), claim()
    simulation.state.buffer.extend([BufferedClaim(old, 5.0), BufferedClaim(young, 6.0)])
    simulation.state.may_have_tasks = False
    assert simulation.next_batch(4.9) is None
    assert list(simulation.taken(5.0).releases) == [old]
    assert [buffered.claim for buffered in simulation.state.buffer] == [young]


@pytest.mark.promise("C14")
def test_a_lease_counts_here_from_before_the_claim_was_sent() -> None:
    """So it ends here before it ends in the database, however long the answer took."""
    simulation = simulate(Child(load=1), Child(load=1), prefetch=1)
    claiming = simulation.taken(100.0)
    assert claimed_by(claiming) == {"CLAIMED": 1}
    simulation.now = 103.0
    simulation.commit(claiming, BatchResult(claimed=[[held := claim()]]))
    simulation.state.may_have_tasks = False
    assert simulation.next_batch(104.9) is None
    assert list(simulation.taken(105.0).releases) == [held]


@pytest.mark.promise("W10")
def test_when_stopping_nothing_is_claimed_and_the_buffer_is_released() -> None:
    simulation = simulate(prefetch=4)
    held = [claim(), claim()]
    simulation.state.buffer.extend(BufferedClaim(one, 100.0) for one in held)
    simulation.state.is_stopping = True
    planned = simulation.taken()
    assert list(planned.releases) == held
    assert not planned.claim_requests
    simulation.commit(planned)
    assert is_drained(simulation.state)


def test_a_failed_batch_puts_back_all_its_parts_in_order() -> None:
    simulation = simulate()
    endings, releases = [ending(), ending(), ending()], [claim()]
    simulation.state.endings.extend(endings[:2])
    simulation.state.releases.extend(releases)
    planned = simulation.taken()
    simulation.state.endings.append(endings[2])
    simulation.lose(planned)
    assert list(simulation.state.endings) == endings
    assert simulation.state.releases == releases


def test_starts_of_a_failed_batch_are_released_because_their_outcome_is_unknown() -> None:
    simulation = simulate(prefetch=4)
    started = claim()
    planned = starting(simulation, started)
    simulation.lose(planned)
    assert simulation.state.releases == [started]


def test_tasks_that_were_not_started_are_not_run() -> None:
    simulation = simulate(Child(), prefetch=4)
    kept, lost = claim(), claim()
    planned = starting(simulation, kept, lost)
    assert simulation.commit(planned, BatchResult(started=frozenset({kept.id}))) == [kept]
    assert simulation.state.releases == [lost]  # its queue may be at its cap: what is still held is released


# -- capacity


@pytest.mark.promise("C1", "C12")
def test_without_a_buffer_only_tasks_that_can_run_at_once_are_claimed() -> None:
    simulation = simulate(Child(), Child(load=1), Child(budget_left=0), processes=3)
    planned = simulation.taken()
    assert claimed_by(planned) == {"RUNNING": 1}
    assert [request.queue_limit for request in planned.claim_requests] == [None]


@pytest.mark.promise("C13")
def test_with_a_buffer_some_claims_run_at_once_and_some_wait() -> None:
    simulation = simulate(Child(), Child(load=1), prefetch=4)
    assert claimed_by(simulation.taken()) == {"RUNNING": 1, "CLAIMED": 4}


@pytest.mark.promise("X2", "X4")
def test_a_child_with_concurrency_has_as_many_slots() -> None:
    simulation = simulate(Child(load=3), Child(), concurrency=10)
    assert claimed_by(simulation.taken()) == {"RUNNING": 17}


@pytest.mark.promise("C2")
def test_a_child_is_assigned_no_more_than_its_budget() -> None:
    simulation = simulate(Child(budget_left=2), Child(load=9, budget_left=7), concurrency=10)
    assert claimed_by(simulation.taken()) == {"RUNNING": 3}


def test_batches_overlap_as_children_become_free() -> None:
    first, second = Child(), Child(load=1)
    simulation = simulate(first, second)
    assert claimed_by(simulation.taken()) == {"RUNNING": 1}
    second.load = 0
    assert claimed_by(simulation.taken()) == {"RUNNING": 1}
    assert simulation.next_batch(0.0) is None


@pytest.mark.promise("C11", "C12", "C19")
@pytest.mark.parametrize("caps", [ONE_CAP, Caps(cluster_wide=5)])
def test_with_caps_one_batch_at_a_time_claims_and_the_others_still_end_tasks(caps: Caps) -> None:
    first, second = Child(), Child(load=1)
    simulation = simulate(first, second, caps=caps)
    claiming = simulation.taken()
    assert claimed_by(claiming) == {"RUNNING": 1}
    second.load = 0
    simulation.state.endings.append(ending())
    assert claimed_by(simulation.taken()) == {}
    simulation.commit(claiming)
    simulation.state.may_have_tasks = True
    assert claimed_by(simulation.taken()) == {"RUNNING": 2}


@pytest.mark.promise("C17")
def test_without_a_buffer_max_claim_per_worker_counts_all_held_claims() -> None:
    busy = [Child(load=1), Child(load=1), Child(), Child(), Child()]
    simulation = simulate(*busy, processes=5, max_claim_per_worker=3)
    assert claimed_by(simulation.taken()) == {"RUNNING": 1}
    assert simulation.next_batch(0.0) is None


@pytest.mark.promise("C17")
@pytest.mark.parametrize("part", ["endings", "interrupted", "releases", "unfit"])
def test_without_a_buffer_max_claim_per_worker_counts_what_leaves_until_it_is_committed(part: str) -> None:
    """Otherwise more rows than the limit would be RUNNING for a moment."""
    simulation = simulate(Child(), Child(), max_claim_per_worker=1)
    simulation.state.may_have_tasks = False
    add(simulation, part)
    ending_batch = simulation.taken()
    simulation.state.may_have_tasks = True
    assert simulation.next_batch(0.0) is None
    simulation.commit(ending_batch)
    assert claimed_by(simulation.taken()) == {"RUNNING": 1}


@pytest.mark.promise("C17")
def test_max_claim_per_worker_counts_endings_that_are_left_to_a_later_batch() -> None:
    simulation = simulate(Child(), Child(), processes=2, max_claim_per_worker=ENDINGS_PER_BATCH + 1)
    simulation.state.endings.extend(ending() for _ in range(ENDINGS_PER_BATCH + 2))
    planned = simulation.taken()
    assert (len(planned.endings), claimed_by(planned)) == (ENDINGS_PER_BATCH, {"RUNNING": 2})
    simulation = simulate(Child(), Child(), processes=2, max_claim_per_worker=3)
    simulation.state.endings.extend(ending() for _ in range(ENDINGS_PER_BATCH + 2))
    assert claimed_by(simulation.taken()) == {"RUNNING": 1}


@pytest.mark.promise("C17")
@pytest.mark.parametrize("part", ["endings", "interrupted", "releases", "unfit"])
def test_max_claim_per_worker_counts_what_the_database_refuses_to_end_or_to_release(part: str) -> None:
    """Its row is still held."""
    simulation = simulate(Child(), Child(), Child(), processes=3, max_claim_per_worker=2)
    add(simulation, part)
    simulation.refuse(simulation.taken())
    simulation.refuse(simulation.taken(), MAY_PASS)
    assert claimed_by(simulation.taken()) == {"RUNNING": 1}


@pytest.mark.promise("C13", "C17")
def test_claims_that_wait_to_be_started_loaded_or_set_aside_are_held() -> None:
    simulation = simulate(Child(), Child(), prefetch=2)
    starting(simulation, claim(), claim())
    assert claimed_by(simulation.taken()) == {"CLAIMED": 2}
    simulation = simulate(*[Child() for _ in range(5)], processes=5, max_claim_per_worker=3)
    batch = Batch(WORKER, DATABASE, NO_CAPS, loads=[claim()])
    simulation.state.in_flight[batch] = Sent(simulation.now, 0, 0)
    simulation.state.unread.append(claim())
    assert claimed_by(simulation.taken()) == {"RUNNING": 1}
    simulation = simulate(Child(), Child(), Child(), processes=3)
    simulation.state.unfit.append(unknown_task_claim(claim()))
    assert claimed_by(simulation.taken()) == {"RUNNING": 2}


@pytest.mark.promise("C17")
def test_a_worker_at_its_max_claim_per_worker_is_full() -> None:
    """Although children are free: it leaves new tasks to workers that can claim them."""
    simulation = simulate(Child(load=1), Child(), Child(), processes=3, max_claim_per_worker=1)
    simulation.state.may_have_tasks = True
    simulation.next_batch(0.0)
    assert simulation.dispatcher.is_full


def test_with_a_buffer_max_claim_per_worker_counts_only_waiting_claims() -> None:
    simulation = simulate(Child(load=1), Child(load=1), prefetch=9, max_claim_per_worker=4)
    simulation.state.buffer.append(BufferedClaim(claim(), 100.0))
    assert claimed_by(simulation.taken()) == {"CLAIMED": 3}


@pytest.mark.promise("C16")
def test_max_claim_batch_limits_what_one_batch_claims_from_a_queue() -> None:
    simulation = simulate(*[Child() for _ in range(9)], processes=9, max_claim_batch=4)
    planned = simulation.taken()
    assert [(request.limit, request.queue_limit) for request in planned.claim_requests] == [(9, 4)]
    assert planned.claim_from is ClaimFrom.START


@pytest.mark.promise("C16")
@pytest.mark.parametrize(("batch", "expected"), [(1, [(2, 1)]), (2, [(2, 2)]), (5, [(2, 5), (4, 3)])])
def test_running_and_buffered_claims_share_max_claim_batch(batch: int, expected: list[tuple[int, int]]) -> None:
    simulation = simulate(Child(), Child(), prefetch=4, max_claim_batch=batch)
    assert [(request.limit, request.queue_limit) for request in simulation.taken().claim_requests] == expected


@pytest.mark.promise("C19", "C20")
def test_with_caps_each_queue_is_one_lane() -> None:
    simulation = simulate(Child(), queues=("urgent", "default"), caps=ONE_CAP)
    simulation.state.watermarks.on_rescanned([], limit=1, sent_at=0, now=0.0, cost_s=1e9)
    for payload in ("5 1000000 default", "9 1000000 default", "7 1000000 urgent"):
        simulation.state.watermarks.add_hint(payload)
    # Until a claim has found rows in a queue, it is read from its start.
    served = [
        Claim("id", 1, "add", queue, priority, EPOCH, 1, "{}") for queue, priority in (("urgent", 7), ("default", 9))
    ]
    simulation.state.watermarks.on_claimed(served, limit=9, sent_at=simulation.state.watermarks.sequence)
    planned = simulation.taken()
    assert planned.claim_from is ClaimFrom.QUEUES
    assert [(lane.queue_name, lane.priority) for lane in planned.lanes] == [("urgent", 7), ("default", 5)]
    assert "lock_caps" in statements(planned)


@pytest.mark.promise("C10", "C19")
def test_without_caps_nothing_is_counted_and_nothing_locked() -> None:
    simulation = simulate(Child())
    simulation.state.watermarks.on_rescanned([], limit=1, sent_at=0, now=0.0, cost_s=1e9)
    simulation.state.watermarks.add_hint("5 1000000 default")
    planned = simulation.taken()
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
    simulation = simulate(
        *[Child(load=load) for load in loads],
        prefetch=prefetch,
        concurrency=concurrency,
        processes=len(loads),
        max_claim_per_worker=limit,
        max_claim_batch=batch,
    )
    simulation.state.buffer.extend(BufferedClaim(claim(), 100.0) for _ in range(buffered if prefetch else 0))
    planned = simulation.next_batch(0.0)
    started = len(planned.starts) if planned else 0
    budget = Budget(
        slots=len(loads) * concurrency,
        running=sum(loads) + started,
        claimed=len(simulation.state.buffer),
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
    simulation = with_short_tasks(simulate(Child(load=1), Child()))
    assert should_delay_batch(simulation.state)
    simulation = with_short_tasks(simulate(Child(), Child()))
    starting(simulation)
    assert should_delay_batch(simulation.state)


def with_short_tasks(simulation: Simulation) -> Simulation:
    simulation.state.endings.append(ending())
    for _ in range(100):
        simulation.state.prefetch.observe(10)
    return simulation


def test_the_ending_of_a_single_short_task_does_not_wait() -> None:
    assert not should_delay_batch(with_short_tasks(simulate(Child(), Child())).state)


def test_endings_do_not_wait_when_there_are_no_more_tasks() -> None:
    simulation = with_short_tasks(simulate(Child(load=1)))
    simulation.state.may_have_tasks = False
    assert not should_delay_batch(simulation.state)


def test_endings_do_not_wait_during_a_shutdown() -> None:
    simulation = with_short_tasks(simulate(Child(load=1)))
    simulation.state.is_stopping = True
    assert not should_delay_batch(simulation.state)


def test_endings_of_longer_tasks_do_not_wait() -> None:
    simulation = with_short_tasks(simulate(Child(load=1)))
    simulation.state.prefetch.observe(1_000_000)
    assert not should_delay_batch(simulation.state)


def test_with_prefetch_endings_do_not_wait_while_a_child_has_capacity() -> None:
    assert not should_delay_batch(with_short_tasks(simulate(Child(load=1), prefetch="auto")).state)


def test_with_prefetch_endings_wait_for_the_next_claim_while_children_have_enough_to_do() -> None:
    simulation = with_short_tasks(simulate(Child(load=PREFETCH_MAX), prefetch="auto"))
    assert should_delay_batch(simulation.state)
    simulation.state.endings.extend(ending() for _ in range(ENDINGS_PER_BATCH))
    assert not should_delay_batch(simulation.state), "more than one batch takes"


# -- other parts of a batch


def test_due_tasks_are_promoted_once_per_reason() -> None:
    simulation = simulate()
    simulation.state.may_have_due_tasks = True
    planned = simulation.taken()
    assert statements(planned) == ["begin_batch", "set_batch_limits", "promote_tasks", "get_next_due", "commit_batch"]
    assert simulation.next_batch(0.0) is None
    simulation.lose(planned)
    assert simulation.taken().promotes


@pytest.mark.promise("W10", "W9")
def test_interrupted_tasks_are_released_by_their_policy_or_ended() -> None:
    simulation = simulate()
    interrupted = [ending(), ending()]
    simulation.state.interrupted.extend(interrupted)
    simulation.state.is_stopping = True
    planned = simulation.taken()
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
    simulation.lose(planned)
    assert simulation.state.interrupted == interrupted


def test_only_the_last_progress_of_a_task_is_sent() -> None:
    simulation = simulate()
    simulation.state.progress["an id", 1] = "old"
    simulation.state.progress["an id", 1] = "new"
    planned = simulation.taken()
    assert list(planned.progress) == [("an id", 1, "new")]
    assert "report_progress" in statements(planned)
    assert simulation.next_batch(0.0) is None


def test_progress_of_a_failed_batch_is_sent_again_unless_there_is_a_later_report() -> None:
    simulation = simulate()
    simulation.state.progress.update({("one", 1): "old", ("other", 1): "old"})
    planned = simulation.taken()
    simulation.state.progress["one", 1] = "new"
    simulation.lose(planned)
    assert sorted(simulation.taken().progress) == [("one", 1, "new"), ("other", 1, "old")]


def test_progress_does_not_delay_a_shutdown() -> None:
    simulation = simulate()
    simulation.state.progress["an id", 1] = "half"
    assert is_drained(simulation.state)


def test_failed_attempts_with_retries_left_are_stored_by_their_retry_policy() -> None:
    simulation = simulate()
    failed, final = claim(), ending()
    simulation.state.endings.extend(
        [Ending(failed.id, 1, TaskStatus.FAILED, error_code="BROKEN", may_retry=True), final]
    )
    assert statements(simulation.taken())[2:5] == ["finish_tasks", "end_or_retry_tasks", "commit_batch"]


def test_large_results_are_sent_in_several_batches() -> None:
    """PostgreSQL refuses a message of a gigabyte, and one batch must not delay all others."""
    simulation = simulate()
    large = "x" * (BYTES_PER_BATCH // 2)
    for _ in range(4):
        of = claim()
        simulation.state.endings.append(Ending(of.id, 1, TaskStatus.COMPLETED, large))
    assert [len(simulation.taken().endings), len(simulation.taken().endings)] == [2, 2]


def test_a_result_larger_than_the_limit_of_a_batch_is_sent_alone() -> None:
    simulation = simulate()
    simulation.state.endings.extend(
        [Ending(claim().id, 1, TaskStatus.COMPLETED, "x" * (BYTES_PER_BATCH + 1)), ending()]
    )
    assert [len(simulation.taken().endings), len(simulation.taken().endings)] == [1, 1]


@pytest.mark.promise("C11")
@pytest.mark.parametrize("kind", ["endings", "interrupted", "releases"])
@pytest.mark.parametrize(("caps", "is_announced"), [(ONE_CAP, True), (Caps(cluster_wide=5), True), (NO_CAPS, False)])
def test_freed_capacity_is_announced_only_with_caps(kind: str, caps: Caps, *, is_announced: bool) -> None:
    simulation = simulate(caps=caps)
    getattr(simulation.state, kind).append(claim() if kind == "releases" else ending())
    assert ("notify_capacity_freed" in statements(simulation.taken())) is is_announced


# -- workflows


def node_ending(root_id: str) -> Ending:
    return ending()._replace(root_id=root_id)


def test_a_batch_that_ends_a_node_claims_the_next_one() -> None:
    simulation = simulate(Child())
    simulation.state.may_have_tasks = False
    simulation.state.endings.append(node_ending("a"))
    planned = simulation.taken()
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
    simulation = simulate(prefetch="auto")
    first, second, other = node_ending("a"), node_ending("a"), node_ending("b")
    simulation.state.endings.append(first)
    planned = simulation.taken()
    simulation.state.endings.extend([second, other])
    assert simulation.taken().endings == [other]
    assert simulation.next_batch(0.0) is None
    simulation.commit(planned, BatchResult(claimed=[[] for _ in planned.claim_requests]))
    assert simulation.taken().endings == [second]


def test_the_rest_of_a_step_is_sent_with_the_next_batch_also_after_a_failure() -> None:
    simulation = simulate()
    simulation.state.endings.append(node_ending("a"))
    planned = simulation.taken()
    simulation.commit(planned, BatchResult(claimed=[[] for _ in planned.claim_requests], unsettled=["a"]))
    assert not is_drained(simulation.state)
    simulation.lose(again := simulation.taken())
    assert again.unsettled == ["a"]
    assert "start_runs" in statements(simulation.taken())


def test_tasks_without_a_workflow_send_no_workflow_statements() -> None:
    simulation = simulate()
    simulation.state.endings.append(ending())
    assert not {"lock_roots", "advance_nodes", "enqueue_ready_nodes", "finish_runs"} & {*statements(simulation.taken())}
