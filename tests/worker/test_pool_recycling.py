"""Children that have served long enough are replaced one by one, and somebody is always there to work."""

import asyncio
import itertools
import logging
import re
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from horsies.worker import supervisor as pool_module
from horsies.worker.supervisor import ChildRefused
from tests.fixtures.pools import Pump, open_pool


def lowest_count_of_warm_children(pump: Pump) -> list[int]:
    """Filled from now on, with every report of every child."""
    seen: list[int] = []
    pump.watchers.append(lambda: seen.append(len(pump.warm())))
    return seen


def most_processes(pump: Pump) -> list[int]:
    seen: list[int] = []
    pump.watchers.append(lambda: seen.append(len(pump.roster)))
    return seen


# -- by count


@pytest.mark.promise("C2", "C3", "C4")
async def test_a_child_is_replaced_after_its_tasks_and_never_runs_more() -> None:
    async with open_pool(processes=2, max_tasks=5) as pump:
        first = {member.pid for member in pump.roster}
        ids = [pump.send("whoami") for _ in range(40)]
        await pump.until(lambda: len(pump.ended) == 40)
        served = Counter(pump.done_by[task_id] for task_id in ids)
        assert max(served.values()) <= 5
        assert len(served) >= 8
        assert pump.crashed == {}
        assert first < set(served) | first


@pytest.mark.promise("C2", "C3")
async def test_replacing_every_two_tasks_under_load_never_leaves_fewer_warm_children() -> None:
    async with open_pool(processes=2, max_tasks=2) as pump:
        warm, processes = lowest_count_of_warm_children(pump), most_processes(pump)
        for _ in range(24):
            pump.send("sleep", seconds=0.01)
        await pump.until(lambda: len(pump.ended) == 24)
        assert min(warm) >= 2
        assert max(processes) <= 3  # one spare, no more
        assert pump.most_at_once <= 2
        assert max(Counter(pump.done_by.values()).values()) == 2


@pytest.mark.promise("C3")
async def test_children_with_equal_loads_do_not_grow_old_together() -> None:
    async with open_pool(processes=4, max_tasks=100) as pump:
        assert sorted(member.budget_left or 0 for member in pump.roster) == [25, 50, 75, 100]
    async with open_pool(processes=3, max_tasks=2) as pump:
        assert [member.budget_left for member in pump.roster] == [2, 2, 2]


@pytest.mark.promise("C3")
async def test_the_replacement_is_started_ahead_of_time_and_waits() -> None:
    async with open_pool(processes=1, max_tasks=10) as pump:
        (old,) = pump.roster
        assert not old.is_aged
        for _ in range(8):
            await pump.value("quick")
        spare = await pump.until(lambda: next((m for m in pump.warm() if m is not old), None), "a spare is warm")
        assert not spare.is_open  # it has no place yet
        assert old.is_open
        assert await pump.value("whoami") == old.pid
        assert await pump.value("whoami") == old.pid  # its tenth and last
        assert await pump.value("whoami") == spare.pid
        await pump.until(lambda: old not in pump.roster)


