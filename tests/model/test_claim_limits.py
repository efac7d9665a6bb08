import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model.claim_limits import ClaimOracle, QueueLimits

COUNT = st.integers(0, 50)
LIMIT = st.integers(0, 60)

budgets = st.builds(
    ClaimOracle,
    slots=st.integers(1, 40),
    running=COUNT,
    claimed=COUNT,
    prefetch_buffer=st.sampled_from([0, 0, 1, 8]),
    max_claim_per_worker=LIMIT,
    max_claim_batch=LIMIT,
    cluster_wide_cap=st.none() | LIMIT,
    in_flight_everywhere=COUNT,
)
queues = st.lists(
    st.builds(QueueLimits, name=st.sampled_from("abcdef"), max_concurrency=st.none() | LIMIT, in_flight=COUNT),
    unique_by=lambda queue: queue.name,
)
waiting = st.dictionaries(st.sampled_from("abcdef"), COUNT)


@pytest.mark.promise("C18")
@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        pytest.param(ClaimOracle(slots=4, running=1, claimed=1), 2, id="hard: slots less what is held"),
        pytest.param(ClaimOracle(slots=4, running=4, claimed=3), 0, id="hard: never negative"),
        pytest.param(ClaimOracle(slots=4, running=4, claimed=3, prefetch_buffer=8), 5, id="soft: the buffer is added"),
        pytest.param(
            ClaimOracle(slots=9, running=0, claimed=0, cluster_wide_cap=20, in_flight_everywhere=17), 3, id="cap"
        ),
        pytest.param(
            ClaimOracle(slots=2, running=0, claimed=0, cluster_wide_cap=20, in_flight_everywhere=1), 2, id="room"
        ),
        pytest.param(
            ClaimOracle(slots=9, running=0, claimed=0, cluster_wide_cap=5, in_flight_everywhere=7), 0, id="overshot"
        ),
        pytest.param(ClaimOracle(slots=9, running=0, claimed=0, cluster_wide_cap=0), 0, id="a cap of 0 is a cap"),
        pytest.param(
            ClaimOracle(slots=9, running=2, claimed=1, max_claim_per_worker=5), 2, id="hard: a ceiling on both"
        ),
        pytest.param(
            ClaimOracle(slots=9, running=9, claimed=1, prefetch_buffer=9, max_claim_per_worker=5),
            4,
            id="soft: on claimed only",
        ),
        pytest.param(
            ClaimOracle(slots=9, running=0, claimed=7, prefetch_buffer=9, max_claim_per_worker=5), 0, id="above it"
        ),
    ],
)
def test_a_pass_claims_at_most_the_lowest_of_its_limits(budget: ClaimOracle, expected: int):
    assert budget.pass_limit() == expected


@pytest.mark.promise("C18")
@pytest.mark.parametrize(
    ("queue", "max_claim_batch", "expected"),
    [
        pytest.param(QueueLimits(name="q"), 0, 10, id="uncapped: all that is left"),
        pytest.param(QueueLimits(name="q", max_concurrency=5, in_flight=2), 0, 3, id="capped"),
        pytest.param(QueueLimits(name="q", max_concurrency=5, in_flight=9), 0, 0, id="overshot"),
        pytest.param(QueueLimits(name="q", max_concurrency=0), 0, 0, id="paused"),
        pytest.param(QueueLimits(name="q", max_concurrency=50), 4, 4, id="the batch is the least"),
        pytest.param(QueueLimits(name="q", max_concurrency=3), 4, 3, id="the cap is the least"),
    ],
)
def test_a_queue_gives_at_most_the_lowest_of_its_limits(queue: QueueLimits, max_claim_batch: int, expected: int):
    budget = ClaimOracle(slots=10, running=0, claimed=0, max_claim_batch=max_claim_batch)
    assert budget.queue_limit(queue, left=10) == expected


@pytest.mark.promise("C20")
def test_what_a_capped_queue_leaves_is_claimed_from_the_next_in_the_same_pass():
    budget = ClaimOracle(slots=10, running=0, claimed=0)
    urgent, low = QueueLimits(name="urgent", max_concurrency=5, in_flight=2), QueueLimits(name="low")
    assert budget.claims([urgent, low], {"urgent": 100, "low": 100}) == {"urgent": 3, "low": 7}


@pytest.mark.promise("C20")
def test_what_an_empty_queue_leaves_is_claimed_from_the_next_in_the_same_pass():
    budget = ClaimOracle(slots=4, running=0, claimed=0)
    assert budget.claims([QueueLimits(name="a"), QueueLimits(name="b")], {"a": 1, "b": 9}) == {"a": 1, "b": 3}


@pytest.mark.promise("C20")
def test_the_first_queue_can_use_the_whole_pass():
    budget = ClaimOracle(slots=4, running=0, claimed=0)
    assert budget.claims([QueueLimits(name="a"), QueueLimits(name="b")], {"a": 9, "b": 9}) == {"a": 4, "b": 0}


@pytest.mark.promise("C18")
@given(budgets, queues, waiting)
def test_no_limit_is_ever_exceeded(budget: ClaimOracle, queues: list[QueueLimits], waiting: dict[str, int]):
    taken = budget.claims(queues, waiting)
    total = sum(taken.values())
    assert all(count >= 0 for count in taken.values())
    assert total <= budget.pass_limit()
    if total:
        assert budget.running + budget.claimed + total <= budget.slots + budget.prefetch_buffer
        assert budget.cluster_wide_cap is None or budget.in_flight_everywhere + total <= budget.cluster_wide_cap
        assert not budget.max_claim_per_worker or budget.claimed + total <= budget.max_claim_per_worker
    for queue in queues:
        count = taken[queue.name]
        assert count <= waiting.get(queue.name, 0)
        assert not count or queue.max_concurrency is None or queue.in_flight + count <= queue.max_concurrency
        assert not budget.max_claim_batch or count <= budget.max_claim_batch


@pytest.mark.promise("C20")
@given(budgets, queues, waiting)
def test_no_task_waits_while_its_queue_and_the_pass_have_capacity(
    budget: ClaimOracle, queues: list[QueueLimits], waiting: dict[str, int]
):
    taken = budget.claims(queues, waiting)
    left = budget.pass_limit() - sum(taken.values())
    for queue in queues:
        if left and taken[queue.name] < waiting.get(queue.name, 0):
            assert taken[queue.name] == budget.queue_limit(queue, left=10**6)
