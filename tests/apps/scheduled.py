"""An app with schedules, as many as $HORSIES_TEST_SCHEDULES says: each is due every second."""

import os

from horsies import (
    AppConfig,
    Horsies,
    IntervalSchedule,
    ScheduleConfig,
    TaskError,
    TaskResult,
    TaskSchedule,
    WorkerResilienceConfig,
)

app = Horsies(
    AppConfig(
        resilience=WorkerResilienceConfig(
            db_retry_initial_ms=100,
            db_retry_max_ms=500,
            notify_poll_interval_ms=60_000,  # no polling: only notifications and timers wake it
            db_retry_max_attempts=int(os.environ.get("HORSIES_TEST_ATTEMPTS", "0")),
        ),
        schedule=ScheduleConfig(
            schedules=[
                TaskSchedule(
                    name=f"tick {number}",
                    task_name="note",
                    pattern=IntervalSchedule(seconds=1),
                    kwargs={"number": number},
                    catch_up_missed=True,
                )
                for number in range(int(os.environ.get("HORSIES_TEST_SCHEDULES", "1")))
            ]
        ),
    )
)


@app.task("note")
def note(number: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=number)
