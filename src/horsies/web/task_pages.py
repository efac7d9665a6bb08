"""The pages of tasks: the list, one task, actions on all tasks that match, groups of errors, and the search.

The conditions of a list are the fields of a `TaskFilter`, by their names, in its URL. What is relative in a URL, such as `since=2h`, is made absolute by the
clock of the database before anything is shown or changed, so a confirmation page acts on what it has counted.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from horsies.model.status import TaskStatus
from horsies.model.validation import parse_duration
from horsies.ops.api import Ops, TaskView
from horsies.ops.ids import ID_LENGTH
from horsies.ops.statistics import ErrorGroup
from horsies.tasks.attempts import Attempt
from horsies.tasks.ids import to_task_id
from horsies.tasks.inspect import FINAL, LIVE, TaskCount, TaskFilter, TaskSummary
from horsies.web.actions import Action, Form, FormError
from horsies.web.filters import make_url, segment
from horsies.web.live import Topic
from horsies.web.view import Page, View

PAGE_SIZE: Final = 50
MAX_RUNNING: Final = 1_000  # of the running tasks, those that have run for the longest are filtered
MAX_COUNTED: Final = 500  # of the newest tasks of each table, beside a list
MAX_NEW: Final = 20  # new tasks that are counted
MAX_GROUPS: Final = 50
MAX_FOUND: Final = 10  # of each kind, by the search
SAMPLE: Final = 5
CHARACTERS: Final = 20_000  # of arguments, and of a result
LIST_INTERVAL_S: Final = 2.0
ERRORS_INTERVAL_S: Final = 5.0
HOURS: Final = (1, 6, 24)
ID_LIKE: Final = 8  # characters, from which on a text that begins an id is not searched among names
RECENT_MINUTES: Final = 60  # the names of tasks that have ended since then are searched by any part of them

_FIELDS: Final = tuple(each.name for each in fields(TaskFilter))
_OF_RUNNING: Final = frozenset({"task_name", "queue_name", "worker"})
"""The conditions that the list of running tasks takes."""
_FOLDED: Final = frozenset({"until", "worker", "workflow_id", "schedule_name", "key", "ids"})
"""The conditions that the form folds away."""
_ID_PREFIX: Final = re.compile(r"[0-9a-fA-F-]{4,36}")

Given = Mapping[str, Sequence[str]]
"""Conditions as they stand in a URL."""


# -- conditions


def _given(query: QueryParams) -> dict[str, list[str]]:
    """Return the conditions of a URL. Several statuses may be one field with commas."""
    given = {name: query.getlist(name) for name in _FIELDS if name in query}
    # Of an error group, the code and the message may be empty.
    given = {name: values for name, values in given.items() if any(values) or "error_summary" in given}
    if "statuses" in given:
        given["statuses"] = [status for text in given["statuses"] for status in text.upper().split(",") if status]
    return given


async def _read_filter(ops: Ops, given: Given, now: datetime) -> TaskFilter:
    """Read conditions. Raises FormError, which says what is wrong with one."""
    values = dict(given)
    for name in values.keys() & {"since", "until"}:
        values[name] = [_to_absolute(values[name][-1].strip(), now)]
    for name, find in (("worker", ops.find_worker_ids_async), ("workflow_id", ops.find_workflow_ids_async)):
        if values.get(name):
            values[name] = [await _find_id(find, name.removesuffix("_id"), values[name][-1].strip().lower())]
    if "ids" in values:
        try:
            values["ids"] = [to_task_id(task_id) for task_id in values["ids"]]
        except ValueError as error:
            raise FormError(str(error)) from error
    return Form(values).filters()


def _to_absolute(text: str, now: datetime) -> str:
    seconds = parse_duration(text)
    if seconds is None:
        return text
    try:
        return (now - timedelta(seconds=seconds)).isoformat()
    except OverflowError:
        raise FormError(f"{text!r} is too long ago") from None


async def _find_id(find: Callable[..., Awaitable[list[str]]], what: str, prefix: str) -> str:
    if not _ID_PREFIX.fullmatch(prefix):
        raise FormError(f"{prefix[:40]!r} is not the id of a {what}, nor the beginning of one")
    if len(prefix) == ID_LENGTH:
        found = [str(UUID(prefix))] if _is_uuid(prefix) else []
    else:
        found = await find(prefix, limit=2)
    if len(found) != 1:
        number = "several ids" if found else "no id"
        raise FormError(f"{number} of a {what} {'start' if found else 'starts'} with {prefix}")
    return found[0]


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def to_query(filters: TaskFilter) -> dict[str, list[str]]:
    """Return the fields of a URL, or of a form, that select these tasks."""
    query: dict[str, list[str]] = {}
    for name in _FIELDS:
        match getattr(filters, name):
            case None | [] | ():
                pass
            case str() as text:
                query[name] = [text]
            case datetime() as time:
                query[name] = [time.isoformat()]
            case values:
                query[name] = [str(value) for value in values]
    return query


# -- the list


async def show_tasks(view: View) -> Response:
    given, after, is_running = _given(view.query), view.query.get("after"), view.query.get("order") == "running"
    now = await view.ops.read_clock_async()
    common: dict[str, Any] = {
        "given": given, "has_more": bool(given.keys() & _FOLDED), "clock": now, "zone": now.astimezone().tzname(), "is_running": is_running, "after": after, "statuses": TaskStatus,
    }  # fmt: skip
    try:
        filters = await _read_filter(view.ops, given, now)
        after_id = to_task_id(after) if after else None
    except ValueError as error:
        empty: dict[str, Any] = {"rows": [], "page": None, "count": None, "live": None, "filters": None, "left_out": []}
        return view.render("tasks.html", status=400, problem=str(error), **common, **empty)
    count = page = None
    left_out: list[str] = []
    if is_running:
        tasks = await _list_running(view.ops, filters)
        left_out = [name for name in given if name not in _OF_RUNNING]
    else:
        page = await view.ops.list_tasks_async(filters, limit=PAGE_SIZE, after=after_id)
        tasks = page.tasks
        if filters.message is not None:  # comparing texts takes too long to count them
            count = (
                TaskCount(len(tasks), is_complete=page.next_after is None)
                if after_id is None
                else TaskCount(0, is_complete=False)
            )
        elif page.next_after is not None or after_id is not None:
            count = await view.ops.preview_count_async(filters, newest=MAX_COUNTED)
    return view.render(
        "tasks.html", problem=None, rows=[(task.id, task) for task in tasks], page=page, count=count, filters=filters, left_out=left_out,
        live=_live_url(view, tasks, given, is_first=after is None and not is_running), **common,
    )  # fmt: skip


async def _list_running(ops: Ops, filters: TaskFilter) -> list[TaskSummary]:
    """List the running tasks, those that have run for the longest first."""
    wanted = {name: value for name in _OF_RUNNING if (value := getattr(filters, name)) is not None}
    running = await ops.list_running_async(limit=MAX_RUNNING if wanted else PAGE_SIZE)
    return [task for task in running if all(getattr(task, name) == value for name, value in wanted.items())][:PAGE_SIZE]


def _live_url(view: View, tasks: Sequence[TaskSummary], given: Given, *, is_first: bool) -> str:
    """Return the stream of the rows of a page. That of the first page also counts the tasks that were sent since."""
    conditions = {name: ",".join(values) for name, values in given.items()} if is_first else {}
    return view.url(
        "/live/tasks",
        rows=",".join(task.id for task in tasks),
        first="1" if is_first else None,
        **conditions,
    )


async def read_tasks(ops: Ops, params: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Read the rows of a page again, in their order. Those that were deleted are None."""
    try:
        ids = [to_task_id(task_id) for task_id in params.get("rows", "").split(",") if task_id][:PAGE_SIZE]
    except ValueError:
        return None
    now, found, new = await ops.read_clock_async(), dict[str, TaskSummary](), 0
    if ids:
        page = await ops.list_tasks_async(TaskFilter(ids=ids), limit=len(ids))
        found = {task.id: task for task in page.tasks}
    if "first" in params:
        try:
            filters = await _read_filter(ops, _given(QueryParams(dict(params))), now)
        except FormError:
            return None
        newest = await ops.list_tasks_async(filters, limit=MAX_NEW)
        new = sum(task.id > max(ids, default="") for task in newest.tasks)
    rows = [(task_id, found.get(task_id)) for task_id in ids]
    return {"rows": rows, "new": new, "max_new": MAX_NEW, "clock": now}


