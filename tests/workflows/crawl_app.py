"""Tasks of all shapes, for graphs that are built and never started."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel

from horsies import (
    AppConfig,
    CustomQueueConfig,
    Horsies,
    QueueMode,
    RetryPolicy,
    TaskError,
    TaskResult,
    WorkflowContext,
    WorkflowMeta,
)

POLICY = RetryPolicy.fixed([1], auto_retry_for=["BUSY"])
app = Horsies(
    AppConfig(
        queue_mode=QueueMode.CUSTOM, custom_queues=[CustomQueueConfig(name="web"), CustomQueueConfig(name="slow")]
    )
)


class Page(BaseModel):
    url: str
    at: datetime | None = None


@app.task("fetch", queue_name="web", timeout_ms=1_000, retry_policy=POLICY)
def fetch(url: str, *, depth: int = 1) -> TaskResult[Page, TaskError]:
    return TaskResult(ok=Page(url=f"{url}{depth}"))


@app.task("links", queue_name="web")
async def links(page: Page) -> TaskResult[list[str], TaskError]:
    return TaskResult(ok=[page.url])


@app.task("count", queue_name="web")
def count(page: Page) -> TaskResult[int, TaskError]:
    return TaskResult(ok=len(page.url))


@app.task("summarise", queue_name="slow")
def summarise(
    pages: list[TaskResult[Page, TaskError]], named: dict[str, Page] | None = None
) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"{len(pages)}{named}")


@app.task("any_json", queue_name="web")
def any_json(value: Any, *rest: int, **others: str) -> TaskResult[Any, TaskError]:
    return TaskResult(ok=[value, rest, others])


@app.task("with_context", queue_name="web")
def with_context(
    note: str, *, workflow_ctx: WorkflowContext | None = None, workflow_meta: WorkflowMeta | None = None
) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"{note}{workflow_ctx}{workflow_meta}")


@app.task("judge", queue_name="web")
def judge(page: TaskResult[Page, TaskError] | None) -> TaskResult[bool, TaskError]:
    return TaskResult(ok=page is not None and page.is_ok())
