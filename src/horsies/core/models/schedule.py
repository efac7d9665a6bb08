"""Where older documents import them from."""

from horsies.model.patterns import (
    CronSchedule,
    DailySchedule,
    HourlySchedule,
    IntervalSchedule,
    MonthlySchedule,
    Weekday,
    WeeklySchedule,
)
from horsies.model.schedule import ScheduleConfig, TaskSchedule

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