# -- actions on all that match


@dataclass(frozen=True, slots=True)
class _Bulk:
    """What the confirmation page of an action on all matching tasks says."""

    verb: str
    allowed: Sequence[TaskStatus]
    """The statuses of the tasks that it can act on."""
    default: Sequence[TaskStatus]
    """Those that it acts on if the filter has none."""


_BULK: Final = {
    "retry": _Bulk("Retry", FINAL, [TaskStatus.FAILED]),
    "cancel": _Bulk("Cancel", LIVE, LIVE),
    "purge": _Bulk("Delete", FINAL, FINAL),
}


async def confirm_bulk(view: View) -> Response:
    """Show what an action on all matching tasks would change, and ask. The form has the filter that was counted."""
    action, given = view.query.get("action", ""), _given(view.query)
    if (bulk := _BULK.get(action)) is None:
        raise HTTPException(404)
    back = view.query.get("back") or make_url("", "/tasks", **given)
    now = await view.ops.read_clock_async()
    common: dict[str, Any] = {"action": action, "verb": bulk.verb, "clock": now, "back": back}
    try:
        selected, left_out = await _select(view.ops, given, bulk, now)
    except FormError as error:
        return view.render("tasks_bulk.html", status=400, problem=str(error), **common)
    count = await view.ops.preview_count_async(selected)
    sample = await view.ops.list_tasks_async(selected, limit=SAMPLE)
    return view.render(
        "tasks_bulk.html", problem=None, filters=selected, fields=to_query(selected), count=count, sample=sample.tasks,
        left_out=left_out, **common,
    )  # fmt: skip


