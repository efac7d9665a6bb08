"""List what an app consists of, and everything that is wrong with it. Only `check_app` with `live` uses a database."""

import dataclasses
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from horsies.app import Horsies
from horsies.doctor.findings import context_for
from horsies.doctor.run import LIVE, run_doctor
from horsies.locate import import_tasks
from horsies.model.app_check import (
    AppCheck,
    CheckFinding,
    Inventory,
    KnownQueue,
    KnownSchedule,
    KnownTask,
    KnownWorkflow,
)
from horsies.model.errors import ConfigError, TaskDefinitionError, WorkflowDefinitionError
from horsies.schedules.sync import declared_schedules
from horsies.tasks.nodes import TaskNode
from horsies.tasks.task import BaseTask
from horsies.workflows.definition import WorkflowDefinition, nodes_of

# Looked up statically: `WorkflowDefinition.build_with` is another object each time.
_BUILD_WITH: Final = inspect.getattr_static(WorkflowDefinition, "build_with")


def check_app(app: Horsies, *, live: bool) -> AppCheck:
    """Return the result of `horsies check` as a value. The app stays open."""
    inventory = take_inventory(app, app.name)
    findings: list[CheckFinding] | None = None
    if live:
        report = run_doctor(app.broker.config, context_for(app, knows_app=True), checks=LIVE)
        findings = [
            CheckFinding(
                finding.code.name,
                finding.severity.word,
                finding.seen,
                finding.fix,
                finding.target and dataclasses.asdict(finding.target),
                finding.data,
            )
            for finding in report.findings
        ]
    fields = {field.name: getattr(inventory, field.name) for field in dataclasses.fields(inventory)}
    return AppCheck(**fields, name=app.name, findings=findings)


def take_inventory(app: Horsies, name: str) -> Inventory:
    """Import the task modules of an app, and list its contents and problems. Problems refer to the app by `name`."""
    problems: list[str] = []
    modules = import_tasks(app, name, on_error=lambda error: problems.append(str(error)))
    for task in app.tasks.values():
        try:
            _ = task.options  # what its on_failure names is looked up
        except TaskDefinitionError as error:
            problems.append(str(error))
    counts = Counter(task.queue_name for task in app.tasks.values())
    return Inventory(
        modules=modules,
        queues=[KnownQueue(q.name, q.priority, q.max_concurrency, counts[q.name]) for q in app.config.queues],
        tasks=[_known_task(task) for task in app.tasks.values()],
        workflows=list(_workflows(app, problems.append)),
        schedules=list(_schedules(app, problems)),
        child_start_hooks=[_qualified_name(hook) for hook in app.child_start_hooks],
        child_stop_hooks=[_qualified_name(hook) for hook in app.child_stop_hooks],
        middleware=[_qualified_name(each.function) for each in app.middlewares],
        problems=problems,
    )


def _known_task(task: BaseTask[..., Any]) -> KnownTask:
    policy = task.retry_policy
    return KnownTask(
        name=task.name,
        queue=task.queue_name,
        retries=policy.max_retries if policy else 0,
        retry_for=[*policy.codes, *(error.__name__ for error in policy.exceptions)] if policy else [],
        timeout_ms=task.timeout_ms,
        is_async=task.is_async,
        on_failure=task.on_failure.name if isinstance(task.on_failure, BaseTask) else task.on_failure,
        function=_qualified_name(task.function),
    )


def _schedules(app: Horsies, problems: list[str]) -> Iterator[KnownSchedule]:
    try:
        declared_schedules(app.config, app.known_tasks)
    except ConfigError as error:
        problems += error.problems
    for each in app.config.schedule.schedules if app.config.schedule else ():
        yield KnownSchedule(each.name, each.task_name, str(each.pattern), each.timezone, each.enabled)


def _workflows(app: Horsies, add_problem: Callable[[str], None]) -> Iterator[KnownWorkflow]:
    """Build the classes that the imported modules define with this app's tasks. One with parameters is only listed."""
    for definition in _definitions(WorkflowDefinition):
        if inspect.getattr_static(definition, "build_with") is not _BUILD_WITH:
            yield KnownWorkflow(_name(definition), _qualified_name(definition), None)
        elif _belongs_to(app, definition):
            try:
                spec = definition.build(app)
            except WorkflowDefinitionError as error:
                add_problem(str(error))
            except Exception as error:  # noqa: BLE001 - a class may have a build() of its own, which is user code
                add_problem(f"workflow {_name(definition)!r}: {type(error).__name__}: {error}")
            else:
                yield KnownWorkflow(spec.name, _qualified_name(definition), len(spec.graph.nodes))


def _definitions(base: type[WorkflowDefinition[Any]]) -> Iterator[type[WorkflowDefinition[Any]]]:
    for definition in base.__subclasses__():
        yield definition
        yield from _definitions(definition)


def _belongs_to(app: Horsies, definition: type) -> bool:
    """Return whether it has nodes, and not only tasks of another app that was imported too."""
    nodes = nodes_of(definition).values()
    tasks = [node.fn for node in nodes if isinstance(node, TaskNode) and isinstance(node.fn, BaseTask)]
    return bool(nodes) and (not tasks or any(app.tasks.get(task.name) is task for task in tasks))


def _name(definition: type) -> str:
    return str(getattr(definition, "name", definition.__name__))


def _qualified_name(thing: Any) -> str:
    inner = inspect.unwrap(thing)
    return f"{getattr(inner, '__module__', '?')}.{getattr(inner, '__qualname__', repr(inner))}"
