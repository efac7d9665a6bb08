"""Tasks with plain values only: what a child imports for these, it imports for all tasks."""

import sys

from horsies import AppConfig, Horsies, RetryPolicy, TaskError, TaskResult

app = Horsies(AppConfig.for_database_url("postgresql://nobody@localhost:1/nowhere"))


@app.task("loaded")
def loaded(names: list[str]) -> TaskResult[list[str], TaskError]:
    """Return which of these modules this process has imported."""
    return TaskResult(ok=[name for name in names if name in sys.modules])


@app.task("add", retry_policy=RetryPolicy.fixed([1], auto_retry_for=["BUSY"]), timeout_ms=5_000)
def add(left: int, right: float | None = None, note: str = "") -> TaskResult[dict[str, object], TaskError]:
    return TaskResult(ok={"sum": left + (right or 0), "note": note})


@app.task("fail")
def fail() -> TaskResult[None, TaskError]:
    raise ValueError("as asked")