async def _select(ops: Ops, given: Given, bulk: _Bulk, now: datetime) -> tuple[TaskFilter, Sequence[TaskStatus]]:
    """Return the filter with the statuses that the action can act on, and those that it leaves alone."""
    if not given:
        raise FormError("choose at least one condition: this would act on all tasks")
    filters = await _read_filter(ops, given, now)
    statuses = [status for status in filters.statuses or bulk.default if status in bulk.allowed]
    if not statuses:
        raise FormError(f"{bulk.verb.lower()}: not for tasks that are {' or '.join(filters.statuses)}")
    return replace(filters, statuses=statuses), [status for status in filters.statuses if status not in statuses]


# -- one task


@dataclass(frozen=True, slots=True)
class AttemptBar:
    """An attempt with its place in the timeline, in percent; None if its times are not known."""

    attempt: Attempt
    left: float | None = None
    width: float | None = None


def place_attempts(attempts: Sequence[Attempt], now: datetime) -> list[AttemptBar]:
    """Place the attempts on a line from the first start to the last end, or to now."""
    spans = [
        (attempt.started_at, max(attempt.started_at, attempt.ended_at or now)) if attempt.started_at else None
        for attempt in attempts
    ]
    known = [span for span in spans if span is not None]
    if not known:
        return [AttemptBar(attempt) for attempt in attempts]
    first = min(start for start, _ in known)
    whole = max((max(end for _, end in known) - first).total_seconds(), 0.001)
    bars: list[AttemptBar] = []
    for attempt, span in zip(attempts, spans, strict=True):
        if span is None:
            bars.append(AttemptBar(attempt))
            continue
        width = max(100 * (span[1] - span[0]).total_seconds() / whole, 1.5)
        left = min(100 * (span[0] - first).total_seconds() / whole, 100 - width)
        bars.append(AttemptBar(attempt, round(left, 2), round(width, 2)))
    return bars


async def show_task(view: View) -> Response:
    """Show a task. The beginning of an id leads to the task, if there is only one."""
    given = view.path_params["task_id"]
    if not _is_uuid(given):
        found = await view.ops.find_task_ids_async(given, limit=2)
        if len(found) == 1:
            return RedirectResponse(view.url(f"/tasks/{found[0]}"), 303)
        raise HTTPException(404)
    task_id = to_task_id(given)
    variables = await _read_page(view.ops, task_id, view.query.get("log"))
    if variables is None:
        message = f"There is no task {task_id}: it was never sent, its transaction has not committed yet, or it was deleted after its retention."
        return view.render("error.html", status=404, code=404, message=message)
    return view.render("task.html", **variables)


