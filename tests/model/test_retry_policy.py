import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.model.error_codes import OperationalErrorCode, OutcomeCode
from horsies.model.errors import ConfigError
from horsies.model.retry_policy import MAX_DELAY_S, MAX_RETRIES, RetryPolicy

CRASHES = [OperationalErrorCode.WORKER_CRASHED]


def problems_of(make: Any, *args: Any, **values: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError, match="in RetryPolicy:") as caught:
        make(*args, **values)
    return caught.value.problems


def only_problem(make: Any, *args: Any, **values: Any) -> str:
    problems = problems_of(make, *args, **values)
    assert len(problems) == 1, problems
    return problems[0]


def exponential(**values: Any) -> RetryPolicy:
    given: dict[str, Any] = {"base_seconds": 1, "max_retries": 3, "auto_retry_for": CRASHES, **values}
    return RetryPolicy.exponential(**given)


# -- pauses


@pytest.mark.promise("T1")
def test_a_fixed_policy_has_one_retry_for_each_delay():
    policy = RetryPolicy.fixed([1, 5, 0.2], auto_retry_for=CRASHES)
    assert (policy.max_retries, policy.delays_ms, policy.jitter) == (3, (1_000, 5_000, 200), 0.0)


@pytest.mark.promise("T1")
def test_a_delay_may_be_zero():
    assert RetryPolicy.fixed([0], auto_retry_for=CRASHES).delays_ms == (0,)


@pytest.mark.promise("T1")
def test_exponential_delays_double_up_to_the_longest():
    policy = exponential(base_seconds=0.5, max_retries=6, max_delay_seconds=5)
    assert policy.delays_ms == (500, 1_000, 2_000, 4_000, 5_000, 5_000)
    assert policy.max_retries == 6


def test_exponential_delays_have_jitter_by_default():
    assert exponential().jitter == 0.25
    assert exponential(jitter=0).jitter == 0


@given(base=st.floats(0, MAX_DELAY_S), retries=st.integers(1, MAX_RETRIES), longest=st.floats(0, MAX_DELAY_S))
def test_exponential_delays_never_shrink_and_never_exceed_the_longest(base: float, retries: int, longest: float):
    policy = exponential(base_seconds=base, max_retries=retries, max_delay_seconds=longest)
    assert len(policy.delays_ms) == retries
    assert list(policy.delays_ms) == sorted(policy.delays_ms)
    assert all(0 <= delay <= math.ceil(longest * 1000) for delay in policy.delays_ms)


# -- for what


@pytest.mark.promise("T1")
def test_codes_and_exceptions_are_separated():
    policy = RetryPolicy.fixed(
        [1], auto_retry_for=["RATE_LIMITED", ConnectionError, OutcomeCode.TASK_TIMEOUT, TimeoutError]
    )
    assert policy.codes == ("RATE_LIMITED", "TASK_TIMEOUT")
    assert all(type(code) is str for code in policy.codes)  # the database knows no enums
    assert policy.exceptions == (ConnectionError, TimeoutError)


@pytest.mark.parametrize("nothing", [[], (), "TASK_TIMEOUT", None, ConnectionError])
def test_what_is_retried_must_be_listed(nothing: Any):
    for make in (lambda: RetryPolicy.fixed([1], auto_retry_for=nothing), lambda: exponential(auto_retry_for=nothing)):
        assert "auto_retry_for must list what is retried" in only_problem(make)


@pytest.mark.parametrize("item", ["rate limited", "rate_limited", "", 7, ConnectionError(), int, None])
def test_what_is_neither_a_code_nor_an_exception_is_refused(item: Any):
    assert "auto_retry_for has" in only_problem(RetryPolicy.fixed, [1], auto_retry_for=["GOOD", item])


# -- bad input


@pytest.mark.parametrize("delays", [[], [1] * (MAX_RETRIES + 1)], ids=["none", "too many"])
def test_the_number_of_delays_has_a_range(delays: list[float]):
    assert "give 1 to 1000" in only_problem(RetryPolicy.fixed, delays, auto_retry_for=CRASHES)


@pytest.mark.parametrize("delays", ["15", 5, None, {1, 2}])
def test_delays_must_be_a_list(delays: Any):
    assert "a list of seconds like [1, 5, 30]" in only_problem(RetryPolicy.fixed, delays, auto_retry_for=CRASHES)


@pytest.mark.parametrize("delay", [-1, MAX_DELAY_S + 1, math.nan, math.inf, "1", True, None])
def test_a_delay_is_a_number_of_seconds_in_its_range(delay: Any):
    assert only_problem(RetryPolicy.fixed, [1, delay], auto_retry_for=CRASHES).startswith("delays[1] is")
    assert only_problem(exponential, base_seconds=delay).startswith("base_seconds is")
    assert only_problem(exponential, max_delay_seconds=delay).startswith("max_delay_seconds is")


@pytest.mark.parametrize("count", [0, -1, MAX_RETRIES + 1, 1.5, "3", True])
def test_the_number_of_retries_has_a_range(count: Any):
    problem = only_problem(exponential, max_retries=count)
    assert problem.startswith("max_retries ")
    assert f"a whole number from 1 to {MAX_RETRIES}" in problem


@pytest.mark.parametrize("jitter", [-0.1, 1.1, math.nan, "0.5", True, None])
def test_jitter_is_a_fraction(jitter: Any):
    assert "jitter is" in only_problem(exponential, jitter=jitter)
    assert "jitter is" in only_problem(RetryPolicy.fixed, [1], auto_retry_for=CRASHES, jitter=jitter)


def test_all_problems_are_reported_together():
    problems = problems_of(
        exponential, base_seconds=-1, max_delay_seconds="x", max_retries=0, jitter=2, auto_retry_for=[]
    )
    assert [problem.split()[0] for problem in problems] == [
        "base_seconds",
        "max_delay_seconds",
        "max_retries",
        "jitter",
        "auto_retry_for",
    ]


def test_a_policy_cannot_be_changed():
    name = "jitter"
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(exponential(), name, 1)
