"""Import paths that older documents use, such as `horsies.core.models.tasks`; use `from horsies import ...` instead.

Each path is a module without a file. It is registered here, because Python imports this package before anything in it.
"""

import sys
from types import ModuleType
from typing import Final

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

for _name, _public in OLD_MODULES.items():
    _module = ModuleType(f"{__name__}.{_name}", "Names of `horsies` under an older import path.")
    vars(_module).update({"__all__": _public.split(), **{each: getattr(horsies, each) for each in _public.split()}})
    # Also as an attribute, for `import horsies.core.models.tasks`: Python sets it only for modules that it loads itself.
    sys.modules[_module.__name__] = globals()[_name] = _module
