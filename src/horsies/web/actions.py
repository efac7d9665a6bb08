"""Everything that the dashboard changes: each action is a POST to `/actions/NAME`, for operators only.

The dashboard has checked the role and the token before an action is called. `view.ops` acts as the user, so each action is in the audit.

Actions on many tasks (`/actions/cancel-matching`, `retry-matching`, `purge-matching`, `purge-queue`) take the fields of a `TaskFilter` by their names, such as
`task_name` or `statuses` (repeated), and run in batches: what takes more than two seconds continues after the answer, and its progress is at `/jobs/ID`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from horsies.model.errors import ConfigError
from horsies.ops.api import CHANGES
from horsies.web.view import Flash, View

MAX_IDS: Final = 1_000


class FormError(ValueError):
    """A field of a form is missing or has no valid value."""


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form; each may be there several times."""

    fields: Mapping[str, Sequence[str]]

    def one(self, name: str) -> str:
        values = self.fields.get(name, ())
        if len(values) != 1 or not values[0]:
            raise FormError(f"the field {name} is required once")
        return values[0]

    def optional(self, name: str) -> str | None:
        return next((value for value in self.fields.get(name, ()) if value), None)

    def many(self, name: str) -> list[str]:
        values = [value for value in dict.fromkeys(self.fields.get(name, ())) if value]
        if not 1 <= len(values) <= MAX_IDS:
            raise FormError(f"select between 1 and {MAX_IDS}")
        return values

    def checked(self, name: str) -> bool:
        return self.optional(name) is not None


@dataclass(frozen=True, slots=True)
class Action:
    """An action: its name in the path, and what does it."""

    name: str
    act: Callable[[View, Form], Awaitable[Flash]]


async def cancel_tasks(view: View, form: Form) -> Flash:
    """`id`, repeated."""
    return _summary("Cancel", (await view.ops.cancel_tasks_async(form.many("id"))).values())


async def retry_tasks(view: View, form: Form) -> Flash:
    """`id`, repeated; `force` retries those that are refused without it."""
    outcomes = await view.ops.retry_tasks_async(form.many("id"), force=form.checked("force"))
    return _summary("Retry", outcomes.values())


async def pause_queue(view: View, form: Form) -> Flash:
    """`name`."""
    await view.ops.pause_queue_async(name := form.one("name"))
    return Flash("success", f"Queue {name} is paused: no worker claims its tasks.")


async def resume_queue(view: View, form: Form) -> Flash:
    """`name`."""
    await view.ops.resume_queue_async(name := form.one("name"))
    return Flash("success", f"Queue {name} is resumed.")


async def set_queue_cap(view: View, form: Form) -> Flash:
    """`name`, and `cap`, which is empty to reset it."""
    name, text = form.one("name"), (form.optional("cap") or "").strip()
    if text and not re.fullmatch(r"[0-9]{1,9}", text):
        raise FormError("the cap is not a number")
    try:
        await view.ops.set_queue_cap_async(name, int(text) if text else None)
    except ValueError as error:
        raise FormError(str(error)) from error
    if not text:
        return Flash("success", f"Queue {name} has the cap of each app again.")
    return Flash("success", f"At most {text} tasks of queue {name} are in flight from now on.")


async def leave_worker(view: View, form: Form) -> Flash:
    """`id`."""
    found = await view.ops.request_leave_async([form.one("id")])
    if not any(found.values()):
        return Flash("error", "This worker is not registered any more.")
    return Flash("success", "The worker was asked to leave: it finishes its tasks and exits.")


async def ping_worker(view: View, form: Form) -> Flash:
    """`id`: requests a heartbeat, so that its children are shown as they are now."""
    found = await view.ops.request_heartbeats_async([form.one("id")])
    return Flash("info", "A heartbeat was requested.") if found else Flash("error", "This worker is not registered.")


async def pause_workflow(view: View, form: Form) -> Flash:
    """`id`."""
    return _changed(await view.ops.pause_workflow_async(form.one("id")), "The workflow is paused.", "It does not run.")


async def resume_workflow(view: View, form: Form) -> Flash:
    """`id`."""
    return _changed(
        await view.ops.resume_workflow_async(form.one("id")), "The workflow continues.", "It is not paused."
    )


async def cancel_workflow(view: View, form: Form) -> Flash:
    """`id`."""
    return _changed(
        await view.ops.cancel_workflow_async(form.one("id")), "The workflow is cancelled.", "It had ended already."
    )


async def retry_workflow(view: View, form: Form) -> Flash:
    """`id`."""
    return _changed(
        await view.ops.retry_workflow_async(form.one("id")),
        "What failed or was skipped runs again.",
        "Nothing in it failed or was skipped.",
    )


async def pause_schedule(view: View, form: Form) -> Flash:
    """`name`."""
    return _changed(
        await view.ops.pause_schedule_async(form.one("name")), "The schedule is paused.", "It does not exist."
    )


async def resume_schedule(view: View, form: Form) -> Flash:
    """`name`."""
    return _changed(
        await view.ops.resume_schedule_async(form.one("name")), "The schedule is resumed.", "It does not exist."
    )


async def run_schedule(view: View, form: Form) -> Flash:
    """`name`."""
    task_id = await view.ops.run_schedule_async(form.one("name"))
    return _changed(task_id is not None, f"Task {task_id} was sent.", "There is no such schedule.")


async def remove_schedule(view: View, form: Form) -> Flash:
    """`name`."""
    try:
        found = await view.ops.remove_schedule_async(form.one("name"))
    except ConfigError as error:
        raise FormError(str(error)) from error
    return _changed(found, "The schedule is removed.", "There is no such schedule.")


def _changed(was_changed: bool, success: str, failure: str) -> Flash:  # noqa: FBT001 - what the operation returned
    return Flash("success", success) if was_changed else Flash("error", failure)


def _summary(verb: str, outcomes: Iterable[Enum]) -> Flash:
    counts = Counter(outcomes)
    has_changed = any(outcome.name in CHANGES for outcome in counts)
    lines = [f"{count} {outcome.name}: {outcome.value}" for outcome, count in counts.most_common()]
    return Flash("success" if has_changed else "error", f"{verb}: " + "; ".join(lines))


ACTIONS: Sequence[Action] = (
    Action("cancel-tasks", cancel_tasks),
    Action("retry-tasks", retry_tasks),
    Action("pause-queue", pause_queue),
    Action("resume-queue", resume_queue),
    Action("set-queue-cap", set_queue_cap),
    Action("leave-worker", leave_worker),
    Action("ping-worker", ping_worker),
    Action("pause-workflow", pause_workflow),
    Action("resume-workflow", resume_workflow),
    Action("cancel-workflow", cancel_workflow),
    Action("retry-workflow", retry_workflow),
    Action("pause-schedule", pause_schedule),
    Action("resume-schedule", resume_schedule),
    Action("run-schedule", run_schedule),
    Action("remove-schedule", remove_schedule),
)
