"""The overview, the queues, the workers, the doctor and the audit."""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final
from weakref import WeakKeyDictionary

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from horsies.doctor.findings import Finding, FindingCode
from horsies.model.graph import WorkflowStatus
from horsies.model.status import TaskStatus
from horsies.ops.api import Ops
from horsies.ops.statistics import MinutePoint
from horsies.tasks.ids import to_task_id
from horsies.tasks.inspect import TaskFilter, TaskSummary, WorkerSummary
from horsies.tasks.queues import QueueSummary
from horsies.tasks.workers import to_worker_id
from horsies.web.charts import Bucket, latency_chart, load_chart, memory_chart, throughput_chart, to_buckets
from horsies.web.live import RARE_SHARE, Params, Topic
from horsies.web.view import Page, View

HOUR, DAY = 60, 24 * 60
DAY_BUCKET: Final = 10  # minutes
KEEP_DAY_S: Final = 600.0  # less than an hour, which is read each time
MAX_DAYS: Final = 50
TOP: Final = 5
FINDINGS, ALIKE = 8, 3  # how many the overview has, and how many of one kind
LONGEST: Final = 8
UNDER_WAY: Final = 6
FEW: Final = 12  # rows of a table on the overview
STALE_S: Final = 15.0  # since a heartbeat
MAX_STATES: Final = 300
PER_PAGE: Final = 50
ROWS_PER_PAGE: Final = 100  # of queues, and of workers
MAX_PAGE_DIGITS: Final = 6
MAX_DEAD: Final = 30  # each with what became of up to 100 tasks
OPEN: Final = (WorkflowStatus.RUNNING, WorkflowStatus.PAUSED, WorkflowStatus.PENDING)


@dataclass(frozen=True, slots=True)
class Remedy:
    """A button beside a finding: an action on what the finding is about."""

    action: str
    label: str
    field: str
    confirm: str | None = None


REMEDIES: Final[Mapping[FindingCode, Sequence[Remedy]]] = {
    FindingCode.QUEUE_PAUSED: [Remedy("resume-queue", "Resume", "name")],
    FindingCode.QUEUE_BLOCKED: [
        Remedy("cancel-tasks", "Cancel the task", "id", "Cancel the task that blocks the queue?")
    ],
    FindingCode.SCHEDULE_FAILING: [Remedy("pause-schedule", "Pause", "name")],
    FindingCode.WORKFLOW_PAUSED: [Remedy("resume-workflow", "Resume", "id")],
    FindingCode.WORKFLOW_PAUSED_BY_ERROR: [
        Remedy("retry-workflow", "Retry", "id"),
        Remedy("resume-workflow", "Go on without it", "id"),
    ],
}


