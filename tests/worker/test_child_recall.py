"""A child returns tasks that have not begun, and is assigned new ones again later."""

from pathlib import Path
from typing import Any

from horsies.executor.protocol import NO_ASSIGNMENT
from tests.fixtures.pools import FakeDispatcher, open_pool


def send_together(dispatcher: FakeDispatcher, *tasks: tuple[str, dict[str, Any]]) -> list[str]:
    """Assign tasks to a child in one message."""
    dispatcher.is_paused = True
    ids = [dispatcher.send(name, **arguments) for name, arguments in tasks]
    dispatcher.is_paused = False
    dispatcher.assign_waiting()
    return ids


async def test_tasks_that_wait_behind_a_slow_task_are_returned(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(prefetch=3) as dispatcher:
        slow, *behind = send_together(dispatcher, ("gate", {"until": str(go)}), ("quick", {}), ("quick", {}))
        child, assignment_no = await dispatcher.beginning(slow)
        assert child.assignments.has_waiting
        assert child.stuck_behind(child.began_at + 1, slow_after_s=0.5, slow_together_s=9) == assignment_no
        dispatcher.is_paused = True
        child.recall(assignment_no)
        assert child.stuck_behind(child.began_at + 1, slow_after_s=0.5, slow_together_s=9) is None, (
            "it was asked already"
        )
        await dispatcher.until(lambda: dispatcher.returned == behind)
        assert (child.load, child.budget_left > 0) == (1, False)
        go.touch()
        await dispatcher.ending(slow)
        assert (child.load, child.budget_left > 0) == (0, True)


async def test_tasks_that_wait_behind_many_short_ones_are_recalled_too(tmp_path: Path) -> None:
    """None of them need be slow for the last one to wait long."""
    go = tmp_path / "go"
    async with open_pool(prefetch=5) as dispatcher:
        *_, last, _behind = send_together(
            dispatcher, *[("sleep", {"seconds": 0.05})] * 3, ("gate", {"until": str(go)}), ("quick", {})
        )
        child, _assignment_no = await dispatcher.beginning(last)
        assert child.stuck_behind(child.began_at, slow_after_s=9, slow_together_s=0.15) == NO_ASSIGNMENT
        go.touch()
        await dispatcher.ending(last)


async def test_earlier_tasks_of_a_child_do_not_count_as_waiting(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(prefetch=2) as dispatcher:
        await dispatcher.ending(dispatcher.send("sleep", seconds=0.05))
        slow, _behind = send_together(dispatcher, ("gate", {"until": str(go)}), ("quick", {}))
        child, _assignment_no = await dispatcher.beginning(slow)
        assert child.stuck_behind(child.began_at, slow_after_s=0.0, slow_together_s=0.0) is None
        go.touch()
        await dispatcher.ending(slow)


async def test_nothing_is_assigned_to_a_child_whose_task_is_slow(tmp_path: Path) -> None:
    """Not even if nothing had to be recalled from it."""
    go = tmp_path / "go"
    async with open_pool(prefetch=3) as dispatcher:
        slow = dispatcher.send("gate", until=str(go))
        child, _assignment_no = await dispatcher.beginning(slow)
        child.began_at -= 1
        assert (child.is_recalled, child.load, child.budget_left > 0) == (False, 1, False)
        go.touch()
        await dispatcher.ending(slow)
        assert child.budget_left


async def test_returned_tasks_do_not_count(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(prefetch=3, max_tasks=10) as dispatcher:
        slow, *_behind = send_together(dispatcher, ("gate", {"until": str(go)}), ("quick", {}), ("quick", {}))
        child, _assignment_no = await dispatcher.beginning(slow)
        assert child.recycling.left == 7
        dispatcher.is_paused = True
        child.recall(NO_ASSIGNMENT)
        await dispatcher.until(lambda: len(dispatcher.returned) == 2)
        assert child.recycling.left == 9
        go.touch()
        await dispatcher.ending(slow)


async def test_a_recall_of_nothing_does_not_close_the_child() -> None:
    async with open_pool() as dispatcher:
        (child,) = dispatcher.children
        child.recall(NO_ASSIGNMENT)
        await dispatcher.until(lambda: dispatcher.recalls_answered)
        assert child.budget_left


async def test_a_child_with_concurrency_is_never_stuck(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(concurrency=2) as dispatcher:
        slow = dispatcher.send("gate", until=str(go))
        child, _assignment_no = await dispatcher.beginning(slow)
        assert child.stuck_behind(child.began_at + 100, slow_after_s=0.5, slow_together_s=9) is None
        go.touch()
        await dispatcher.ending(slow)


async def test_a_child_with_a_free_slot_is_open_again_after_a_recall(tmp_path: Path) -> None:
    """The tasks were recalled before they could begin, so no end of a short task follows: only that of the long one, much later."""
    unblock, go = tmp_path / "unblock", tmp_path / "go"
    async with open_pool(concurrency=2, prefetch=4) as dispatcher:
        slow = dispatcher.send("block_loop_then_wait", until=str(unblock), then_until=str(go))
        child, _assignment_no = await dispatcher.beginning(slow)
        dispatcher.is_paused = True
        child.assign([dispatcher.claim("quick") for _ in range(3)])
        assert child.stuck_behind(child.began_at + 100, slow_after_s=0.5, slow_together_s=9) == NO_ASSIGNMENT
        child.recall(NO_ASSIGNMENT)
        assert not child.budget_left
        await dispatcher.until(lambda: len(dispatcher.returned) == 3)
        unblock.touch()
        assert (child.load, child.budget_left > 0) == (1, True)
        dispatcher.is_paused = False
        await dispatcher.ending(dispatcher.send("quick"))
        go.touch()
        await dispatcher.ending(slow)
