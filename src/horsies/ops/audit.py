"""The record of what operators have done.

A row is written before the action, and completed with a count after it. So an action that was cut off is in the record, too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from horsies.db.statement import Op, load, rows
from horsies.model.errors import ConfigError
from horsies.ops.operation import Verb
from horsies.tasks.ids import new_task_id

MAX_TEXT = 1_000  # characters

SQL = load(__file__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One action. `count` is the number of things that it changed; None if it has not ended, or was cut off."""

    id: str
    at: datetime
    actor: str
    action: str
    target: str
    count: int | None


def begin_action(entry_id: str, actor: str, action: str, target: str) -> Op[None]:
    texts = {"actor": actor[:MAX_TEXT], "action": action[:MAX_TEXT], "target": target[:MAX_TEXT]}
    yield from rows(SQL["begin_action"](id=entry_id, **texts))


def end_action(entry_id: str, count: int) -> Op[None]:
    yield from rows(SQL["end_action"](id=entry_id, count=count))


def audited(actor: str, action: str, target: str, verb: Verb[T], count: Callable[[T], int] = int) -> Verb[T]:
    """Record what a verb does. `count` tells from its result how many things it has changed."""
    entry_id = new_task_id()

    def run() -> Op[T]:
        yield from begin_action(entry_id, actor, action, target)
        try:
            result = yield from verb()
        except ConfigError:  # refused, so nothing was changed
            yield from end_action(entry_id, 0)
            raise
        yield from end_action(entry_id, count(result))
        return result

    return run


def list_actions(*, limit: int, after: str | None = None) -> Op[list[AuditEntry]]:
    """Return the newest actions, or those after the last one of the previous page."""
    return [AuditEntry(*row) for row in (yield from rows(SQL["list_actions"](limit=limit, after=after)))]