async def reveal_task(view: View, form: Form) -> Response:
    """Show what is hidden of the sensitive task `id`. The answer is the page, which is not live: only this viewer gets the values."""
    variables = await _read_page(view.ops, to_task_id(form.one("id")), form.optional("log"), reveal=True)
    if variables is None:
        raise HTTPException(404)
    return view.render("task.html", **variables)


async def _read_page(ops: Ops, task_id: str, chosen: str | None, *, reveal: bool = False) -> dict[str, Any] | None:
    """Read a task with the log of one attempt: the chosen one, by its claim number, or the newest that has one."""
    variables = await _read_task(ops, task_id, reveal=reveal)
    if variables is None:
        return None
    found: TaskView = variables["task"]
    logged = [attempt.claim_no for attempt in found.attempts if attempt.has_logs]
    claim_no = next((each for each in logged if str(each) == chosen), logged[-1] if logged else None)
    logs = await ops.list_attempt_logs_async(task_id, claim_no=claim_no, limit=1, reveal=reveal) if logged else []
    return variables | {"log": logs[0] if logs else None}


async def read_task(ops: Ops, params: Mapping[str, str]) -> Mapping[str, Any] | None:
    return await _read_task(ops, to_task_id(params["id"])) if _is_uuid(params.get("id", "")) else None


async def _read_task(ops: Ops, task_id: str, *, reveal: bool = False) -> dict[str, Any] | None:
    found = await ops.show_task_async(task_id, payload=True, characters=CHARACTERS, reveal=reveal)
    if found is None:
        return None
    now = await ops.read_clock_async()
    return {
        "task": found, "info": found.info, "detail": found.detail, "clock": now, "bars": place_attempts(found.attempts, now),
        "hides": found.is_sensitive and not reveal, "is_revealed": reveal, "is_cut": _is_cut, "durations": _durations(found, now),
    }  # fmt: skip


def _is_cut(text: str | None) -> bool:
    return text is not None and len(text) >= CHARACTERS


def _durations(task: TaskView, now: datetime) -> Mapping[str, float | None]:
    """Return how long the task waited, from due to start, and ran, in seconds."""
    info = task.info
    end = info.started_at or info.finished_at or now
    waited = (end - info.enqueued_at).total_seconds()
    ran = ((info.finished_at or now) - info.started_at).total_seconds() if info.started_at else None
    return {"waited": max(0.0, waited), "ran": None if ran is None else max(0.0, ran)}


# -- groups of errors


async def show_errors(view: View) -> Response:
    hours = _read_hours(view.query.get("hours"))
    task_name = view.query.get("task_name") or None
    live = view.url("/live/errors", hours=hours, task_name=task_name)
    return view.render("errors.html", live=live, **await _read_groups(view.ops, hours, task_name))


async def read_errors(ops: Ops, params: Mapping[str, str]) -> Mapping[str, Any]:
    return await _read_groups(ops, _read_hours(params.get("hours")), params.get("task_name") or None)


def _read_hours(text: str | None) -> int:
    return next((hours for hours in HOURS if str(hours) == text), HOURS[-1])


async def _read_groups(ops: Ops, hours: int, task_name: str | None) -> dict[str, Any]:
    now = await ops.read_clock_async()
    groups = await ops.error_groups_async(hours=hours, limit=MAX_GROUPS, task_name=task_name)
    return {
        "groups": [(group, _group_query(group)) for group in groups], "hours": hours, "all_hours": HOURS, "task_name": task_name, "clock": now,
        "max_groups": MAX_GROUPS, "back": make_url("", "/errors", hours=hours, task_name=task_name),
    }  # fmt: skip


def _group_query(group: ErrorGroup) -> dict[str, list[str]]:
    """Return the conditions that select the failures of a group. The group without a name has only a time."""
    if group.task_name:
        return to_query(group.to_filter())
    until = group.last_at + timedelta(microseconds=1)
    return to_query(TaskFilter(statuses=[TaskStatus.FAILED], since=group.first_at, until=until))


# -- the search


@dataclass(frozen=True, slots=True)
class Hit:
    """Something that the search has found."""

    kind: str
    name: str
    url: str
    is_exact: bool = False


async def search(view: View) -> Response:
    """Find what an id or a name belongs to. If there is only one such thing, go there."""
    text = view.query.get("q", "").strip()
    hits = await _find(view, text) if text else []
    exact = [hit for hit in hits if hit.is_exact]
    if len(hits) == 1 or len(exact) == 1:
        return RedirectResponse((exact or hits)[0].url, 303)
    return view.render("search.html", q=text, hits=hits, max_found=MAX_FOUND)


