"""The tasks of `basic` and a schedule that is due every second. Its worker polls every five minutes only, so notifications and timers must wake it."""

import os

from horsies import AppConfig, Horsies, IntervalSchedule, ScheduleConfig, TaskSchedule, WorkerResilienceConfig
from tests.apps import basic

app = Horsies(
    AppConfig(
        prefetch_buffer="auto" if os.environ.get("HORSIES_TEST_PREFETCH") == "auto" else 0,
        resilience=WorkerResilienceConfig(notify_poll_interval_ms=300_000),
        schedule=ScheduleConfig(
            schedules=[
                TaskSchedule(
                    name="tick", task_name="echo", pattern=IntervalSchedule(seconds=1), kwargs={"value": "tick"}
                )
            ]
        ),
    )
)

for task in basic.app.tasks.values():
    app.task(task.name)(task.function)
