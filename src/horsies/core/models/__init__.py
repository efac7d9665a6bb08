"""Import paths that older documents use, such as `horsies.core.models.tasks`; use `from horsies import ...` instead.

Each path is a module without a file. It is registered here, because Python imports this package before anything in it, and takes every
name from `horsies` when the name is first used.
"""

import sys
from types import ModuleType
from typing import Any, Final

import horsies

OLD_MODULES: Final = {
    "app": "AppConfig Horsies",
    "broker": "PostgresBroker PostgresConfig",
    "recovery": "RecoveryConfig",
    "resilience": "WorkerResilienceConfig",
    "schedule": "CronSchedule DailySchedule HourlySchedule IntervalSchedule MonthlySchedule ScheduleConfig TaskSchedule Weekday "
    "WeeklySchedule",
    "tasks": "RetryPolicy TaskError TaskHandle TaskInfo TaskResult TaskStatus",
    "worker": "WorkerConfig",
    "workflow": "NodeKey NodeStatus OnError SubWorkflowNode SuccessCase SuccessPolicy TaskNode WorkflowContext WorkflowDefinition "
    "WorkflowHandle WorkflowMeta WorkflowSpec WorkflowStatus",
}


class _OldModule(ModuleType):
    def __init__(self, name: str, public: list[str]) -> None:
        super().__init__(f"{__name__}.{name}", "Names of `horsies` under an older import path.")
        self.__all__ = public

    def __getattr__(self, name: str) -> Any:
        if name in self.__all__:
            return getattr(horsies, name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


for _name, _public in OLD_MODULES.items():
    # Also as an attribute, for `import horsies.core.models.tasks`: Python sets it only for modules that it loads itself.
    sys.modules[f"{__name__}.{_name}"] = globals()[_name] = _OldModule(_name, _public.split())
