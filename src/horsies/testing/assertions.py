"""List what is enqueued in the sandbox, and make assertions about it.

Arguments are compared in their stored form: the expected ones replace the stored ones, and the whole call is encoded again
by the task's own codec. Equal JSON means equal arguments, whatever `==` of their classes returns.
"""

import inspect
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from horsies.app import Horsies
from horsies.db.statement import Op, load, rows
from horsies.model.task import TaskId
from horsies.tasks.task import BaseTask
from horsies.testing.sandbox import sandbox_of

MAX_LISTED = 20

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A task that is waiting to run. `args` has its arguments by name, as JSON values. `due_in_s` is negative if it is due."""

    task_id: TaskId
    task_name: str
    queue_name: str
    priority: int
    key: str | None
    enqueued_at: datetime
    good_until: datetime | None
    attempts: int
    due_in_s: float
    args: Mapping[str, Any]

    def __str__(self) -> str:
        due = f"due in {self.due_in_s:.0f} s" if self.due_in_s > 0 else "due now"
        key = "" if self.key is None else f", key {self.key!r}"
        args = json.dumps(self.args, ensure_ascii=False)
        return f"{self.task_name} {args} on queue {self.queue_name!r}, priority {self.priority}{key}, {due}"


def enqueued(of: BaseTask[..., Any] | Horsies | None = None, *, connection: object | None = None) -> list[Enqueued]:
    """Return what is waiting to run, now or later: of one task, or of the whole app.

    With `connection`, query through the caller's own connection, inside its transaction.
    """
    broker = sandbox_of(of).broker
    run = broker.run if connection is None else partial(broker.run_on, connection)
    return [task for task in run(_get_enqueued) if not isinstance(of, BaseTask) or task.task_name == of.name]


def _get_enqueued() -> Op[list[Enqueued]]:
    found = yield from rows(SQL["get_enqueued_tasks"]())
    return [Enqueued(*row[:-1], args=json.loads(row[-1])) for row in found]


def assert_enqueued(
    task: BaseTask[..., Any],
    args: Mapping[str, object] | None = None,
    *,
    count: int | None = None,
    queue_name: str | None = None,
    priority: int | None = None,
    key: str | None = None,
    connection: object | None = None,
) -> list[Enqueued]:
    """Fail unless such a task is enqueued or, with `count`, exactly this number of them. Return them.

    `args` may contain only some of the task's arguments.
    """
    __tracebackhide__ = True
    expected = _Expected(task, args or {}, {"queue_name": queue_name, "priority": priority, "key": key})
    of_task = enqueued(task, connection=connection)
    matching = expected.matches(of_task)
    if (len(matching) == count) if count is not None else matching:
        return matching
    # List the other tasks, too: the right one may have been sent under another name.
    everything = enqueued(sandbox_of(task).app, connection=connection)
    others = [each for each in everything if each.task_name != task.name]
    problem = "is not enqueued" if count is None else f"is enqueued {len(matching)} times, expected {count}"
    raise AssertionError(f"{expected} {problem}; {_list([*of_task, *others])}")


def refute_enqueued(
    task: BaseTask[..., Any],
    args: Mapping[str, object] | None = None,
    *,
    queue_name: str | None = None,
    priority: int | None = None,
    key: str | None = None,
    connection: object | None = None,
) -> None:
    """Fail if such a task is enqueued."""
    __tracebackhide__ = True
    expected = _Expected(task, args or {}, {"queue_name": queue_name, "priority": priority, "key": key})
    if matching := expected.matches(enqueued(task, connection=connection)):
        raise AssertionError(f"{expected} is enqueued; {_list(matching)}")


@dataclass(frozen=True, slots=True)
class _Expected:
    task: BaseTask[..., Any]
    args: Mapping[str, object]
    options: Mapping[str, object]
    """Those that are None match anything."""

    def __str__(self) -> str:
        options = {name: value for name, value in self.options.items() if value is not None}
        described = [f"{name}={value!r}" for name, value in [*self.args.items(), *options.items()]]
        return f"task {self.task.name!r}" + (f" with {', '.join(described)}" if described else "")

    def matches(self, tasks: Sequence[Enqueued]) -> list[Enqueued]:
        parameters = self.task.arguments.signature.parameters
        if unknown := sorted(self.args.keys() - parameters.keys()):
            raise TypeError(
                f"task {self.task.name!r} has no argument {', '.join(unknown)}; it takes {', '.join(parameters) or 'none'}"
            )
        options = {name: value for name, value in self.options.items() if value is not None}
        having = [task for task in tasks if all(getattr(task, name) == value for name, value in options.items())]
        return [task for task in having if self._has_args(task)]

    def _has_args(self, task: Enqueued) -> bool:
        if not self.args:
            return True
        codec = self.task.arguments
        args, kwargs = codec.decode(json.dumps(task.args))
        stored = codec.signature.bind(*args, **kwargs).arguments
        # An argument that was omitted has its default, and may be expected with that value.
        omitted = self.args.keys() - stored.keys()
        stored |= {name: codec.signature.parameters[name].default for name in omitted}
        return self._encode(stored) == self._encode(stored | dict(self.args))

    def _encode(self, args: Mapping[str, object]) -> Any:
        bound = inspect.BoundArguments(self.task.arguments.signature, OrderedDict(args))
        return json.loads(self.task.arguments.encode(bound.args, bound.kwargs))


def _list(tasks: Sequence[Enqueued]) -> str:
    if not tasks:
        return "nothing is"
    lines = [f"\n  {task}" for task in tasks[:MAX_LISTED]]
    if len(tasks) > MAX_LISTED:
        lines.append(f"\n  and {len(tasks) - MAX_LISTED} more")
    return f"enqueued are:{''.join(lines)}"
