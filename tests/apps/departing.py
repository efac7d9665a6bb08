"""Tasks that still run when their worker shuts down. Its database is $HORSIES_DATABASE_URL."""

import os
import time
from pathlib import Path

from horsies import (
    AppConfig,
    Horsies,
    RecoveryConfig,
    RetryPolicy,
    TaskCancelledError,
    TaskError,
    TaskResult,
    WorkerResilienceConfig,
)
from tests.apps.basic import gate, write_line

POLL_S = 0.005

app = Horsies(
    AppConfig(
        recovery=RecoveryConfig(grace_ms=int(os.environ.get("HORSIES_TEST_GRACE_MS", "5000"))),
        resilience=WorkerResilienceConfig(notify_poll_interval_ms=300_000),  # only notifications
    )
)

on_crash = RetryPolicy.fixed([0, 0], auto_retry_for=["WORKER_CRASHED"])
on_timeout = RetryPolicy.fixed([0, 0], auto_retry_for=["TASK_TIMEOUT"])

app.task("write_line")(write_line.function)
gate_plain = app.task("gate_plain")(gate.function)
gate_again = app.task("gate_again", retry_policy=on_crash)(gate.function)
gate_not_again = app.task("gate_not_again", retry_policy=on_timeout)(gate.function)


@app.task("finish_early")
def finish_early(begun: str) -> TaskResult[str, TaskError]:
    """End with a result when asked to stop."""
    try:
        gate.function(begun, "never")
    except TaskCancelledError:
        return TaskResult(ok="as far as I got")
    return TaskResult(ok="all of it")


@app.task("stubborn", retry_policy=on_crash)
def stubborn(begun: str, until: str, note: str) -> TaskResult[None, TaskError]:
    """Log that it was asked to stop, and continue."""
    try:
        gate.function(begun, until)
    except TaskCancelledError:
        Path(note).touch()
    while not Path(until).exists():
        time.sleep(POLL_S)
    return TaskResult(ok=None)
