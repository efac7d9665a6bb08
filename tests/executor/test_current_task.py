"""`current_task()` inside and outside of tasks, and progress reports."""

import math
import time
from pathlib import Path
from typing import Any

import pytest

from horsies.model.errors import HorsiesError
from horsies.tasks.current_task import MAX_MESSAGE, current_task
from tests.fixtures.pools import open_pool

RUNNERS = pytest.mark.parametrize("concurrency", [1, 10], ids=["sequential", "concurrent"])


def test_outside_of_a_task_there_is_no_current_one() -> None:
    with pytest.raises(HorsiesError, match="called outside a task"):
        current_task()


@RUNNERS
async def test_a_task_knows_itself(concurrency: int) -> None:
    async with open_pool(concurrency=concurrency) as dispatcher:
        task_id = dispatcher.send("myself", timeout_ms=90_000)
        assert (await dispatcher.ending(task_id)).result == f'["{task_id}","myself","media",1,90,"UTC",false]'


@RUNNERS
async def test_without_a_time_out_there_is_no_deadline(concurrency: int) -> None:
    async with open_pool(concurrency=concurrency) as dispatcher:
        assert (await dispatcher.value("myself"))[4:6] == [None, "None"]


@RUNNERS
@pytest.mark.parametrize("name", ["myself_async", "myself_thread"])
async def test_threads_and_coroutines_of_a_task_know_it_too(concurrency: int, name: str) -> None:
    async with open_pool(concurrency=concurrency) as dispatcher:
        reports = await dispatcher.value(name)
        for words in reports if name == "myself_async" else [reports]:
            assert words[:2] == ["task-1", name]


@RUNNERS
async def test_a_task_does_not_see_the_context_of_the_one_before(concurrency: int) -> None:
    async with open_pool(concurrency=concurrency) as dispatcher:
        assert [await dispatcher.value("leave_a_mark", value=number) for number in (1, 2, 3)] == [0, 0, 0]


@RUNNERS
async def test_few_of_many_reports_are_sent_including_the_last(concurrency: int) -> None:
    async with open_pool(concurrency=concurrency) as dispatcher:
        started = time.monotonic()
        task_id = dispatcher.send("report", count=2_000)
        await dispatcher.ending(task_id)
        reports = dispatcher.progress[task_id]
        assert reports[-1] == (1.0, "step 2000")
        assert len(reports) <= 2 + (time.monotonic() - started)


async def test_a_throttled_report_is_sent_later_even_if_no_other_follows(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool() as dispatcher:
        task_id = dispatcher.send("report_and_wait", until=str(go))
        await dispatcher.until(lambda: (0.2, "and now it takes long") in dispatcher.progress.get(task_id, []))
        assert task_id not in dispatcher.ended
        go.touch()
        await dispatcher.ending(task_id)


@pytest.mark.parametrize(
    ("fraction", "message", "expected"),
    [
        (1.5, None, "from 0 to 1"),
        (-0.1, None, "from 0 to 1"),
        (True, None, "from 0 to 1"),
        ("half", None, "from 0 to 1"),
        (0.5, 7, "must be text"),
        (None, "no idea", "taken"),
        (0, "begun", "taken"),
    ],
)
async def test_a_report_is_checked(fraction: Any, message: Any, expected: str) -> None:
    async with open_pool() as dispatcher:
        assert expected in await dispatcher.value("report_nonsense", fraction=fraction, message=message)


def test_nan_is_not_a_valid_progress() -> None:
    from horsies.tasks.current_task import CurrentTask  # noqa: PLC0415 - only here

    reports: list[tuple[float | None, str | None]] = []
    task = CurrentTask(
        task_id="id",
        task_name="name",
        queue_name="queue",
        attempt=1,
        deadline=None,
        until=None,
        is_cancelled=lambda: False,
        report=lambda fraction, message: reports.append((fraction, message)),
    )
    with pytest.raises(ValueError, match="from 0 to 1"):
        task.progress(math.nan)
    task.progress(1, "x" * 5_000 + "\x00")
    task.progress(0.5, "nul \x00 and half a pair \ud800")
    assert reports == [(1.0, "x" * MAX_MESSAGE), (0.5, "nul � and half a pair ?")]
