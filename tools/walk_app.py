"""The app that `make walk` traces: one task, a workflow of two nodes, and a schedule that is due every second."""

import inspect
import os
from pathlib import Path

from horsies import (
    AppConfig,
    Horsies,
    IntervalSchedule,
    RecoveryConfig,
    ScheduleConfig,
    TaskError,
    TaskResult,
    TaskSchedule,
    WorkerResilienceConfig,
    from_node,
)
from tools.walk_trace import FOLDER_VARIABLE, install_from_environment

TIMER_MS = 60_000
DEAD_AFTER_MS = 10 * TIMER_MS

install_from_environment()


def _quiet_recovery() -> RecoveryConfig:
    """Slow down all timers of recovery, whatever they are called, so that they rarely fire while the trace is on."""
    timers = {
        name: TIMER_MS
        for name, parameter in inspect.signature(RecoveryConfig).parameters.items()
        if type(parameter.default) is int and parameter.default < TIMER_MS
    }
    return RecoveryConfig(**{**timers, "dead_after_ms": DEAD_AFTER_MS})


app = Horsies(
    AppConfig(
        name="walk",
        recovery=_quiet_recovery(),
        resilience=WorkerResilienceConfig(notify_poll_interval_ms=5 * TIMER_MS),
        schedule=ScheduleConfig(
            [TaskSchedule(name="every-second", task_name="scheduled", pattern=IntervalSchedule(seconds=1))]
        ),
    )
)


@app.task("add")
def add(a: int, b: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a + b)


@app.task("scheduled")
def scheduled() -> TaskResult[None, TaskError]:
    """Append a byte to a file, because no producer waits for the result."""
    with (Path(os.environ[FOLDER_VARIABLE]) / "scheduled").open("ab") as file:
        file.write(b".")
    return TaskResult(ok=None)


_first = add.node(node_id="first")(1, 2)
_second = add.node(node_id="second")(from_node(_first), 3)
workflow = app.workflow("sum", tasks=[_first, _second], output=_second)
