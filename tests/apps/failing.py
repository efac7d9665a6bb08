"""Tasks that name another task for their final failure."""

import os

from horsies import Horsies, RetryPolicy, TaskError, TaskFailure, TaskResult

app = Horsies()


@app.task("tell", retry_policy=RetryPolicy.fixed([1, 2], auto_retry_for=["BUSY"], jitter=0.0), timeout_ms=5_000)
def tell(failure: TaskFailure, prefix: str = "told") -> TaskResult[str, TaskError]:
    args = ",".join(f"{name}={value}" for name, value in failure.args.items())
    return TaskResult(
        ok=f"{prefix} {failure.task_name} {failure.task_id} {failure.queue_name} {failure.attempts} "
        f"{failure.error.error_code} {failure.error.message!r} {args}"
    )


@app.task("charge", on_failure=tell, retry_policy=RetryPolicy.fixed([0.01], auto_retry_for=["BUSY"]))
def charge(amount: int, how: str = "") -> TaskResult[int, TaskError]:
    match how:
        case "busy":
            return TaskResult(err=TaskError(error_code="BUSY", message="try later"))
        case "raise":
            raise ValueError("what's \\ this \N{SNOWMAN}?")
        case "exit":
            os._exit(3)
        case _:
            return TaskResult(ok=amount)


@app.task("charge_secretly", on_failure="tell", sensitive=True)
def charge_secretly(card: str) -> TaskResult[None, TaskError]:
    return TaskResult(err=TaskError(error_code="DECLINED", message=f"{card} is declined"))
