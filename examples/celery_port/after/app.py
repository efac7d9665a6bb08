"""The app and its schedule.

$ horsies worker examples.celery_port.after.app:app --scheduler
"""

from datetime import time

import httpx

from horsies import AppConfig, DailySchedule, Horsies, ScheduleConfig, TaskSchedule

app = Horsies(
    AppConfig(
        name="shop",
        exception_mapper={httpx.HTTPError: "SUPPLIER_DOWN"},
        schedule=ScheduleConfig(
            schedules=[
                TaskSchedule(
                    name="compare-all",
                    task_name="shop.compare_all",
                    pattern=DailySchedule(time(6, 30)),
                    timezone="Europe/Berlin",
                ),
            ]
        ),
    )
)
app.discover_tasks(["examples.celery_port.after.tasks"])