async def _find(view: View, text: str) -> list[Hit]:
    by_id = await _find_by_id(view, text)
    if by_id and len(text) >= ID_LIKE:
        return by_id
    found = await asyncio.gather(_find_by_name(view, text), _find_by_key(view, text))
    return [hit for hits in (by_id, *found) for hit in hits]


async def _find_by_id(view: View, text: str) -> list[Hit]:
    prefix = text.lower()
    if not _ID_PREFIX.fullmatch(prefix):
        return []
    kinds = {
        "task": ("/tasks", view.ops.find_task_ids_async),
        "workflow": ("/workflows", view.ops.find_workflow_ids_async),
        "worker": ("/workers", view.ops.find_worker_ids_async),
    }
    found = await asyncio.gather(*(find(prefix, limit=MAX_FOUND) for _, find in kinds.values()))
    return [
        Hit(kind, each, view.url(f"{path}/{each}"), is_exact=each == prefix)
        for (kind, (path, _)), ids in zip(kinds.items(), found, strict=True)
        for each in ids
    ]


async def _find_by_name(view: View, text: str) -> list[Hit]:
    ops = view.ops
    queues, schedules, totals, sent, runs = await asyncio.gather(
        ops.list_queue_states_async(),
        ops.list_schedules_async(),
        ops.task_totals_async(minutes=RECENT_MINUTES),
        ops.list_tasks_async(TaskFilter(task_name=text), limit=1),
        ops.list_workflows_async(name=text, limit=1),
    )
    tasks = {total.name for total in totals if total.name} | {task.task_name for task in sent.tasks}
    workflows = {text} if runs.runs else set[str]()
    places: list[tuple[str, set[str], Callable[[str], str]]] = [
        ("task name", tasks, lambda name: view.url("/tasks", task_name=name)),
        ("queue", {queue.name for queue in queues}, lambda name: view.url(f"/queues/{segment(name)}")),
        ("schedule", {schedule.name for schedule in schedules}, lambda name: view.url(f"/schedules/{segment(name)}")),
        ("workflow name", workflows, lambda name: view.url("/workflows", name=name)),
    ]
    return [
        Hit(kind, name, to_url(name), is_exact=name == text)
        for kind, names, to_url in places
        for name in sorted(name for name in names if text.lower() in name.lower())[:MAX_FOUND]
    ]


async def _find_by_key(view: View, text: str) -> list[Hit]:
    page = await view.ops.list_tasks_async(TaskFilter(key=text), limit=1)
    return [Hit("key", text, view.url("/tasks", key=text), is_exact=True)] if page.tasks else []


# -- for templates


def error_data(data: object) -> str | None:
    """Return the data of an error as JSON, for `payload`. None if there is none, or if it is a traceback, which is shown by itself."""
    match data:
        case None | {"traceback": str()}:
            return None
        case _:
            return json.dumps(data, ensure_ascii=False, default=str)


def traceback_of(data: object) -> str | None:
    match data:
        case {"traceback": str() as traceback}:
            return traceback.rstrip() or None
        case _:
            return None


PAGES: Sequence[Page] = (
    Page("/tasks", show_tasks),
    Page("/tasks/bulk", confirm_bulk),
    Page("/tasks/{task_id}", show_task),
    Page("/errors", show_errors, shares_reads=True),
    Page("/search", search),
)
TOPICS: Sequence[Topic] = (
    Topic(
        "tasks",
        read_tasks,
        {"rows": "live/task_rows.html", "new": "live/new_tasks.html"},
        interval_s=LIST_INTERVAL_S,
    ),
    Topic(
        "task",
        read_task,
        {"state": "live/task_state.html", "attempts": "live/task_attempts.html", "outcome": "live/task_outcome.html"},
    ),
    Topic("errors", read_errors, {"groups": "live/error_groups.html"}, interval_s=ERRORS_INTERVAL_S),
)
FILTERS: Mapping[str, Callable[..., Any]] = {
    "error_data": error_data,
    "traceback": traceback_of,
}
ACTIONS: Sequence[Action] = (Action("reveal-task", reveal_task),)
