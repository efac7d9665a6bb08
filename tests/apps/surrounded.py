"""Tasks within middleware. What the middleware sees is appended to the file that each task is given, one line each."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Generator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, cast

from horsies import CurrentTask, Horsies, RetryPolicy, TaskError, TaskResult, current_task

app = Horsies()
tenant: ContextVar[str] = ContextVar("tenant")


def note(task: CurrentTask, line: str) -> None:
    with Path(task.arguments["path"]).open("a") as file:
        file.write(f"{line}\n")


@app.middleware
def outer(task: CurrentTask) -> Generator[None, TaskResult[Any, TaskError], None]:
    assert current_task() is task
    note(task, f"outer {task.task_name} {task.attempt}")
    try:
        result = yield
    except BaseException as error:
        note(task, f"outer saw {type(error).__name__}: {error}")
        raise
    note(task, f"outer saw {result}")


@app.middleware(around="async")
async def beside(task: CurrentTask) -> AsyncGenerator[None, TaskResult[Any, TaskError]]:
    await asyncio.sleep(0)
    try:
        result = yield
    except BaseException as error:
        await asyncio.sleep(0)
        note(task, f"async saw {type(error).__name__}")
        raise
    await asyncio.sleep(0)
    note(task, f"async saw {result}")


@app.middleware
def inner(task: CurrentTask) -> Generator[None]:
    fail = task.arguments.get("fail")
    if fail == "before":
        raise ConnectionError("no tenant")
    token = tenant.set("acme")
    try:
        yield
    except LookupError as error:
        note(task, "inner caught it")
        if fail == "translate":
            raise RuntimeError("no such tenant") from error
    finally:
        tenant.reset(token)
    if fail == "after":
        raise ConnectionError("no commit")
    if fail == "yield":
        yield


@app.middleware
def skipping(task: CurrentTask) -> Generator[None]:
    if task.arguments.get("fail") != "skip":
        yield


@app.task("name_tenant", retry_policy=RetryPolicy.fixed([0.01], auto_retry_for=[ConnectionError]))
def name_tenant(path: str, fail: str = "") -> TaskResult[str, TaskError]:
    if fail == "err":
        return TaskResult(err=TaskError(error_code="NO_PAPER", message="none"))
    if fail in {"lookup", "translate"}:
        raise LookupError("lost")
    if fail == "stop":
        raise StopIteration("odd")
    if fail == "type":
        return TaskResult(ok=cast("str", 7))
    return TaskResult(ok=tenant.get())


@app.task("name_tenant_async")
async def name_tenant_async(path: str, fail: str = "") -> TaskResult[str, TaskError]:
    await asyncio.sleep(0)
    if fail in {"lookup", "translate"}:
        raise LookupError("lost")
    if fail == "stop":
        raise StopAsyncIteration("odd")
    return TaskResult(ok=tenant.get())


@app.task("sleep")
def sleep(path: str) -> TaskResult[None, TaskError]:
    while True:
        time.sleep(0.01)


@app.task("sleep_async")
async def sleep_async(path: str) -> TaskResult[None, TaskError]:
    await asyncio.sleep(600)
    return TaskResult(ok=None)


@app.task("fork")
def fork(path: str, fail: str = "") -> TaskResult[int, TaskError]:
    """Leave the function in a copy of the process as well."""
    if not (pid := os.fork()):
        return TaskResult(ok=0)
    os.waitpid(pid, 0)
    return TaskResult(ok=1)
