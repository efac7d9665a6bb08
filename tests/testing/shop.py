"""The app for the tests of `horsies.testing`, as a user would write it."""

import asyncio
import time
from dataclasses import dataclass
from datetime import date
from typing import cast

from horsies import (
    AppConfig,
    CustomQueueConfig,
    Horsies,
    PostgresConfig,
    QueueMode,
    RetryPolicy,
    TaskError,
    TaskResult,
    current_task,
)

app = Horsies(
    AppConfig(
        broker=PostgresConfig(database_url="postgresql://nobody@nowhere.invalid/production"),
        queue_mode=QueueMode.CUSTOM,
        custom_queues=[
            CustomQueueConfig(name="normal", priority=10),
            CustomQueueConfig(name="urgent", priority=1),
            CustomQueueConfig(name="single", priority=20, max_concurrency=1),
        ],
    )
)
log: list[str] = []
begun: list[asyncio.Event] = []


@dataclass(frozen=True)
class Parcel:
    weight: float
    due: date


@app.task("halve", queue_name="normal")
def halve(number: int) -> TaskResult[int, TaskError]:
    if number % 2:
        return TaskResult(err=TaskError(error_code="ODD"))
    return TaskResult(ok=number // 2)


@app.task("codes", queue_name="normal")
def codes(results: list[TaskResult[int, TaskError]]) -> TaskResult[list[str], TaskError]:
    return TaskResult(
        ok=[str(result.ok_value) if result.is_ok() else result.err_value.error_code for result in results]
    )


@app.task("names", queue_name="normal")
def names(count: int) -> TaskResult[list[str], TaskError]:
    return TaskResult(ok=[str(number) for number in range(count)])


@app.task("note", queue_name="normal")
def note(text: str) -> TaskResult[str, TaskError]:
    log.append(text)
    return TaskResult(ok=text)


@app.task("alert", queue_name="urgent")
def alert(text: str) -> TaskResult[None, TaskError]:
    log.append(text)
    return TaskResult(ok=None)


@app.task("ship", queue_name="normal")
def ship(parcel: Parcel, *, express: bool = False) -> TaskResult[Parcel, TaskError]:
    assert isinstance(parcel, Parcel)
    return TaskResult(ok=parcel)


@app.task("greet", queue_name="normal")
async def greet(name: str) -> TaskResult[str, TaskError]:
    await asyncio.sleep(0)
    log.append(name)
    return TaskResult(ok=f"hello {name}")


@app.task("order", queue_name="normal")
def order(number: int) -> TaskResult[str, TaskError]:
    """Send another task."""
    log.append(f"order {number}")
    handle = note.send(f"confirm {number}")
    return TaskResult(ok=handle.task_id)


@app.task("order_async", queue_name="normal")
async def order_async(number: int) -> TaskResult[str, TaskError]:
    handle = await greet.send_async(f"confirm {number}")
    return TaskResult(ok=handle.task_id)


@app.task("wait_for_note", queue_name="normal")
def wait_for_note(text: str) -> TaskResult[str, TaskError]:
    return note.send(text).get(timeout_ms=5_000)


@app.task("gather_notes", queue_name="normal")
async def gather_notes(texts: list[str]) -> TaskResult[int, TaskError]:
    handles = await note.send_many_async(note.call(text) for text in texts)
    return TaskResult(ok=len(await app.gather_async(handles, timeout_ms=5_000)))


@app.task("error_code_of", queue_name="normal")
def error_code_of(task_id: str) -> TaskResult[str, TaskError]:
    """Return why there is no result yet."""
    return TaskResult(ok=app.handle(task_id, note).get(timeout_ms=0).unwrap_err().error_code)


@app.task("again", queue_name="normal")
def again() -> TaskResult[None, TaskError]:
    again.send()
    return TaskResult(ok=None)


@app.task("flaky", queue_name="normal", retry_policy=RetryPolicy.fixed([60, 600], auto_retry_for=[ConnectionError]))
def flaky(fails: int) -> TaskResult[int, TaskError]:
    attempt = current_task().attempt
    log.append(f"attempt {attempt}")
    if attempt <= fails:
        raise ConnectionError(f"no. {attempt}")
    return TaskResult(ok=attempt)


@app.task("slow", queue_name="normal", timeout_ms=50)
def slow() -> TaskResult[None, TaskError]:
    time.sleep(30)
    return TaskResult(ok=None)


@app.task("slow_async", queue_name="normal", timeout_ms=50)
async def slow_async() -> TaskResult[None, TaskError]:
    await asyncio.sleep(30)
    return TaskResult(ok=None)


@app.task("endless_async", queue_name="normal")
async def endless_async() -> TaskResult[None, TaskError]:
    begun[-1].set()
    await asyncio.sleep(30)
    return TaskResult(ok=None)


@app.task("busy", queue_name="normal", timeout_ms=50)
def busy() -> TaskResult[None, TaskError]:
    while True:
        time.sleep(0.001)


@app.task("measured", queue_name="normal")
def measured() -> TaskResult[None, TaskError]:
    current_task().progress(0.5, "half")
    return TaskResult(ok=None)


@app.task("nested", queue_name="single")
def nested(text: str) -> TaskResult[str, TaskError]:
    log.append(f"begin {text}")
    if text == "outer":
        nested.send("inner")
    log.append(f"end {text}")
    return TaskResult(ok=text)


@app.task("broken", queue_name="normal")
def broken() -> TaskResult[int, TaskError]:
    return TaskResult(ok=cast("int", "not a number"))


@app.task("interrupted", queue_name="normal")
def interrupted() -> TaskResult[None, TaskError]:
    raise KeyboardInterrupt
