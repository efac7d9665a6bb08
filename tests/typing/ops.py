"""What type checkers see of `app.ops`: the blocking and the asyncio form of a method have the same parameters and the same result."""

from collections.abc import Mapping
from typing import assert_type

from horsies import Horsies
from horsies.ops import BulkProgress, TaskFilter, TaskPage
from horsies.tasks.control import CancelOutcome

app = Horsies()


async def operate() -> None:
    assert_type(app.ops.list_tasks(TaskFilter(task_name="add"), limit=10), TaskPage)
    assert_type(await app.ops.list_tasks_async(TaskFilter(task_name="add"), limit=10), TaskPage)
    assert_type(app.ops.cancel_tasks(["id"]), Mapping[str, CancelOutcome])
    assert_type(app.ops.pause_workflow("id"), bool)
    for progress in app.ops.retry_matching(TaskFilter()):
        assert_type(progress, BulkProgress)
    async for progress in app.ops.acting_as("alice").purge_matching(TaskFilter()):
        assert_type(progress, BulkProgress)
    app.ops.list_tasks(limits=10)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await app.ops.count_tasks_async("add")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
