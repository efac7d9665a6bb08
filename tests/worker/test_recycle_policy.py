"""When a child is replaced."""

import pytest

from horsies.worker.child import RecyclePolicy


@pytest.mark.parametrize(("budget", "near_at"), [(2, 1), (3, 2), (5, 4), (10, 8), (100, 80)])
def test_a_replacement_is_needed_before_the_last_task(budget: int, near_at: int) -> None:
    policies = [RecyclePolicy(budget, assigned) for assigned in range(budget + 1)]
    assert [policy.is_near_limit(1.0) for policy in policies] == [policy.assigned >= near_at for policy in policies]
    assert [policy.is_retiring for policy in policies] == [policy.assigned == budget for policy in policies]


def test_without_a_budget_a_child_is_never_replaced() -> None:
    policy = RecyclePolicy(None, assigned=1_000_000)
    assert (policy.left, policy.is_near_limit(1.0), policy.is_retiring) == (None, False, False)


def test_a_child_that_is_too_big_retires_at_once() -> None:
    policy = RecyclePolicy(100, assigned=1, is_too_big=True)
    assert policy.is_near_limit(1.0)
    assert policy.is_retiring


def test_a_child_that_was_extended_continues_and_still_needs_a_replacement() -> None:
    for policy in (
        RecyclePolicy(5, assigned=5, is_extended=True),
        RecyclePolicy(None, is_too_big=True, is_extended=True),
    ):
        assert (policy.left, policy.is_retiring, policy.is_near_limit(1.0)) == (None, False, True)
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
