"""Children that reach their limits are replaced, each on its own, and there are always enough of them."""

import asyncio
import itertools
import logging
import re
import time
from collections import Counter
from pathlib import Path

import pytest

from horsies.worker.supervisor import ChildRefused, PoolTimings
from tests.fixtures.pools import FakeDispatcher, open_pool


def lowest_count_of_warm_children(dispatcher: FakeDispatcher) -> list[int]:
    """Return a list that gets the number of warm children at every report of a child."""
    seen: list[int] = []
    dispatcher.watchers.append(lambda: seen.append(len(dispatcher.warm())))
    return seen


def most_processes(dispatcher: FakeDispatcher) -> list[int]:
    seen: list[int] = []
    dispatcher.watchers.append(lambda: seen.append(len(dispatcher.children)))
    return seen


# -- by count


@pytest.mark.promise("C2", "C3", "C4")
async def test_a_child_is_replaced_after_its_tasks_and_never_runs_more() -> None:
    async with open_pool(processes=2, max_tasks=5) as dispatcher:
        first = {child.pid for child in dispatcher.children}
        ids = [dispatcher.send("whoami") for _ in range(40)]
        await dispatcher.until(lambda: len(dispatcher.ended) == 40)
        served = Counter(dispatcher.done_by[task_id] for task_id in ids)
        assert sorted(served[pid] for pid in first) == [
            5,
            7,
        ]  # the second one of the first children has a larger budget
        assert max(count for pid, count in served.items() if pid not in first) == 5
        assert len(served) >= 7
        assert dispatcher.crashed == {}


@pytest.mark.promise("C2", "C3")
async def test_replacing_every_two_tasks_under_load_never_leaves_fewer_warm_children() -> None:
    async with open_pool(processes=2, max_tasks=2) as dispatcher:
        warm, processes = lowest_count_of_warm_children(dispatcher), most_processes(dispatcher)
        for _ in range(24):
            dispatcher.send("sleep", seconds=0.01)
        await dispatcher.until(lambda: len(dispatcher.ended) == 24)
        assert min(warm) >= 2
        assert max(processes) <= 4  # never more spares than children
        assert dispatcher.most_at_once <= 2
        assert sorted(Counter(dispatcher.done_by.values()).values())[-2:] == [2, 3]  # 3: one of the first children


@pytest.mark.promise("C2", "C3")
async def test_several_children_are_replaced_at_once_if_they_wear_out_faster_than_they_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_pool(processes=2, max_tasks=2, env={"PACES_IMPORT": "slow"}) as dispatcher:
        warm, processes = lowest_count_of_warm_children(dispatcher), most_processes(dispatcher)
        for _ in range(17):
            dispatcher.send("quick")
        await dispatcher.until(lambda: len(dispatcher.ended) == 17)
        assert min(warm) >= 2
        assert max(processes) == 4
        assert dispatcher.most_at_once <= 2
        assert max(Counter(dispatcher.done_by.values()).values()) <= 3
        (warning,) = (one.getMessage() for one in caplog.records if "recycling takes" in one.getMessage())
        assert re.fullmatch(
            r"recycling takes \d{2,3} % of the time of the children: one takes [\d.]+ s to start and reaches its limits after "
            r"[\d.]+ s; use --start-method fork, or --max-tasks-per-child \d+ or more, or import less",
            warning,
        )


@pytest.mark.promise("C3")
async def test_children_with_equal_loads_are_not_replaced_together() -> None:
    async with open_pool(processes=4, max_tasks=100) as dispatcher:
        assert sorted(child.budget_left for child in dispatcher.children) == [100, 125, 150, 175]
    async with open_pool(processes=3, max_tasks=2) as dispatcher:
        assert sorted(child.budget_left for child in dispatcher.children) == [2, 2, 3]


@pytest.mark.promise("C3")
async def test_the_replacement_is_started_ahead_of_time_and_waits() -> None:
    async with open_pool(processes=1, max_tasks=10) as dispatcher:
        (old,) = dispatcher.children
        assert not old.recycling.is_near_limit(time.monotonic())
        for _ in range(8):
            await dispatcher.value("quick")
        spare = await dispatcher.until(
            lambda: next((m for m in dispatcher.warm() if m is not old), None), "a spare is warm"
        )
        assert not spare.budget_left  # it has no slot yet
        assert old.budget_left
        assert await dispatcher.value("whoami") == old.pid
        assert await dispatcher.value("whoami") == old.pid  # its tenth and last
        assert await dispatcher.value("whoami") == spare.pid
        await dispatcher.until(lambda: old not in dispatcher.children)


