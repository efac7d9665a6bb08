"""The expected value of the tests of claims is right by itself: it is compared with numbers worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.budget import Budget, QueueRoom

COUNT = st.integers(0, 50)
LIMIT = st.integers(0, 60)

budgets = st.builds(
    Budget,
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
    st.builds(QueueRoom, name=st.sampled_from("abcdef"), max_concurrency=st.none() | LIMIT, in_flight=COUNT),
    unique_by=lambda queue: queue.name,
)
waiting = st.dictionaries(st.sampled_from("abcdef"), COUNT)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        pytest.param(Budget(slots=4, running=1, claimed=1), 2, id="hard: slots less what is held"),
        pytest.param(Budget(slots=4, running=4, claimed=3), 0, id="hard: never negative"),
        pytest.param(Budget(slots=4, running=4, claimed=3, prefetch_buffer=8), 5, id="soft: the buffer is added"),
        pytest.param(Budget(slots=9, running=0, claimed=0, cluster_wide_cap=20, in_flight_everywhere=17), 3, id="cap"),
        pytest.param(Budget(slots=2, running=0, claimed=0, cluster_wide_cap=20, in_flight_everywhere=1), 2, id="room"),
        pytest.param(
            Budget(slots=9, running=0, claimed=0, cluster_wide_cap=5, in_flight_everywhere=7), 0, id="overshot"
        ),
        pytest.param(Budget(slots=9, running=0, claimed=0, cluster_wide_cap=0), 0, id="a cap of 0 is a cap"),
        pytest.param(Budget(slots=9, running=2, claimed=1, max_claim_per_worker=5), 2, id="hard: a ceiling on both"),
        pytest.param(
            Budget(slots=9, running=9, claimed=1, prefetch_buffer=9, max_claim_per_worker=5),
            4,
            id="soft: on claimed only",
        ),
        pytest.param(
            Budget(slots=9, running=0, claimed=7, prefetch_buffer=9, max_claim_per_worker=5), 0, id="above it"
        ),
    ],
)
def test_a_pass_may_claim_the_least_of_its_limits(budget: Budget, expected: int):
    assert budget.pass_limit() == expected


@pytest.mark.parametrize(
    ("queue", "max_claim_batch", "expected"),
    [
        pytest.param(QueueRoom(name="q"), 0, 10, id="uncapped: all that is left"),
        pytest.param(QueueRoom(name="q", max_concurrency=5, in_flight=2), 0, 3, id="capped"),
        pytest.param(QueueRoom(name="q", max_concurrency=5, in_flight=9), 0, 0, id="overshot"),
        pytest.param(QueueRoom(name="q", max_concurrency=0), 0, 0, id="paused"),
        pytest.param(QueueRoom(name="q", max_concurrency=50), 4, 4, id="the batch is the least"),
        pytest.param(QueueRoom(name="q", max_concurrency=3), 4, 3, id="the cap is the least"),
    ],
)
def test_a_queue_may_give_the_least_of_its_limits(queue: QueueRoom, max_claim_batch: int, expected: int):
    budget = Budget(slots=10, running=0, claimed=0, max_claim_batch=max_claim_batch)
    assert budget.queue_limit(queue, left=10) == expected


def test_what_a_capped_queue_leaves_goes_to_the_next_in_the_same_pass():
    budget = Budget(slots=10, running=0, claimed=0)
    urgent, low = QueueRoom(name="urgent", max_concurrency=5, in_flight=2), QueueRoom(name="low")
    assert budget.claims([urgent, low], {"urgent": 100, "low": 100}) == {"urgent": 3, "low": 7}


def test_what_an_empty_queue_leaves_goes_to_the_next_in_the_same_pass():
    budget = Budget(slots=4, running=0, claimed=0)
    assert budget.claims([QueueRoom(name="a"), QueueRoom(name="b")], {"a": 1, "b": 9}) == {"a": 1, "b": 3}


def test_a_queue_that_comes_first_can_take_everything():
    budget = Budget(slots=4, running=0, claimed=0)
    assert budget.claims([QueueRoom(name="a"), QueueRoom(name="b")], {"a": 9, "b": 9}) == {"a": 4, "b": 0}


@given(budgets, queues, waiting)
def test_no_limit_is_ever_exceeded(budget: Budget, queues: list[QueueRoom], waiting: dict[str, int]):
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


@given(budgets, queues, waiting)
def test_nothing_waits_in_a_queue_with_room_while_the_pass_has_room(
    budget: Budget, queues: list[QueueRoom], waiting: dict[str, int]
):
    taken = budget.claims(queues, waiting)
    left = budget.pass_limit() - sum(taken.values())
    for queue in queues:
        if left and taken[queue.name] < waiting.get(queue.name, 0):
            assert taken[queue.name] == budget.queue_limit(queue, left=10**6)
