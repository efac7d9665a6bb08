"""Exceptions with their own error codes, and a small limit for results."""

import asyncio
import time
from pathlib import Path
from typing import Any

from horsies import AppConfig, Horsies, RetryPolicy, TaskError, TaskResult

app = Horsies(
    AppConfig(
        exception_mapper={OSError: "SYSTEM", ConnectionError: "DOWN"},
        default_unhandled_error_code="BUG",
        payload_warning_bytes=1_500,
        max_payload_bytes=2_000,
    )
)

ERRORS = {
    "refused": ConnectionRefusedError("refused"),
    "missing": FileNotFoundError("missing"),
    "value": ValueError("value"),
    "group": ExceptionGroup("both", [ConnectionRefusedError("one"), ConnectionResetError("two")]),
    "mixed": ExceptionGroup("both", [ConnectionRefusedError("one"), ValueError("two")]),
}


@app.task("raise_it")
def raise_it(what: str) -> TaskResult[None, TaskError]:
    raise ERRORS[what]


@app.task("raise_mapped", exception_mapper={FileNotFoundError: "GONE"})
async def raise_mapped(what: str) -> TaskResult[None, TaskError]:
    await asyncio.sleep(0)
    raise ERRORS[what]


@app.task("raise_listed", retry_policy=RetryPolicy.fixed([1], auto_retry_for=[ConnectionError]))
def raise_listed(what: str) -> TaskResult[None, TaskError]:
    raise ERRORS[what]


@app.task("raise_default", default_unhandled_error_code="OWN_BUG")
def raise_default(what: str) -> TaskResult[None, TaskError]:
    raise ERRORS[what]


@app.task("claim_code", retry_policy=RetryPolicy.fixed([0.01], auto_retry_for=["WORKER_CRASHED", "TASK_TIMEOUT"]))
def claim_code(code: str) -> TaskResult[int, TaskError]:
    return TaskResult(err=TaskError(error_code=code, message="as if", data=[1]))


@app.task("return_anything")
def return_anything(what: str) -> TaskResult[int, TaskError]:
    found: dict[str, Any] = {
        "nothing": None,
        "number": 7,
        "text": TaskResult[str, TaskError](ok="seven"),
        "good": TaskResult[int, TaskError](ok=7),
        "declined": TaskResult[int, TaskError](err=TaskError(error_code="DECLINED", data={"by": "bank"})),
    }
    return found[what]


@app.task("return_anything_async")
async def return_anything_async(what: str) -> TaskResult[int, TaskError]:
    await asyncio.sleep(0)
    return return_anything.function(what)


@app.task("call_in_place")
def call_in_place(begun: str) -> TaskResult[bool, TaskError]:
    """Call a task that never ends by itself."""
    return TaskResult(ok=sleep_long(begun).is_ok())


@app.task("sleep_long")
def sleep_long(begun: str) -> TaskResult[None, TaskError]:
    Path(begun).touch()
    while True:
        time.sleep(0.005)


@app.task("raise_words")
def raise_words(length: int) -> TaskResult[None, TaskError]:
    raise ValueError("w" * length)


@app.task("repeat")
def repeat(text: str, times: int) -> TaskResult[str, TaskError]:
    return TaskResult(ok=text * times)


@app.task("decline")
def decline(length: int) -> TaskResult[None, TaskError]:
    return TaskResult(err=TaskError(error_code="DECLINED", message="m", data={"why": "w" * length}))
