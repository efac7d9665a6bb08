"""The tasks of `paces`, and tasks that fail before they succeed, on an app whose settings come from the environment."""

import asyncio
import os
import time
from pathlib import Path

from horsies import Horsies, TaskError, TaskResult
from horsies.model.retry_policy import RetryPolicy
from horsies.tasks.current_task import current_task
from tests.apps import paces
from tests.apps.settings import configured

app = Horsies(configured())

for task in paces.app.tasks.values():
    app.task(task.name)(task.function)

FAILURES = {"refused": ConnectionRefusedError, "value": ValueError}
LISTED = ["BUSY", "WORKER_CRASHED", ConnectionError]


def fail(how: str, retry_after_seconds: float | None = None) -> TaskResult[int, TaskError]:
    """Raise, die, or return an error, by its name."""
    if how == "die":
        os._exit(7)
    if how in FAILURES:
        raise FAILURES[how](how)
    return TaskResult(err=TaskError(error_code=how, retry_after_seconds=retry_after_seconds))


def fail_at_first(how: str, failures: int, retry_after_seconds: float | None = None) -> TaskResult[int, TaskError]:
    """Fail the given number of times, then return the number of the attempt."""
    attempt = current_task().attempt
    return fail(how, retry_after_seconds) if attempt <= failures else TaskResult(ok=attempt)


async def fail_at_first_async(how: str, failures: int) -> TaskResult[int, TaskError]:
    await asyncio.sleep(0)
    return fail_at_first(how, failures)


fixed = app.task("fixed", retry_policy=RetryPolicy.fixed([0.3, 0.1], auto_retry_for=LISTED))(fail_at_first)
fixed_async = app.task("fixed_async", retry_policy=RetryPolicy.fixed([0.1], auto_retry_for=LISTED))(fail_at_first_async)
exponential = app.task(
    "exponential", retry_policy=RetryPolicy.exponential(0.1, 3, auto_retry_for=LISTED, max_delay_seconds=0.3, jitter=0)
)(fail_at_first)
jittered = app.task("jittered", retry_policy=RetryPolicy.fixed([0.2], auto_retry_for=LISTED, jitter=0.5))(fail_at_first)
busy_only = app.task("busy_only", retry_policy=RetryPolicy.fixed([0.1], auto_retry_for=["BUSY"]))(fail_at_first)
slow_retry = app.task("slow_retry", retry_policy=RetryPolicy.fixed([60], auto_retry_for=["BUSY"]))(fail_at_first)
mapped = app.task(
    "mapped", retry_policy=RetryPolicy.fixed([0.1], auto_retry_for=["BUSY"]), exception_mapper={ConnectionError: "BUSY"}
)(fail_at_first)
many = app.task("many", retry_policy=RetryPolicy.fixed([0.0] * 30, auto_retry_for=["BUSY"]))(fail_at_first)


@app.task("overstay", timeout_ms=300)
def overstay(path: str) -> TaskResult[None, TaskError]:
    """Run longer than the timeout, and clean up. Sleeps in short naps: a sleeping thread cannot be interrupted."""
    try:
        while True:
            time.sleep(0.01)
    finally:
        Path(path).write_text("cleaned up")


@app.task("overstay_async", timeout_ms=300)
async def overstay_async(path: str) -> TaskResult[None, TaskError]:
    try:
        await asyncio.sleep(600)
    finally:
        Path(path).write_text("cleaned up")  # noqa: ASYNC240 - tiny
    return TaskResult(ok=None)


@app.task("hurry_up", timeout_ms=300, retry_policy=RetryPolicy.fixed([0.0], auto_retry_for=["TASK_TIMEOUT"]))
def hurry_up(*, ignores_stop: bool) -> TaskResult[int, TaskError]:
    """Exceed the timeout in the first attempt. With `ignores_stop`, ignore the soft stop, so that it must be killed."""
    attempt = current_task().attempt
    while attempt == 1:
        try:
            time.sleep(600)
        except Exception:
            if not ignores_stop:
                raise
    return TaskResult(ok=attempt)


@app.task("tidy")
def tidy(path: str) -> TaskResult[None, TaskError]:
    """Wait, and clean up when cancelled."""
    current_task().progress(None, "inside")
    try:
        while True:
            time.sleep(0.01)
    except Exception as error:
        Path(path).write_text(f"{type(error).__name__} {current_task().cancelled}")
        raise


@app.task("ignore_stops")
def ignore_stops(begun: str) -> TaskResult[None, TaskError]:
    """Swallow every exception and never end."""
    Path(begun).write_text(f"{os.getpid()}\n")
    while True:
        try:
            time.sleep(600)
        except Exception:  # noqa: BLE001, S112 - that is what it is for
            continue


@app.task("block_loop")
async def block_loop(begun: str, until: str) -> TaskResult[str, TaskError]:
    """Block the event loop: nothing else runs on it until the file exists."""
    Path(begun).write_text(f"{os.getpid()}\n")  # noqa: ASYNC240 - tiny
    while not Path(until).exists():  # noqa: ASYNC240 - that is what it is for
        time.sleep(0.05)  # noqa: ASYNC251 - that is what it is for
    return TaskResult(ok="through")
