"""What a child says of an ending that only it can know."""

import pytest

from tests.fixtures.pools import open_pool


@pytest.mark.promise("T1")
@pytest.mark.parametrize(("kind", "wanted"), [("refused", True), ("value", False)])
async def test_a_raised_exception_that_the_policy_lists_wants_a_retry(kind: str, wanted: bool) -> None:  # noqa: FBT001 - a case
    async with open_pool() as pump:
        done = await pump.ending(pump.send("raise_for_retry", kind=kind))
        assert (done.status, done.error_code, done.wants_retry) == ("FAILED", "UNHANDLED_ERROR", wanted)


async def test_an_error_may_say_when_to_try_again() -> None:
    async with open_pool() as pump:
        done = await pump.ending(pump.send("ask_for_later"))
        assert (done.error_code, done.retry_after_ms, done.wants_retry) == ("BUSY", 1_500, False)


async def test_a_good_ending_says_nothing_of_retries() -> None:
    async with open_pool() as pump:
        done = await pump.ending(pump.send("quick"))
        assert (done.result, done.wants_retry, done.retry_after_ms, done.leaving) == ("1", False, None, False)
