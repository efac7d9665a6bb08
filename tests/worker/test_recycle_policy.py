"""When a child is replaced."""

import math

import pytest

from horsies.worker.child import NO_LIMIT, RecyclePolicy
from horsies.worker.supervisor import most_spares


@pytest.mark.parametrize(("budget", "near_at"), [(2, 1), (3, 2), (5, 4), (10, 8), (100, 80)])
def test_a_replacement_is_needed_before_the_last_task(budget: int, near_at: int) -> None:
    policies = [RecyclePolicy(budget, assigned) for assigned in range(budget + 1)]
    assert [policy.is_near_limit(1.0) for policy in policies] == [policy.assigned >= near_at for policy in policies]
    assert [policy.is_retiring for policy in policies] == [policy.assigned == budget for policy in policies]


def test_without_a_budget_a_child_is_never_replaced() -> None:
    policy = RecyclePolicy(None, assigned=1_000_000)
    assert (policy.left, policy.is_near_limit(1.0), policy.is_retiring) == (NO_LIMIT, False, False)


def test_a_child_that_is_too_big_retires_at_once() -> None:
    policy = RecyclePolicy(100, assigned=1, is_too_big=True)
    assert policy.is_near_limit(1.0)
    assert policy.is_retiring


def test_a_child_that_was_extended_continues_and_still_needs_a_replacement() -> None:
    for policy in (
        RecyclePolicy(5, assigned=5, is_extended=True),
        RecyclePolicy(None, is_too_big=True, is_extended=True),
    ):
        assert (policy.left, policy.is_retiring, policy.is_near_limit(1.0)) == (NO_LIMIT, False, True)
        policy.is_retired = True
        assert policy.is_retiring


@pytest.mark.parametrize(
    ("assigned", "served_s", "is_near_limit"),
    [(10, 1.0, False), (10, 0.1, True), (50, 1.0, True), (50, 3.0, False), (0, 0.0, False), (9, 0.001, False)],
)
def test_a_replacement_that_starts_slowly_is_needed_earlier(
    assigned: int, served_s: float, *, is_near_limit: bool
) -> None:
    """A start takes one second. After 10 of 100 tasks in one second, nine seconds are left; after 10 in a tenth of a second, less than one. Fewer than
    ten tasks say nothing.
    """
    assert RecyclePolicy(100, assigned, start_s=1.0).is_near_limit(served_s) is is_near_limit


def test_the_life_of_a_child_is_estimated_by_its_pace_until_it_is_worn_out() -> None:
    policy = RecyclePolicy(100, promoted_at=50.0)
    policy.add(9, 50.5)
    assert policy.life_s(51.0) == math.inf
    policy.add(11, 51.0)
    assert policy.life_s(52.0) == 10.0
    policy.add(80, 53.0)
    assert policy.life_s(99.0) == 3.0


@pytest.mark.parametrize(
    ("start_s", "life_s", "expected"),
    [
        (0.1, math.inf, 1),
        (0.1, 10.0, 1),
        (1.0, 4.0, 1),
        (1.0, 3.0, 2),  # four of them wear out in three seconds, so more than one in a second
        (1.0, 1.5, 3),
        (2.0, 0.1, 4),
        (2.0, 0.0, 4),
    ],
)
def test_there_is_one_spare_unless_children_wear_out_faster_than_they_start(
    start_s: float, life_s: float, expected: int
) -> None:
    assert most_spares([(start_s, life_s)] * 4, 4) == expected
