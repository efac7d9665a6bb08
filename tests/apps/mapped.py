"""Exceptions that have error codes of their own, and little room for results."""

import asyncio

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


@app.task("raise_words")
def raise_words(length: int) -> TaskResult[None, TaskError]:
    raise ValueError("w" * length)


@app.task("repeat")
def repeat(text: str, times: int) -> TaskResult[str, TaskError]:
    return TaskResult(ok=text * times)


@app.task("decline")
def decline(length: int) -> TaskResult[None, TaskError]:
    return TaskResult(err=TaskError(error_code="DECLINED", message="m", data={"why": "w" * length}))