async def test_an_old_child_finishes_what_it_does_while_others_are_replaced(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(processes=2, max_tasks=2) as pump:
        pump.send("quick")
        await pump.until(lambda: len(pump.ended) == 1)
        slow = pump.send("gate", until=str(go))
        member, _ticket = await pump.beginning(slow)
        ids = [pump.send("quick") for _ in range(12)]
        await pump.until(lambda: all(task_id in pump.ended for task_id in ids))
        assert member in pump.roster
        assert pump.most_at_once <= 2
        go.touch()
        assert (await pump.ending(slow)).status == "COMPLETED"


@pytest.mark.promise("C2", "X4")
async def test_a_crowd_is_replaced_after_its_tasks_too(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(processes=1, concurrency=4, max_tasks=4) as pump:
        held = [pump.send("gate_async", until=str(go)) for _ in range(2)]
        for _ in range(2):
            await pump.value("quick")
        (old,) = (member for member in pump.roster if member.load)
        assert old.is_retiring
        # Two still run in it; the spare does the work of the two places that it has left, and no more.
        fresh = [pump.send("gate_async", until=str(go)) for _ in range(3)]
        await pump.until(lambda: len(pump.begun) == 6)
        spare = pump.begun[fresh[0]][0]
        assert (spare.load, spare.is_open) == (2, False)
        assert pump.most_at_once <= 4
        go.touch()
        for task_id in (*held, *fresh):
            assert (await pump.ending(task_id)).status == "COMPLETED"
        await pump.until(lambda: old not in pump.roster)
        assert pump.most_at_once <= 4


# -- by memory


async def baseline_mb() -> float:
    async with open_pool(max_tasks=100) as pump:
        return pump.roster[0].rss_mb


@pytest.mark.promise("C5", "C7")
async def test_a_child_that_has_grown_too_big_sends_its_result_and_is_replaced() -> None:
    limit_mb = await baseline_mb() + 60
    async with open_pool(processes=2, max_memory_mb=limit_mb) as pump:
        warm = lowest_count_of_warm_children(pump)
        before = {member.pid for member in pump.roster}
        big = await pump.value("grow", mb=80)
        await pump.until(lambda: big not in {member.pid for member in pump.roster}, "the big one has left")
        after = {member.pid for member in pump.roster}
        assert before - after == {big}
        assert len(pump.open_members()) == 2
        assert pump.crashed == {}
        assert min(warm) >= 2


@pytest.mark.promise("C5")
async def test_a_child_below_the_limit_stays() -> None:
    limit_mb = await baseline_mb() + 200
    async with open_pool(max_memory_mb=limit_mb) as pump:
        pids = {await pump.value("grow", mb=5) for _ in range(5)}
        assert len(pids) == 1


@pytest.mark.promise("C5")
async def test_what_waits_behind_the_task_that_was_too_much_goes_back() -> None:
    limit_mb = await baseline_mb() + 60
    async with open_pool(max_memory_mb=limit_mb, frame=5) as pump:
        pump.is_paused = True
        big, *others = [pump.send("grow", mb=80)] + [pump.send("whoami") for _ in range(4)]
        pump.is_paused = False
        pump.hand_out()
        await pump.until(lambda: len(pump.ended) == 5)
        assert pump.ended[big].leaving
        assert pump.given_back == others
        assert pump.done_by[big] not in {pump.done_by[task_id] for task_id in others}


@pytest.mark.promise("C7")
async def test_either_limit_replaces_a_child() -> None:
    limit_mb = await baseline_mb() + 60
    async with open_pool(max_tasks=3, max_memory_mb=limit_mb) as pump:
        assert len({await pump.value("whoami") for _ in range(9)}) == 3
        big = await pump.value("grow", mb=80)
        assert await pump.value("whoami") != big


@pytest.mark.promise("C6")
async def test_a_limit_below_the_baseline_is_refused_with_both_numbers() -> None:
    expected = r"a child takes \d+ MB before its first task, .*max-memory-per-child-mb=5 "
    with pytest.RaisesGroup(pytest.RaisesExc(ChildRefused, match=expected)):
        async with open_pool(processes=2, max_memory_mb=5):
            pytest.fail("it has started")


@pytest.mark.promise("C6")
async def test_a_baseline_close_to_the_limit_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    limit_mb = await baseline_mb() * 1.15
    with caplog.at_level(logging.WARNING, "horsies.worker"):
        async with open_pool(max_memory_mb=limit_mb):
            assert "more than 80 %" in caplog.text


@pytest.mark.promise("C4", "C5")
@pytest.mark.parametrize("limits", [{"max_tasks": 10}, {"max_memory_mb": 500}])
async def test_with_a_limit_children_are_fresh_interpreters(limits: dict[str, Any]) -> None:
    async with open_pool(processes=2, **limits) as pump:
        ids = [pump.send("about_process") for _ in range(2)]
        parents = {(await pump.ending(task_id)).result for task_id in ids}
        assert all(f'"parent":{psutil.Process().pid}' in (about or "") for about in parents)


# -- when there is nobody to take over


@pytest.fixture
def quick_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "FIRST_PAUSE_S", 0.05)


async def test_when_no_replacement_starts_the_old_child_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, quick_tries: None
) -> None:
    trouble = tmp_path / "trouble"
    async with open_pool(max_tasks=2, env={"PACES_HOOK": "file", "PACES_FILE": str(trouble)}) as pump:
        old = await pump.value("whoami")
        trouble.touch()
        assert {await pump.value("whoami") for _ in range(6)} == {old}
        assert "a replacement child did not start" in caplog.text
        assert "the file is there" in caplog.text
        assert f"child {old} goes on beyond its limits" in caplog.text
        trouble.unlink()
        fresh = await pump.until(lambda: next((m.pid for m in pump.warm() if m.pid != old), None), "a spare is warm")
        await pump.until(lambda: old not in {member.pid for member in pump.roster})
        assert await pump.value("whoami") == fresh


async def test_when_no_replacement_starts_a_big_child_goes_on_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, quick_tries: None
) -> None:
    trouble, limit_mb = tmp_path / "trouble", await baseline_mb() + 60
    env = {"PACES_HOOK": "file", "PACES_FILE": str(trouble)}
    async with open_pool(max_memory_mb=limit_mb, env=env) as pump:
        trouble.touch()
        old = await pump.value("grow", mb=80)
        assert await pump.value("whoami") == old
        trouble.unlink()
        await pump.until(lambda: old not in {member.pid for member in pump.roster})
        assert await pump.value("whoami") != old


async def test_tries_to_start_a_replacement_grow_rarer(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    trouble = tmp_path / "trouble"
    async with open_pool(max_tasks=2, env={"PACES_HOOK": "file", "PACES_FILE": str(trouble)}) as pump:
        trouble.touch()
        await pump.value("quick")
        async with asyncio.timeout(20):
            while "the next try is in 2 s" not in caplog.text:
                await pump.value("sleep", seconds=0.05)
        pauses = [float(pause) for pause in re.findall(r"the next try is in (\S+) s", caplog.text)]
        assert all(second == 2 * first for first, second in itertools.pairwise(pauses))
