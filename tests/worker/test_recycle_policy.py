"""When a child has served long enough."""

import pytest

from horsies.worker.child import RecyclePolicy


@pytest.mark.parametrize(("budget", "aged_at"), [(2, 1), (3, 2), (5, 4), (10, 8), (100, 80)])
def test_a_replacement_is_wanted_before_the_last_task(budget: int, aged_at: int) -> None:
    ages = [RecyclePolicy(budget, given) for given in range(budget + 1)]
    assert [age.is_aged(1.0) for age in ages] == [age.given >= aged_at for age in ages]
    assert [age.is_retiring for age in ages] == [age.given == budget for age in ages]


def test_without_a_budget_nobody_grows_old() -> None:
    age = RecyclePolicy(None, given=1_000_000)
    assert (age.left, age.is_aged(1.0), age.is_retiring) == (None, False, False)


def test_one_that_is_too_big_retires_at_once() -> None:
    age = RecyclePolicy(100, given=1, is_too_big=True)
    assert age.is_aged(1.0)
    assert age.is_retiring


def test_one_that_was_reprieved_works_on_and_is_still_to_be_replaced() -> None:
    for age in (RecyclePolicy(5, given=5, is_reprieved=True), RecyclePolicy(None, is_too_big=True, is_reprieved=True)):
        assert (age.left, age.is_retiring, age.is_aged(1.0)) == (None, False, True)
        age.is_retired = True
        assert age.is_retiring


@pytest.mark.parametrize(
    ("given", "served_s", "is_aged"),
    [(10, 1.0, False), (10, 0.1, True), (50, 1.0, True), (50, 3.0, False), (0, 0.0, False), (9, 0.001, False)],
)
def test_a_replacement_that_takes_long_to_start_is_wanted_earlier(
    given: int, served_s: float, *, is_aged: bool
) -> None:
    """It takes a second to start. After 10 of 100 tasks in a second there are nine seconds left; in a tenth of one, not even one.
    Fewer than ten tell nothing.
    """
    assert RecyclePolicy(100, given, start_s=1.0).is_aged(served_s) is is_aged