async def test_an_old_child_finishes_what_it_does_while_others_are_replaced(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(processes=2, max_tasks=2) as dispatcher:
        dispatcher.send("quick")
        await dispatcher.until(lambda: len(dispatcher.ended) == 1)
        slow = dispatcher.send("gate", until=str(go))
        child, _assignment_no = await dispatcher.beginning(slow)
        ids = [dispatcher.send("quick") for _ in range(12)]
        await dispatcher.until(lambda: all(task_id in dispatcher.ended for task_id in ids))
        assert child in dispatcher.children
        assert dispatcher.most_at_once <= 2
        go.touch()
        assert (await dispatcher.ending(slow)).status == "COMPLETED"


@pytest.mark.promise("C2", "X4")
async def test_a_child_with_concurrency_is_replaced_after_its_tasks_too(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(processes=1, concurrency=4, max_tasks=4) as dispatcher:
        held = [dispatcher.send("gate_async", until=str(go)) for _ in range(2)]
        for _ in range(2):
            await dispatcher.value("quick")
        (old,) = (child for child in dispatcher.children if child.load)
        assert old.recycling.is_retiring
        # Two tasks still run in it; the spare fills the two slots that it has left, and no more.
        fresh = [dispatcher.send("gate_async", until=str(go)) for _ in range(3)]
        await dispatcher.until(lambda: len(dispatcher.begun) == 6)
        spare = dispatcher.begun[fresh[0]][0]
        assert (spare.load, spare.budget_left) == (2, 0)
        assert dispatcher.most_at_once <= 4
        go.touch()
        for task_id in (*held, *fresh):
            assert (await dispatcher.ending(task_id)).status == "COMPLETED"
        await dispatcher.until(lambda: old not in dispatcher.children)
        assert dispatcher.most_at_once <= 4


async def test_a_replacement_uses_its_whole_budget_beside_a_task_that_does_not_end(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(processes=1, concurrency=4, max_tasks=4) as dispatcher:
        held = dispatcher.send("gate_async", until=str(go))
        old, _assignment_no = await dispatcher.beginning(held)
        for _ in range(3):
            await dispatcher.value("quick")
        assert old.recycling.is_retiring
        replacements = {await dispatcher.value("whoami") for _ in range(4)}
        assert len(replacements) == 1
        assert old.pid not in replacements
        go.touch()
        assert (await dispatcher.ending(held)).status == "COMPLETED"


async def test_children_that_do_not_finish_do_not_hold_up_the_others(tmp_path: Path) -> None:
    """The old child has one task that does not end. Its replacement wears out, too, and continues, because there is memory for one spare only."""
    go = tmp_path / "go"
    async with open_pool(processes=1, concurrency=4, max_tasks=4) as dispatcher:
        held = dispatcher.send("gate_async", until=str(go))
        ids = [dispatcher.send("quick") for _ in range(20)]
        await dispatcher.until(lambda: all(task_id in dispatcher.ended for task_id in ids))
        assert len(dispatcher.children) == 2
        assert dispatcher.most_at_once <= 4
        go.touch()
        assert (await dispatcher.ending(held)).status == "COMPLETED"
        await dispatcher.until(lambda: dispatcher.begun[held][0] not in dispatcher.children)
        assert dispatcher.crashed == {}


# -- by memory


async def baseline_mb() -> float:
    async with open_pool(max_tasks=100) as dispatcher:
        return dispatcher.children[0].rss_mb


@pytest.mark.promise("C5", "C7")
async def test_a_child_that_has_grown_too_big_sends_its_result_and_is_replaced() -> None:
    limit_mb = await baseline_mb() + 60
    async with open_pool(processes=2, max_memory_mb=limit_mb) as dispatcher:
        warm = lowest_count_of_warm_children(dispatcher)
        before = {child.pid for child in dispatcher.children}
        big = await dispatcher.value("grow", mb=80)
        await dispatcher.until(lambda: big not in {child.pid for child in dispatcher.children}, "the big one has left")
        after = {child.pid for child in dispatcher.children}
        assert before - after == {big}
        assert len(dispatcher.open_children()) == 2
        assert dispatcher.crashed == {}
        assert min(warm) >= 2


@pytest.mark.promise("C5")
async def test_a_child_below_the_limit_stays() -> None:
    limit_mb = await baseline_mb() + 200
    async with open_pool(max_memory_mb=limit_mb) as dispatcher:
        pids = {await dispatcher.value("grow", mb=5) for _ in range(5)}
        assert len(pids) == 1


@pytest.mark.promise("C5")
async def test_tasks_that_wait_behind_the_one_above_the_memory_limit_are_returned() -> None:
    limit_mb = await baseline_mb() + 60
    async with open_pool(max_memory_mb=limit_mb, prefetch=5) as dispatcher:
        dispatcher.is_paused = True
        big, *others = [dispatcher.send("grow", mb=80)] + [dispatcher.send("whoami") for _ in range(4)]
        dispatcher.is_paused = False
        dispatcher.assign_waiting()
        await dispatcher.until(lambda: len(dispatcher.ended) == 5)
        assert dispatcher.ended[big].leaving
        assert dispatcher.returned == others
        assert dispatcher.done_by[big] not in {dispatcher.done_by[task_id] for task_id in others}


@pytest.mark.promise("C7")
async def test_either_limit_replaces_a_child() -> None:
    limit_mb = await baseline_mb() + 60
    async with open_pool(max_tasks=3, max_memory_mb=limit_mb) as dispatcher:
        assert len({await dispatcher.value("whoami") for _ in range(9)}) == 3
        big = await dispatcher.value("grow", mb=80)
        assert await dispatcher.value("whoami") != big


@pytest.mark.promise("C6")
async def test_a_limit_below_the_baseline_is_refused_with_both_numbers() -> None:
    expected = r"a child takes \d+ MB before its first task, .*max-memory-per-child-mb=5 "
    with pytest.RaisesGroup(pytest.RaisesExc(ChildRefused, match=expected)):
        async with open_pool(processes=2, max_memory_mb=5):
            pytest.fail("it has started")


@pytest.mark.promise("C6")
async def test_a_baseline_close_to_the_limit_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    limit_mb = await baseline_mb() * 1.15
    with caplog.at_level(logging.WARNING, "horsies.worker"):
        async with open_pool(max_memory_mb=limit_mb):
            assert "more than 80 %" in caplog.text


@pytest.mark.promise("C6")
async def test_a_baseline_below_80_percent_of_the_limit_logs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    limit_mb = await baseline_mb() * 1.4
    with caplog.at_level(logging.WARNING, "horsies.worker"):
        async with open_pool(max_memory_mb=limit_mb):
            assert caplog.records == []


@pytest.mark.promise("C6")
async def test_garbage_of_the_start_does_not_count_as_baseline() -> None:
    """The app leaves 60 MB of garbage that only a full collection frees: with it, the child would be above the limit."""
    limit_mb = await baseline_mb() + 40
    async with open_pool(max_memory_mb=limit_mb, env={"PACES_GARBAGE_MB": "60"}) as dispatcher:
        (child,) = dispatcher.children
        assert child.rss_mb < limit_mb


# -- when no replacement can be started


SHORT_PAUSE = PoolTimings(pause_s=0.05)


async def test_when_no_replacement_starts_the_old_child_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "broken"
    env = {"PACES_HOOK": "file", "PACES_FILE": str(broken)}
    async with open_pool(max_tasks=2, env=env, timings=SHORT_PAUSE) as dispatcher:
        old = await dispatcher.value("whoami")
        broken.touch()
        assert {await dispatcher.value("whoami") for _ in range(6)} == {old}
        assert "a replacement child did not start" in caplog.text
        assert "the file is there" in caplog.text
        assert f"child {old} continues beyond its limits" in caplog.text
        broken.unlink()
        fresh = await dispatcher.until(
            lambda: next((m.pid for m in dispatcher.warm() if m.pid != old), None), "a spare is warm"
        )
        await dispatcher.until(lambda: old not in {child.pid for child in dispatcher.children})
        assert await dispatcher.value("whoami") == fresh


async def test_when_no_replacement_starts_a_big_child_continues_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken, limit_mb = tmp_path / "broken", await baseline_mb() + 60
    env = {"PACES_HOOK": "file", "PACES_FILE": str(broken)}
    async with open_pool(max_memory_mb=limit_mb, env=env, timings=SHORT_PAUSE) as dispatcher:
        broken.touch()
        old = await dispatcher.value("grow", mb=80)
        assert await dispatcher.value("whoami") == old
        broken.unlink()
        await dispatcher.until(lambda: old not in {child.pid for child in dispatcher.children})
        assert await dispatcher.value("whoami") != old


async def test_the_pauses_between_attempts_to_start_a_replacement_grow(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    async with open_pool(max_tasks=2, env={"PACES_HOOK": "file", "PACES_FILE": str(broken)}) as dispatcher:
        broken.touch()
        await dispatcher.value("quick")
        async with asyncio.timeout(20):
            while "the next try is in 2 s" not in caplog.text:
                await dispatcher.value("sleep", seconds=0.05)
        pauses = [float(pause) for pause in re.findall(r"the next try is in (\S+) s", caplog.text)]
        assert all(second == 2 * first for first, second in itertools.pairwise(pauses))