def _data_of_findings(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return what a list of findings shows, the worst first."""
    ordered = sorted(findings, key=lambda each: -each.severity)
    return {"findings": ordered, "more": 0, "is_brief": False, "remedies": REMEDIES}


def _data_of_worst_findings(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return what the overview shows: those that fit the first screen, each in a line or two. Many of one kind must not hide another kind."""
    data = _data_of_findings(findings)
    seen, shown = Counter[FindingCode](), list[Finding]()
    for finding in data["findings"]:
        seen[finding.code] += 1
        if len(shown) < FINDINGS and seen[finding.code] <= ALIKE:
            shown.append(finding)
    return {**data, "findings": shown, "more": len(findings) - len(shown), "is_brief": True}


# -- the overview


async def show_overview(view: View) -> Response:
    data, server = await asyncio.gather(_read_parts(OVERVIEW, view.ops, view.query), view.ops.get_server_info_async())
    return view.render("overview.html", **data, server=server)


async def _read_parts(topic: Topic, ops: Ops, params: Params) -> dict[str, Any]:
    """Read all that a page shows."""
    parts = await asyncio.gather(*(part.read(ops, params) for part in (topic, *topic.others)))
    return {name: value for part in parts if part is not None for name, value in part.items()}


async def _read_now(ops: Ops, _params: Params) -> dict[str, Any]:
    """Read what changes all the time."""
    queues, running, workers = await asyncio.gather(
        read_all_queues(ops),
        ops.list_running_async(limit=LONGEST),
        ops.list_workers_async(),
    )
    return {
        "queues": sorted(queues, key=_is_busy)[:FEW],
        "queue_count": len(queues),
        "waiting": sum(queue.waiting for queue in queues),
        "more_waiting": any(queue.more_waiting for queue in queues),
        "in_flight": sum(queue.running for queue in queues),
        "running": running,
        "workers": sorted(workers, key=_is_missing)[:FEW],
        "worker_count": len(workers),
        "stale_s": STALE_S,
    }


async def _read_findings(ops: Ops, _params: Params) -> dict[str, Any]:
    return _data_of_worst_findings(await ops.findings_async())


async def _read_charts(ops: Ops, params: Params) -> dict[str, Any]:
    return await read_series(ops, _minutes(params))


async def _read_others(ops: Ops, params: Params) -> dict[str, Any]:
    minutes = _minutes(params)
    errors, dead, workflows, counts = await asyncio.gather(
        ops.error_groups_async(hours=minutes / 60, limit=TOP),
        ops.list_dead_workers_async(limit=TOP),
        ops.list_workflows_async(statuses=OPEN, limit=UNDER_WAY),
        ops.count_workflows_async(),
    )
    return {
        "minutes": minutes,
        "errors": errors,
        "dead": dead,
        "runs": workflows.runs,
        "run_counts": counts,
        "stale_s": STALE_S,
    }


def _is_busy(queue: QueueSummary) -> tuple[bool, float, str]:
    """Order by what waits for the longest."""
    return (queue.paused_at is None, -(queue.oldest_waiting_s or 0), queue.name)


def _is_missing(worker: WorkerSummary) -> bool:
    return worker.heartbeat_age_s < STALE_S


def _minutes(params: Params) -> int:
    return DAY if params.get("minutes") == str(DAY) else HOUR


async def read_series(ops: Ops, minutes: int, **names: str) -> dict[str, Any]:
    """Read what `live/charts.html` shows: of all tasks, of a queue or of a task."""
    points = await (_read_day(ops, names) if minutes == DAY else ops.time_series_async(minutes=HOUR, **names))
    buckets: list[Bucket] = to_buckets(points, DAY_BUCKET if minutes == DAY else 1)
    return {
        "minutes": minutes,
        "buckets": buckets,
        "charts": [throughput_chart(buckets), latency_chart(buckets)],
        "totals": {
            "completed": sum(bucket.completed for bucket in buckets),
            "failed": sum(bucket.failed for bucket in buckets),
            "other": sum(bucket.other for bucket in buckets),
        },
        "is_complete": all(bucket.is_complete for bucket in buckets),
    }


async def _read_day(ops: Ops, names: Mapping[str, str]) -> Sequence[MinutePoint]:
    """Read the last hour now, and use what was before it as it was some minutes ago: it hardly changes, and takes twenty times as long to read."""
    kept = _days.setdefault(ops.broker, OrderedDict())
    key = tuple(sorted(names.items()))
    hour = await ops.time_series_async(minutes=HOUR, **names)
    read_at, day = kept.get(key, (0.0, ()))
    if not day or time.monotonic() - read_at > KEEP_DAY_S or day[-1].minute < hour[0].minute:
        read_at, day = time.monotonic(), await ops.time_series_async(minutes=DAY, **names)
        kept[key] = read_at, day
        if len(kept) > MAX_DAYS:
            kept.popitem(last=False)
    oldest = hour[-1].minute - timedelta(minutes=DAY - 1)
    return [*(point for point in day if oldest <= point.minute < hour[0].minute), *hour]


_days: WeakKeyDictionary[object, OrderedDict[tuple[tuple[str, str], ...], tuple[float, Sequence[MinutePoint]]]]
_days = WeakKeyDictionary()
"""For each database, the series of all tasks, of a queue or of a task, and when they were read."""


# -- queues


async def show_queues(view: View) -> Response:
    return view.render("queues.html", **await read_queues(view.ops, view.query))


async def read_queues(ops: Ops, params: Params) -> dict[str, Any]:
    queues, totals = await asyncio.gather(read_all_queues(ops), ops.queue_totals_async())
    page = _page(params)
    return {
        **_cut_page("queues", queues, page),
        "totals": {each.name: each for each in totals},
    }


def _page(params: Params) -> int:
    text = params.get("page", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_PAGE_DIGITS else 0


def _cut_page(name: str, rows: Sequence[object], page: int) -> dict[str, Any]:
    """Return the rows of a page, and whether there are others."""
    first = page * ROWS_PER_PAGE
    return {
        name: rows[first : first + ROWS_PER_PAGE],
        "page": page,
        "has_more": len(rows) > first + ROWS_PER_PAGE,
        "total": len(rows),
    }


async def read_all_queues(ops: Ops) -> list[QueueSummary]:
    """Read the queues as they are now. Only to count many waiting tasks takes long, and those that are not due: these counts are read as statistics are."""
    states, counted = await asyncio.gather(ops.list_queue_states_async(), ops.list_queues_async())
    counts = {queue.name: queue for queue in counted}
    queues = [_add_counts(queue, counts.pop(queue.name, None)) for queue in states]
    # They have nothing else, or had something else a moment ago.
    later = [queue for queue in counts.values() if queue.scheduled or queue.retrying]
    queues += [_add_counts(QueueSummary(queue.name, cap=queue.cap), queue) for queue in later]
    return sorted(queues, key=lambda queue: queue.name)


def _add_counts(queue: QueueSummary, counts: QueueSummary | None) -> QueueSummary:
    if counts is None:
        return queue
    is_counted = queue.more_waiting and counts.waiting >= queue.waiting
    return replace(
        queue,
        waiting=counts.waiting if is_counted else queue.waiting,
        more_waiting=counts.more_waiting if is_counted else queue.more_waiting,
        scheduled=counts.scheduled,
        retrying=counts.retrying,
        more_not_due=counts.more_not_due,
    )


async def show_queue(view: View) -> Response:
    name = view.name
    if not name:
        return RedirectResponse(view.url("/queues"), 303)
    purge = None
    if "purge" in view.query:
        filters = TaskFilter(queue_name=name, statuses=[TaskStatus.PENDING, TaskStatus.CLAIMED])
        purge = await view.ops.preview_count_async(filters)
    data = await _read_parts(QUEUE, view.ops, {**view.query, "name": name})
    return view.render("queue.html", **data, purge=purge)


async def _read_queue_now(ops: Ops, params: Params) -> dict[str, Any]:
    name = params.get("name", "")
    queues, workers, findings = await asyncio.gather(
        read_all_queues(ops), ops.list_workers_async(), ops.findings_async()
    )
    queue = next((each for each in queues if each.name == name), None)
    return {
        **_data_of_findings([each for each in findings if each.data.get("queue") == name]),
        "queue": queue or QueueSummary(name),
        "exists": queue is not None,
        "workers": [worker for worker in workers if name in worker.queues][:PER_PAGE],
        "stale_s": STALE_S,
    }


async def _read_queue_history(ops: Ops, params: Params) -> dict[str, Any]:
    name, minutes = params.get("name", ""), _minutes(params)
    series, totals = await asyncio.gather(
        read_series(ops, minutes, queue_name=name),
        ops.task_totals_async(minutes=minutes, queue_name=name),
    )
    return {**series, "task_totals": totals[:PER_PAGE]}


# -- workers


async def show_workers(view: View) -> Response:
    return view.render("workers.html", **await read_workers(view.ops, view.query))


async def read_workers(ops: Ops, params: Params) -> dict[str, Any]:
    workers, dead = await asyncio.gather(ops.list_workers_async(), ops.list_dead_workers_async(limit=MAX_DEAD))
    shown = _cut_page("workers", sorted(workers, key=_is_missing), _page(params))
    return {**shown, "dead": dead, "max_dead": MAX_DEAD, "stale_s": STALE_S}


async def show_worker(view: View) -> Response:
    data = await read_worker(view.ops, view.path_params)
    if data is None:
        raise HTTPException(404)
    return view.render("worker.html", **data)


async def read_worker(ops: Ops, params: Params) -> dict[str, Any] | None:
    """Read all that is known of a worker; None if nothing is known of it, or not any more."""
    try:
        worker_id = to_worker_id(params.get("worker_id", ""))
    except ValueError:
        return None
    children, states, workers = await asyncio.gather(
        ops.list_children_async(worker_id),
        ops.list_worker_states_async(worker_id, limit=MAX_STATES),
        ops.list_workers_async(),
    )
    worker = next((each for each in workers if each.id == worker_id), None)
    dead = await ops.list_dead_workers_async() if worker is None else []
    death = next((each for each in dead if each.id == worker_id), None)
    if worker is None and death is None and not states:
        return None
    tasks: Sequence[TaskSummary] = []
    if death is not None and death.task_ids:
        tasks = (await ops.list_tasks_async(TaskFilter(ids=death.task_ids), limit=len(death.task_ids))).tasks
    history = states[::-1]
    return {
        "worker_id": worker_id,
        "worker": worker,
        "death": death,
        "children": children,
        "tasks": tasks,
        "state": states[0] if states else None,
        "states": history,
        "charts": [memory_chart(history), load_chart(history)] if len(history) > 1 else [],
        "stale_s": STALE_S,
    }


# -- the doctor


async def show_doctor(view: View) -> Response:
    is_full = "all" in view.query
    started = time.monotonic()
    findings = await (_run_all_checks(view.ops) if is_full else view.ops.findings_async())
    took_s = time.monotonic() - started
    return view.render("doctor.html", **_data_of_findings(findings), is_full=is_full, took_s=took_s)


async def _run_all_checks(ops: Ops) -> Sequence[Finding]:
    """Run all checks, once at a time for all who request it: it takes seconds, a thread and connections of its own."""
    running = _checks.get(ops.broker)
    if running is None or running.done():
        running = _checks[ops.broker] = asyncio.ensure_future(ops.findings_async(all_checks=True))
    return await asyncio.shield(running)


_checks: WeakKeyDictionary[object, asyncio.Future[list[Finding]]] = WeakKeyDictionary()


async def read_doctor(ops: Ops, _params: Params) -> dict[str, Any]:
    return _data_of_findings(await ops.findings_async())


# -- the audit


async def show_audit(view: View) -> Response:
    try:
        after = to_task_id(view.query["after"]) if "after" in view.query else None
    except ValueError:
        raise HTTPException(404) from None
    entries = await view.ops.list_audit_async(limit=PER_PAGE + 1, after=after)
    more = entries[PER_PAGE - 1].id if len(entries) > PER_PAGE else None
    return view.render("audit.html", entries=entries[:PER_PAGE], more=more, is_first=after is None)


PAGES: Sequence[Page] = (
    Page("/", show_overview, shares_reads=True),
    Page("/queues", show_queues, shares_reads=True),
    Page("/queues/{name:path}", show_queue, shares_reads=True),
    Page("/workers", show_workers),
    Page("/workers/{worker_id}", show_worker),
    Page("/doctor", show_doctor),
    Page("/audit", show_audit),
)
OVERVIEW: Final = Topic(
    "overview",
    _read_now,
    {name: f"live/{name}.html" for name in ("now", "few_queues", "running", "few_workers")},
    others=(
        Topic("overview: findings", _read_findings, {"findings": "live/findings.html"}, share=RARE_SHARE),
        Topic(
            "overview: charts",
            _read_charts,
            {"totals": "live/totals.html", "charts": "live/charts.html"},
            share=RARE_SHARE,
        ),
        Topic(
            "overview: others",
            _read_others,
            {name: f"live/{name}.html" for name in ("few_errors", "few_dead", "few_runs")},
            share=RARE_SHARE,
        ),
    ),
)
QUEUE: Final = Topic(
    "queue",
    _read_queue_now,
    {"state": "live/queue.html", "workers": "live/few_workers.html"},
    others=(
        Topic(
            "queue: history",
            _read_queue_history,
            {"charts": "live/charts.html", "tasks": "live/queue_tasks.html"},
            share=RARE_SHARE,
        ),
    ),
)
TOPICS: Sequence[Topic] = (
    OVERVIEW,
    QUEUE,
    Topic("queues", read_queues, {"queues": "live/queues.html"}),
    Topic("workers", read_workers, {"workers": "live/workers.html", "dead": "live/dead_workers.html"}),
    Topic(
        "worker",
        read_worker,
        {"state": "live/worker.html", "children": "live/children.html", "charts": "live/worker_charts.html"},
    ),
    Topic("doctor", read_doctor, {"findings": "live/findings.html"}, share=RARE_SHARE),
)
