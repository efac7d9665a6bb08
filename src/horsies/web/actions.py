"""Everything that the dashboard changes: each action is a POST to `/actions/NAME`, for operators only.

The dashboard has checked the role and the token before an action is called. `view.ops` acts as the user, so each action is in the audit.

Actions on many tasks (`/actions/cancel-matching`, `retry-matching`, `purge-matching`, `purge-queue`) take the fields of a `TaskFilter` by their names, such as
`task_name` or `statuses` (repeated), and run in batches: what takes more than two seconds continues after the answer, and its progress is at `/jobs/ID`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, Literal
from uuid import UUID

from starlette.responses import Response

from horsies.model.errors import HorsiesError, NodeNotFoundError
from horsies.model.status import TaskStatus
from horsies.model.text import plural
from horsies.ops.api import CHANGES, Ops
from horsies.ops.bulk import BulkAction
from horsies.tasks.inspect import TaskFilter
from horsies.web.live import Topic
from horsies.web.view import Flash, View

MAX_IDS: Final = 1_000
MAX_JOBS: Final = 50  # that are remembered
MAX_RUNNING_JOBS: Final = 4
WAIT_FOR_JOB_S: Final = 2.0

log = logging.getLogger("horsies.web")


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

    def filters(self) -> TaskFilter:
        """Read the fields of a `TaskFilter`, by their names."""
        names = {each.name for each in dataclass_fields(TaskFilter)}
        if unknown := self.fields.keys() - names - {"csrf", "back", "force"}:
            # To ignore a condition would act on more tasks than were meant.
            raise FormError(f"there is no condition {', '.join(sorted(unknown))}")
        given: dict[str, Any] = {"ids": [_parse_id(text) for text in self.many("ids")]} if "ids" in self.fields else {}
        for name in names - {"statuses", "ids"}:
            if len(set(filter(None, self.fields.get(name, ())))) > 1:
                raise FormError(f"the condition {name} is given twice")
            if (text := self.optional(name)) is not None:
                given[name] = _PARSERS.get(name, str)(text)
        if "error_summary" in self.fields:
            # The code or the message of an error group may be empty. Without that condition, the failures of other groups would be selected, too.
            given |= {
                name: self.optional(name) or "" for name in ("error_code", "error_summary") if name in self.fields
            }
        try:
            statuses = [TaskStatus(status) for status in self.fields.get("statuses", ()) if status]
        except ValueError as error:
            raise FormError(str(error)) from error
        return TaskFilter(statuses=statuses, **given)


def _parse_time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise FormError(f"{text[:40]!r} is not a time") from None


def _parse_id(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise FormError(f"{text[:40]!r} is not an id") from None


_PARSERS: Final[Mapping[str, Callable[[str], object]]] = {
    "since": _parse_time,
    "until": _parse_time,
    "worker": _parse_id,
    "workflow_id": _parse_id,
}


@dataclass(frozen=True, slots=True)
class Action:
    """An action: its name in the path, and what does it. It returns what to say on the page that the user goes back to, or a page of its own."""

    name: str
    act: Callable[[View, Form], Awaitable[Flash | Response]]


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
    await view.ops.set_queue_cap_async(name, int(text) if text else None)
    if not text:
        return Flash("success", f"Queue {name} has the cap of each app again.")
    return Flash("success", f"At most {text} tasks of queue {name} are in flight from now on.")


async def leave_worker(view: View, form: Form) -> Flash:
    """`id`."""
    found = await view.ops.request_leave_async([form.one("id")])
    asked = "The worker was asked to leave: it finishes its tasks and exits."
    return _changed(any(found.values()), asked, "This worker is not registered any more.")


async def ping_worker(view: View, form: Form) -> Flash:
    """`id`: requests a heartbeat, so that its children are shown as they are now."""
    found = await view.ops.request_heartbeats_async([form.one("id")])
    return Flash("info", "A heartbeat was requested.") if found else Flash("error", "This worker is not registered.")


async def run_schedule(view: View, form: Form) -> Flash:
    """`name`."""
    task_id = await view.ops.run_schedule_async(form.one("name"))
    return _changed(task_id is not None, f"Task {task_id} was sent.", "There is no such schedule.")


class Jobs:
    """Actions on many tasks. They run in batches, in tasks of this process: what was done stays done if one is stopped or the server ends."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self.topic = Topic("job", self._read, {"state": "live/job.html"}, interval_s=0.5)
        self.actions: Sequence[Action] = (
            Action("cancel-matching", self._cancel_matching),
            Action("retry-matching", self._retry_matching),
            Action("purge-matching", self._purge_matching),
            Action("purge-queue", self._purge_queue),
            Action("stop-job", self._stop),
        )

    async def show_all(self, view: View) -> Response:
        """List the jobs, the newest first: who has left the page of one finds it here."""
        return view.render("jobs.html", jobs=[*reversed(self._jobs.values())])

    async def show(self, view: View) -> Response:
        """Show the progress of a job."""
        job = self._jobs.get(view.path_params["job_id"])
        if job is None:
            raise NodeNotFoundError("This process of the dashboard has no such action. The audit has what it has done.")
        return view.render("job.html", job=job)

    async def close(self) -> None:
        """Stop all jobs at once. A batch that was not committed is undone by the server."""
        running = [job.task for job in self._jobs.values() if job.task and not job.task.done()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _cancel_matching(self, view: View, form: Form) -> Flash:
        """The fields of a `TaskFilter`."""
        return await self._start(view, "Cancel tasks", view.ops.cancel_matching(form.filters()))

    async def _retry_matching(self, view: View, form: Form) -> Flash:
        """The fields of a `TaskFilter`; `force`."""
        bulk = view.ops.retry_matching(form.filters(), force=form.checked("force"))
        return await self._start(view, "Retry tasks", bulk)

    async def _purge_matching(self, view: View, form: Form) -> Flash:
        """The fields of a `TaskFilter`."""
        return await self._start(view, "Delete tasks", view.ops.purge_matching(form.filters()))

    async def _purge_queue(self, view: View, form: Form) -> Flash:
        """`name`: cancels what has not started."""
        return await self._start(view, "Empty the queue", view.ops.purge_queue(form.one("name")))

    async def _stop(self, view: View, form: Form) -> Flash:
        """`id`."""
        job = self._jobs.get(form.one("id"))
        if job is None:
            return Flash(
                "error", "This process of the dashboard does not run it: it has ended, or another process runs it."
            )
        if job.task is None or job.task.done():
            return Flash("info", "It has ended already.")
        job.is_stopping = True  # first: it stops even if the database cannot be reached
        await view.ops.record_stop_async(job.action, job.target)
        return Flash("info", "It stops after the current batch. What was done stays done.", f"/jobs/{job.id}")

    async def _start(self, view: View, title: str, bulk: BulkAction) -> Flash:
        """Start a job, and wait for its end, but not for long."""
        if sum(job.state == "running" for job in self._jobs.values()) >= MAX_RUNNING_JOBS:
            raise FormError(f"{MAX_RUNNING_JOBS} actions on many tasks run already; wait for one of them, or stop it")
        job = Job(secrets.token_urlsafe(9), title, bulk.action, bulk.target, view.user.name)
        self._jobs[job.id] = job
        while len(self._jobs) > MAX_JOBS:
            oldest = next(job_id for job_id, old in self._jobs.items() if old.state != "running")
            del self._jobs[oldest]
        job.task = asyncio.create_task(job.run(bulk))
        job.task.add_done_callback(lambda _: self._on_end())
        await asyncio.wait([job.task], timeout=WAIT_FOR_JOB_S)
        if job.state == "running":
            return Flash(
                "info", f"{title}: this takes a while. It continues if you leave this page.", f"/jobs/{job.id}"
            )
        return Flash("success" if job.state == "done" else "error", f"{title}: {job.describe()}")

    async def _read(self, _ops: Ops, params: Mapping[str, str]) -> Mapping[str, object] | None:
        job = self._jobs.get(params.get("id", ""))
        return None if job is None else {"job": job}


@dataclass(slots=True, eq=False)
class Job:
    """One action on many tasks."""

    id: str
    title: str
    action: str
    """As the audit calls it."""
    target: str
    user: str
    state: Literal["running", "done", "stopped", "failed"] = "running"
    problem: str = ""
    selected: int = 0
    outcomes: Mapping[str, int] = field(default_factory=dict[str, int])
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    task: asyncio.Task[None] | None = None
    is_stopping: bool = False

    async def run(self, bulk: BulkAction) -> None:
        try:
            async for progress in bulk:
                self.selected, self.outcomes = progress.selected, progress.outcomes
                if self.is_stopping:
                    break
        except asyncio.CancelledError:
            self.state = "stopped"
            raise
        except HorsiesError as error:
            self.state, self.problem = "failed", str(error)
        except Exception:
            self.state, self.problem = "failed", "The log of the dashboard has the reason."
            log.exception("web: %s failed", self.title)
        else:
            self.state = "stopped" if self.is_stopping else "done"

    def describe(self) -> str:
        counts = ", ".join(f"{count:,} {name}" for name, count in self.outcomes.items())
        parts = [f"{plural(f'{self.selected:,}', 'task')} selected" if self.selected else "no task matches", counts]
        parts += ["stopped"] if self.state == "stopped" else []
        return "; ".join(filter(None, [*parts, self.problem]))


def _change(
    name: str, field_name: str, operation: Callable[[Ops], Callable[[str], Awaitable[bool]]], success: str, failure: str
) -> Action:
    """Make the action that calls one operation for what the field names."""

    async def act(view: View, form: Form) -> Flash:
        return _changed(await operation(view.ops)(form.one(field_name)), success, failure)

    return Action(name, act)


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
    _change("pause-workflow", "id", lambda ops: ops.pause_workflow_async, "The workflow is paused.", "It does not run."),
    _change("resume-workflow", "id", lambda ops: ops.resume_workflow_async, "The workflow continues.", "It is not paused."),
    _change("cancel-workflow", "id", lambda ops: ops.cancel_workflow_async, "The workflow is cancelled.", "It had ended already."),
    _change("retry-workflow", "id", lambda ops: ops.retry_workflow_async, "What failed or was skipped runs again.", "Nothing in it failed or was skipped."),
    _change("pause-schedule", "name", lambda ops: ops.pause_schedule_async, "The schedule is paused.", "It does not exist."),
    _change("resume-schedule", "name", lambda ops: ops.resume_schedule_async, "The schedule is resumed.", "It does not exist."),
    Action("run-schedule", run_schedule),
    _change("remove-schedule", "name", lambda ops: ops.remove_schedule_async, "The schedule is removed.", "There is no such schedule."),
)  # fmt: skip
