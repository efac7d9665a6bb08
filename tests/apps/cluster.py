"""The tasks of `basic` and some that note when they run, on an app whose settings come from the environment."""

import asyncio
import os
import time

from horsies import Horsies, QueueMode, TaskError, TaskResult
from horsies.model.retry_policy import RetryPolicy
from tests.apps import basic
from tests.apps.settings import configured

app = Horsies(configured())
queue = None if app.config.queue_mode is QueueMode.DEFAULT else app.config.queues[0].name
after_crashes = RetryPolicy.fixed([0.05, 0.05, 0.05], auto_retry_for=["WORKER_CRASHED"])

for task in basic.app.tasks.values():
    app.task(task.name, queue_name=queue)(task.function)


@app.task("span", queue_name=queue, retry_policy=after_crashes)
def span(log: str, number: int, seconds: float) -> TaskResult[None, TaskError]:
    """Log when it begins and ends, on a clock that all processes of the machine share."""
    _note(log, number, "begins")
    time.sleep(seconds)
    _note(log, number, "ends")
    return TaskResult(ok=None)


@app.task("span_async", queue_name=queue, retry_policy=after_crashes)
async def span_async(log: str, number: int, seconds: float) -> TaskResult[None, TaskError]:
    _note(log, number, "begins")
    await asyncio.sleep(seconds)
    _note(log, number, "ends")
    return TaskResult(ok=None)


def _note(log: str, number: int, what: str) -> None:
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(fd, f"{number} {what} {time.monotonic_ns()} {os.getpid()}\n".encode())
    finally:
        os.close(fd)
