"""Where older documents import them from."""

from horsies.model.schedule import (
    CronSchedule,
    DailySchedule,
    HourlySchedule,
    IntervalSchedule,
    MonthlySchedule,
    ScheduleConfig,
    TaskSchedule,
    Weekday,
    WeeklySchedule,
)

__all__ = [
    "CronSchedule",
    "DailySchedule",
    "HourlySchedule",
    "IntervalSchedule",
    "MonthlySchedule",
    "ScheduleConfig",
    "TaskSchedule",
    "Weekday",
    "WeeklySchedule",
]
