"""Tasks whose attempts, log lines and secrets are looked at afterwards. Its database is $HORSIES_DATABASE_URL."""

import logging
import os
import signal
import time
from pathlib import Path

from horsies import Horsies, RetryPolicy, TaskError, TaskResult
from horsies.tasks.current_task import current_task

app = Horsies()
log = logging.getLogger("shop")
again = RetryPolicy.fixed([0.01] * 5, auto_retry_for=["FAULTY", "WORKER_CRASHED", "TASK_TIMEOUT", "UNHANDLED_ERROR"])


def end(how: str, gate: str = "") -> TaskResult[int, TaskError]:
    match how:
        case "fail":
            return TaskResult(err=TaskError(error_code="FAULTY", message="the first line\nthe second", data={"a": 1}))
        case "raise":
            raise ValueError("no such thing")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "sleep":
            time.sleep(0.01)
            while True:
                time.sleep(0.01)
        case "gate":
            Path(gate, "begun").touch()
            while not Path(gate, "open").exists():
                time.sleep(0.01)
        case _:
            pass
    return TaskResult(ok=os.getpid())


@app.task("act", retry_policy=again, timeout_ms=60_000)
def act(steps: list[str], gate: str) -> TaskResult[int, TaskError]:
    """Do the step of this attempt."""
    return end(steps[min(current_task().attempt, len(steps)) - 1], gate)


@app.task("hurry", retry_policy=again, timeout_ms=200)
def hurry(steps: list[str]) -> TaskResult[int, TaskError]:
    return end(steps[current_task().attempt - 1])


@app.task("once")
def once(how: str, gate: str) -> TaskResult[int, TaskError]:
    return end(how, gate)
