"""The parts of an ending that only the child can determine: error codes, retries, sizes."""

import pytest

from tests.fixtures.pools import open_pool

MAPPED = "tests.apps.mapped:app"


@pytest.mark.promise("T1")
@pytest.mark.parametrize(("kind", "wanted"), [("refused", True), ("value", False)])
async def test_a_raised_exception_that_the_policy_lists_wants_a_retry(kind: str, wanted: bool) -> None:  # noqa: FBT001 - a case
    async with open_pool() as dispatcher:
        done = await dispatcher.ending(dispatcher.send("raise_for_retry", kind=kind))
        assert (done.status, done.error_code, done.wants_retry) == ("FAILED", "UNHANDLED_ERROR", wanted)


async def test_an_exception_has_the_code_of_its_nearest_class_by_the_task_then_by_the_app() -> None:
    cases = {
        ("raise_it", "refused"): "DOWN",
        ("raise_it", "missing"): "SYSTEM",
        ("raise_it", "value"): "BUG",
        ("raise_it", "group"): "DOWN",
        ("raise_mapped", "missing"): "GONE",
        ("raise_mapped", "refused"): "DOWN",
        ("raise_mapped", "value"): "BUG",
        ("raise_default", "value"): "OWN_BUG",
        ("raise_default", "refused"): "DOWN",
    }
    async with open_pool(MAPPED) as dispatcher:
        errors = {(name, what): await dispatcher.error(dispatcher.send(name, what=what)) for name, what in cases}
        assert {case: error["error_code"] for case, error in errors.items()} == cases
        assert all("traceback" in error["data"] for error in errors.values())


@pytest.mark.promise("T1")
async def test_a_group_wants_a_retry_when_the_policy_lists_all_that_is_in_it() -> None:
    async with open_pool(MAPPED) as dispatcher:
        endings = [
            await dispatcher.ending(dispatcher.send("raise_listed", what=what))
            for what in ("refused", "group", "mixed")
        ]
        assert [done.wants_retry for done in endings] == [True, True, False]


@pytest.mark.promise("W8")
async def test_a_result_that_is_too_big_is_a_serialization_error_with_the_limit() -> None:
    async with open_pool(MAPPED) as dispatcher:
        assert await dispatcher.value("repeat", text="x", times=1_998) == "x" * 1_998
        error = await dispatcher.error(dispatcher.send("repeat", text="x", times=1_999))
        assert error["error_code"] == "WORKER_SERIALIZATION_ERROR"
        assert error["message"].startswith("task repeat: the result cannot be stored: as JSON it has 2,001 bytes")


async def test_an_error_that_is_too_big_is_cut_and_keeps_its_code() -> None:
    async with open_pool(MAPPED) as dispatcher:
        done = await dispatcher.ending(dispatcher.send("decline", length=5_000))
        assert done.error is not None
        assert len(done.error) <= 2_000
        assert done.error_code == "DECLINED"
        assert '"truncated"' in done.error
        error = await dispatcher.error(dispatcher.send("raise_words", length=10_000_000))
        assert error["error_code"] == "BUG"
        assert error["message"].startswith("ValueError: www")
        assert len(error["message"]) < 100_000
        assert "raise_words" in error["data"]["traceback"]  # its beginning is kept


async def test_an_error_may_set_the_delay_of_the_retry() -> None:
    async with open_pool() as dispatcher:
        done = await dispatcher.ending(dispatcher.send("ask_for_later"))
        assert (done.error_code, done.retry_after_ms, done.wants_retry) == ("BUSY", 1_500, False)


async def test_a_completed_task_reports_no_retry() -> None:
    async with open_pool() as dispatcher:
        done = await dispatcher.ending(dispatcher.send("quick"))
        assert (done.result, done.wants_retry, done.retry_after_ms, done.leaving) == ("1", False, None, False)
