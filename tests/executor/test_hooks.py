"""`@app.on_child_start` and `@app.on_child_stop`."""

from pathlib import Path
from typing import Any

import pytest

from horsies import Horsies
from horsies.model.errors import TaskDefinitionError
from horsies.worker.supervisor import ChildRefused
from tests.fixtures.pools import open_pool

KINDS_OF_CHILDREN = pytest.mark.parametrize(
    "pool",
    [{}, {"concurrency": 10}, {"max_tasks": 50}, {"max_tasks": 50, "concurrency": 10}],
    ids=["forked", "forked concurrent", "spawned", "spawned concurrent"],
)


@KINDS_OF_CHILDREN
async def test_start_hooks_have_run_in_every_child_on_the_loop_of_its_tasks(pool: dict[str, Any]) -> None:
    async with open_pool(processes=2, **pool) as dispatcher:
        ids = [dispatcher.send("hooks") for _ in range(4)]
        assert {(await dispatcher.ending(task_id)).result for task_id in ids} == {"[true,true]"}


@KINDS_OF_CHILDREN
async def test_stop_hooks_run_before_a_child_exits_in_reverse_order(tmp_path: Path, pool: dict[str, Any]) -> None:
    stopped = tmp_path / "stopped"
    async with open_pool(processes=2, env={"PACES_STOP_FILE": str(stopped)}, **pool) as dispatcher:
        pids = [child.pid for child in dispatcher.children]
    # Each ran it once, and the hook that failed after it did not keep the child from exiting.
    assert sorted(map(int, stopped.read_text().split())) == sorted(pids)


@KINDS_OF_CHILDREN
async def test_exit_handlers_run_when_a_child_exits(tmp_path: Path, pool: dict[str, Any]) -> None:
    async with open_pool(**pool) as dispatcher:
        await dispatcher.value("register_exit_handler", path=str(tmp_path / "note"))
    assert (tmp_path / "note").read_text() == "ran"


@KINDS_OF_CHILDREN
async def test_what_a_task_has_written_to_a_file_that_it_left_open_is_in_the_file(
    tmp_path: Path, pool: dict[str, Any]
) -> None:
    async with open_pool(**pool) as dispatcher:
        await dispatcher.value("leave_a_file", path=str(tmp_path / "note"))
    assert (tmp_path / "note").read_text() == "written"


@pytest.mark.parametrize("max_tasks", [None, 50], ids=["forked", "spawned"])
async def test_a_failing_start_hook_prevents_the_start_and_is_named(max_tasks: int | None) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(ChildRefused, match=r"hook warm_up failed: RuntimeError: no model here")):
        async with open_pool(max_tasks=max_tasks, env={"PACES_HOOK": "fail"}):
            pytest.fail("it has started")


def test_a_hook_must_be_callable_without_arguments() -> None:
    app = Horsies()

    def wants(_connection: object) -> None:
        pass

    with pytest.raises(TaskDefinitionError, match=r"wants needs arguments"):
        app.on_child_start(wants)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TaskDefinitionError, match="must be a function"):
        app.on_child_stop("wants")  # pyright: ignore[reportArgumentType]


def test_a_hook_is_still_the_function_it_was() -> None:
    app = Horsies()

    @app.on_child_start
    def warm_up() -> int:
        return 7

    assert warm_up() == 7
    assert app.child_start_hooks == (warm_up,)
