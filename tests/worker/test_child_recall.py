"""A member gives back what has not begun, and takes new work again when it can."""

from pathlib import Path
from typing import Any

from horsies.executor.protocol import ANY
from tests.fixtures.pools import Pump, open_pool


def send_together(pump: Pump, *tasks: tuple[str, dict[str, Any]]) -> list[str]:
    """In one message."""
    pump.is_paused = True
    ids = [pump.send(name, **arguments) for name, arguments in tasks]
    pump.is_paused = False
    pump.hand_out()
    return ids


async def test_what_waits_behind_a_slow_task_comes_back(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(frame=3) as pump:
        slow, *behind = send_together(pump, ("gate", {"until": str(go)}), ("quick", {}), ("quick", {}))
        member, ticket = await pump.beginning(slow)
        assert member.tickets.has_unbegun
        assert member.stuck_behind(member.began_at + 1, slow_after_s=0.5, slow_together_s=9) == ticket
        pump.is_paused = True
        member.recall(ticket)
        assert member.stuck_behind(member.began_at + 1, slow_after_s=0.5, slow_together_s=9) is None, (
            "it was asked already"
        )
        await pump.until(lambda: pump.given_back == behind)
        assert (member.load, member.is_open) == (1, False)
        go.touch()
        await pump.ending(slow)
        assert (member.load, member.is_open) == (0, True)


async def test_what_waits_behind_many_tasks_that_take_long_together_is_asked_for_too(tmp_path: Path) -> None:
    """None of them need be slow for the last one to wait long."""
    go = tmp_path / "go"
    async with open_pool(frame=5) as pump:
        *_, last, _behind = send_together(
            pump, *[("sleep", {"seconds": 0.05})] * 3, ("gate", {"until": str(go)}), ("quick", {})
        )
        member, _ticket = await pump.beginning(last)
        assert member.stuck_behind(member.began_at, slow_after_s=9, slow_together_s=0.15) == ANY
        go.touch()
        await pump.ending(last)


async def test_what_a_child_did_before_is_nobody_s_wait(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(frame=2) as pump:
        await pump.ending(pump.send("sleep", seconds=0.05))
        slow, _behind = send_together(pump, ("gate", {"until": str(go)}), ("quick", {}))
        member, _ticket = await pump.beginning(slow)
        assert member.stuck_behind(member.began_at, slow_after_s=0.0, slow_together_s=0.0) is None
        go.touch()
        await pump.ending(slow)


async def test_nothing_is_handed_to_a_child_whose_task_is_slow(tmp_path: Path) -> None:
    """Not even if nothing had to be recalled from it."""
    go = tmp_path / "go"
    async with open_pool(frame=3) as pump:
        slow = pump.send("gate", until=str(go))
        member, _ticket = await pump.beginning(slow)
        member.began_at -= 1
        assert (member.recalled, member.load, member.is_open) == (False, 1, False)
        go.touch()
        await pump.ending(slow)
        assert member.is_open


async def test_tasks_that_came_back_do_not_count(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(frame=3, max_tasks=10) as pump:
        slow, *_behind = send_together(pump, ("gate", {"until": str(go)}), ("quick", {}), ("quick", {}))
        member, _ticket = await pump.beginning(slow)
        assert member.budget_left == 7
        pump.is_paused = True
        member.recall(ANY)
        await pump.until(lambda: len(pump.given_back) == 2)
        assert member.budget_left == 9
        go.touch()
        await pump.ending(slow)


async def test_a_recall_of_nothing_closes_nobody() -> None:
    async with open_pool() as pump:
        (member,) = pump.roster
        member.recall(ANY)
        await pump.until(lambda: pump.recalls_answered)
        assert member.is_open


async def test_a_crowd_is_never_stuck(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(concurrency=2) as pump:
        slow = pump.send("gate", until=str(go))
        member, _ticket = await pump.beginning(slow)
        assert member.stuck_behind(member.began_at + 100, slow_after_s=0.5, slow_together_s=9) is None
        go.touch()
        await pump.ending(slow)
