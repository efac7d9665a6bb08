"""Many tasks at a time in one child."""

import time
from pathlib import Path

import pytest

from horsies.executor.protocol import ANY
from tests.fixtures.pools import open_pool


@pytest.mark.promise("X1", "X2")
async def test_thousands_of_coroutines_sleep_at_the_same_time() -> None:
    async with open_pool(concurrency=3_000) as pump:
        started = time.monotonic()
        for _ in range(3_000):
            pump.send("nap", seconds=1.0)
        await pump.until(lambda: len(pump.ended) == 3_000)
        assert time.monotonic() - started < 4.0
        assert {done.status for done in pump.ended.values()} == {"COMPLETED"}
        assert len(set(pump.done_by.values())) == 1


@pytest.mark.promise("X2")
async def test_no_more_than_the_concurrency_run_at_once(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(concurrency=3, frame=10) as pump:  # ten at hand, three at once
        for number in range(10):
            pump.send("gate_async" if number % 2 else "gate", until=str(go))
        await pump.until(lambda: len(pump.begun) == 3)
        (member,) = pump.roster
        assert member.load == 10
        go.touch()
        await pump.until(lambda: len(pump.ended) == 10)
        assert pump.most_at_once == 3


@pytest.mark.promise("X1")
async def test_functions_run_on_threads_beside_the_coroutines(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(concurrency=4) as pump:
        held = [pump.send("gate_async", until=str(go)), pump.send("gate", until=str(go))]
        thread = await pump.value("run_loop")  # asyncio.run() works in it, while our own loop runs
        assert thread.startswith("horsies-task")
        go.touch()
        for task_id in held:
            assert (await pump.ending(task_id)).status == "COMPLETED"


@pytest.mark.promise("X3")
async def test_one_that_fails_leaves_the_others_alone(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(concurrency=10) as pump:
        others = [pump.send(name, until=str(go)) for name in ("gate", "gate_async")]
        for name in ("quick_raise", "no such task"):
            assert (await pump.ending(pump.send(name))).status == "FAILED"
        assert (await pump.ending(pump.send("nap", seconds="long"))).error_code == "WORKER_SERIALIZATION_ERROR"
        go.touch()
        for task_id in others:
            assert (await pump.ending(task_id)).status == "COMPLETED"


async def test_what_has_not_begun_can_be_recalled_from_a_crowd(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(concurrency=2, frame=5) as pump:
        ids = [pump.send("gate_async", until=str(go)) for _ in range(5)]
        await pump.until(lambda: len(pump.begun) == 2)
        (member,) = pump.roster
        pump.is_paused = True
        member.recall(ANY)
        assert not member.is_open
        await pump.until(lambda: len(pump.given_back) == 3)
        assert set(pump.given_back) == set(ids) - set(pump.begun)
        go.touch()
        await pump.until(lambda: len(pump.ended) == 2)
        assert member.is_open


@pytest.mark.promise("A8", "W9")
async def test_all_that_ran_in_a_crowd_dies_with_it(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(concurrency=3, frame=5) as pump:
        ids = [pump.send("gate_async", until=str(go)) for _ in range(2)]
        ids.append(pump.send("gate", until=str(go)))
        unbegun = [pump.send("gate_async", until=str(go)) for _ in range(2)]
        await pump.until(lambda: len(pump.begun) == 3)
        pump.is_paused = True
        pump.roster[0].kill()
        for task_id in ids:
            error = await pump.crash(task_id)
            assert error.error_code == "WORKER_CRASHED"
            assert "SIGKILL" in error.message
        assert pump.given_back == unbegun


async def test_an_abandoned_task_is_forgotten_and_its_child_replaced(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(concurrency=4) as pump:
        stuck, other = pump.send("sleep", seconds=600), pump.send("gate_async", until=str(go))
        member, ticket = await pump.beginning(stuck)
        await pump.beginning(other)
        member.condemn(ticket, "TASK_TIMEOUT", "it took too long")
        member.interrupt(ticket, "timeout")  # a thread cannot be woken from its sleep
        claim, verdict = member.abandon(ticket)
        assert (claim.id, verdict.error_code, verdict.message) == (stuck, "TASK_TIMEOUT", "it took too long")
        assert (member.load, member.is_open, member.is_retiring) == (1, False, True)
        fresh = await pump.value("whoami")  # a spare takes over what the old one leaves free
        assert fresh != member.pid
        assert member in pump.roster  # which has not left: something runs in it
        go.touch()
        assert (await pump.ending(other)).status == "COMPLETED"
        await pump.until(lambda: member not in pump.roster)
        assert stuck not in pump.ended
        assert stuck not in pump.crashed


async def test_the_late_end_of_an_abandoned_task_is_not_heard(tmp_path: Path) -> None:
    late, go = tmp_path / "late", tmp_path / "go"
    async with open_pool(concurrency=4) as pump:
        slow, other = pump.send("gate", until=str(late)), pump.send("gate_async", until=str(go))
        member, ticket = await pump.beginning(slow)
        await pump.beginning(other)
        member.abandon(ticket)
        late.touch()
        go.touch()
        assert (await pump.ending(other)).status == "COMPLETED"
        await pump.until(lambda: member not in pump.roster)
        assert slow not in pump.ended
