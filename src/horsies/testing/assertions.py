"""What is enqueued in the sandbox, and assertions about it.

Arguments are compared as they are stored: those that are asked for are put in place of the stored ones, and the whole call is encoded
again by the task's own codec. Equal JSON means equal arguments, whatever `==` says of their classes.
"""

import inspect
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from horsies.app import Horsies
from horsies.db.statement import Op, load, rows
from horsies.model.task import TaskId
from horsies.tasks.task import BaseTask
from horsies.testing.sandbox import sandbox_of, sandbox_of_task

SHOWN = 20

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A task that waits to be run. `args` has its arguments by name, as JSON values; `due_in_s` is negative when it is due."""

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
    """What waits to be run, now or later: of one task, or of the whole app. `connection` looks through the caller's own, inside
    their transaction.
    """
    sandbox = sandbox_of_task(of) if isinstance(of, BaseTask) else sandbox_of(of)
    run = sandbox.broker.run if connection is None else partial(sandbox.broker.run_on, connection)
    found = run(_get_enqueued)
    return [task for task in found if not isinstance(of, BaseTask) or task.task_name == of.name]


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
    """Fail unless such a task is enqueued, or, with `count`, exactly so many are. `args` may name some of its arguments only.

    Those that were found come back.
    """
    __tracebackhide__ = True
    there = enqueued(task, connection=connection)
    found = _matching(task, there, args, queue_name=queue_name, priority=priority, key=key)
    if (len(found) == count) if count is not None else found:
        return found
    asked = _asked(task, args, queue_name=queue_name, priority=priority, key=key)
    wanted = "is not enqueued" if count is None else f"is enqueued {_times(len(found))}, not {_times(count)}"
    raise AssertionError(f"{asked} {wanted}; {_listed(_everything(task, there, connection))}")


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
    there = enqueued(task, connection=connection)
    if found := _matching(task, there, args, queue_name=queue_name, priority=priority, key=key):
        asked = _asked(task, args, queue_name=queue_name, priority=priority, key=key)
        raise AssertionError(f"{asked} is enqueued; {_listed(found)}")


def _get_enqueued() -> Op[list[Enqueued]]:
    found = yield from rows(SQL["get_enqueued_tasks"]())
    return [Enqueued(*row[:-1], args=json.loads(row[-1])) for row in found]


def _matching(
    task: BaseTask[..., Any], there: Sequence[Enqueued], args: Mapping[str, object] | None, **others: object
) -> list[Enqueued]:
    asked = {name: value for name, value in others.items() if value is not None}
    has_args = _has(task, dict(args or {}))
    return [one for one in there if all(getattr(one, name) == value for name, value in asked.items()) and has_args(one)]


def _has(task: BaseTask[..., Any], asked: dict[str, object]) -> Callable[[Enqueued], bool]:
    codec = task.arguments
    parameters = codec.signature.parameters
    if unknown := sorted(asked.keys() - parameters.keys()):
        raise TypeError(
            f"task {task.name!r} has no argument {', '.join(unknown)}; it takes {', '.join(parameters) or 'none'}"
        )

    def encoded(given: Mapping[str, object]) -> Any:
        bound = inspect.BoundArguments(codec.signature, OrderedDict(given))
        return json.loads(codec.encode(bound.args, bound.kwargs))

    def has(one: Enqueued) -> bool:
        args, kwargs = codec.decode(json.dumps(one.args))
        stored = codec.signature.bind(*args, **kwargs)
        # An argument that was left out has its default, and may be asked for by it.
        missing = {name: parameters[name].default for name in asked.keys() - stored.arguments.keys()}
        whole = stored.arguments | missing
        return encoded(whole) == encoded(whole | asked)

    return has if asked else lambda _one: True


def _everything(task: BaseTask[..., Any], there: Sequence[Enqueued], connection: object | None) -> Sequence[Enqueued]:
    """This task first, then the others: the right one may have been sent by another name."""
    others = enqueued(sandbox_of_task(task).app, connection=connection)
    return [*there, *(one for one in others if one.task_name != task.name)]


def _asked(task: BaseTask[..., Any], args: Mapping[str, object] | None, **others: object) -> str:
    options = {name: value for name, value in others.items() if value is not None}
    given = [f"{name}={value!r}" for name, value in [*(args or {}).items(), *options.items()]]
    return f"task {task.name!r}" + (f" with {', '.join(given)}" if given else "")


def _listed(found: Sequence[Enqueued]) -> str:
    if not found:
        return "nothing is"
    lines = [f"\n  {one}" for one in found[:SHOWN]]
    if len(found) > SHOWN:
        lines.append(f"\n  and {len(found) - SHOWN} more")
    return f"enqueued are:{''.join(lines)}"


def _times(count: int) -> str:
    return {0: "not once", 1: "once"}.get(count, f"{count} times")
