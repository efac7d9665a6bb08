"""Checks of what is in the queue: tasks, workers, workflows and schedules."""

from collections.abc import Iterator, Sequence

from horsies.db.statement import Op, Query, Row, execute, load, rows
from horsies.doctor.findings import CheckContext, Finding, FindingCode
from horsies.model.validation import format_duration
from horsies.model.worker_config import RECYCLING_DOMINATES
from horsies.tasks.queues import QueueSummary, list_queues
from horsies.tasks.unknown import MAX_COUNTED, list_unknown_tasks
from horsies.workflows.inspect import get_stuck_workflows

LIMIT = 1_000
MAX_NAMED = 3  # in the text of a finding
MAX_LISTED = 10  # in its data
ELECTION_S = 10.0  # by then a worker that has just started, or the next candidate, has taken the maintenance lease
SLOT_OVERDUE_S = 60.0  # by then any running scheduler has handled the slot

SQL = load(__file__)

# -- tasks


def check_stuck(context: CheckContext) -> Op[list[Finding]]:
    """Find tasks that the maintenance leader, or any worker, should have handled within seconds."""
    after_s, grace_ms = context.stuck_after_s, context.recovery.grace_ms
    queries: dict[FindingCode, Query] = {
        FindingCode.TASKS_ORPHANED: SQL["get_orphans"](after_s=after_s, limit=LIMIT),
        FindingCode.LEASES_EXPIRED: SQL["get_expired_leases"](after_s=after_s, limit=LIMIT),
        FindingCode.TASKS_OVERTIME: SQL["get_overtime_tasks"](after_s=after_s, grace_ms=grace_ms, limit=LIMIT),
        FindingCode.PROMOTION_LATE: SQL["get_unpromoted_tasks"](after_s=after_s, limit=LIMIT),
        FindingCode.EXPIRY_LATE: SQL["get_unexpired_tasks"](after_s=after_s, limit=LIMIT),
        FindingCode.CANCEL_IGNORED: SQL["get_ignored_cancels"](after_s=after_s, grace_ms=grace_ms, limit=LIMIT),
    }
    results = yield from execute(*queries.values())
    findings: list[Finding] = []
    for code, tasks in zip(queries, results, strict=True):
        if tasks:
            longest_s = max(seconds or 0.0 for _, _, seconds in tasks)
            count = f"{LIMIT} or more" if len(tasks) == LIMIT else f"{len(tasks)}"
            named = _enumerate([f"{task_id} ({name})" for task_id, name, _ in tasks])
            seen = f"{count} task{'' if len(tasks) == 1 else 's'}: {named}; for up to {format_duration(longest_s)}"
            data = {"count": len(tasks), "task_ids": [row[0] for row in tasks[:MAX_LISTED]], "seconds": longest_s}
            findings.append(Finding(code, seen, data))
    return findings


def check_waiting(context: CheckContext) -> Op[list[Finding]]:
    queues = yield from list_queues(LIMIT)
    served = {queue for (queue,) in (yield from rows(SQL["get_served_queues"](stale_s=context.stale_after_s)))}
    return [
        finding for queue in queues for finding in _waiting_findings(context, queue, is_served=queue.name in served)
    ]


def _waiting_findings(context: CheckContext, queue: QueueSummary, *, is_served: bool) -> Iterator[Finding]:
    oldest_s = queue.oldest_waiting_s
    if oldest_s is None:
        return
    count = f"{queue.waiting} or more" if queue.more_waiting else f"{queue.waiting}"
    seen = f"{count} tasks wait in queue {queue.name!r}, the oldest for {format_duration(oldest_s)}"
    data = {"queue": queue.name, "oldest_s": oldest_s, "waiting": queue.waiting}
    if queue.paused_at is not None:
        paused = f"{seen}; it has been paused since {queue.paused_at:%Y-%m-%d %H:%M:%S%z}"
        yield Finding(FindingCode.QUEUE_PAUSED, paused, data)
    if not is_served and oldest_s > context.stuck_after_s:
        yield Finding(FindingCode.QUEUE_UNSERVED, seen, data)
    elif queue.paused_at is None and oldest_s > context.max_wait_s:
        yield Finding(FindingCode.WAITING_LONG, seen, data)


def check_unknown(_context: CheckContext) -> Op[list[Finding]]:
    """Find tasks that wait for a worker that can run them."""
    findings: list[Finding] = []
    for tasks in (yield from list_unknown_tasks()):
        count = f"{tasks.count} or more" if tasks.count >= MAX_COUNTED else f"{tasks.count}"
        seen = f"{count} tasks named {tasks.task_name!r} wait since {tasks.since:%Y-%m-%d %H:%M:%S%z}"
        data = {"task_name": tasks.task_name, "count": tasks.count, "since": tasks.since.isoformat()}
        code = FindingCode.TASKS_CHANGED if tasks.is_refused else FindingCode.TASKS_UNKNOWN
        findings.append(Finding(code, seen, data))
    return findings


def check_caps(context: CheckContext) -> Op[list[Finding]]:
    """Find caps of the app that are exceeded. Which caps a worker uses is not stored, so only this shows a difference."""
    caps = {queue.name: queue.max_concurrency for queue in context.queues or () if queue.max_concurrency is not None}
    queues = (yield from list_queues(LIMIT)) if caps else []
    return [
        Finding(
            FindingCode.CAP_EXCEEDED,
            f"{in_flight} tasks of queue {queue.name!r} are in flight, and max_concurrency is {caps[queue.name]}",
            {"queue": queue.name, "in_flight": in_flight, "max_concurrency": caps[queue.name]},
        )
        for queue in queues
        if (in_flight := queue.claimed + queue.running) > caps.get(queue.name, in_flight)
    ]


# -- workers


def check_workers(context: CheckContext) -> Op[list[Finding]]:
    """Check whether workers are live, one of them is the maintenance leader, and they agree with each other and the app."""
    workers, lags, clashes = yield from execute(
        SQL["get_workers"](), SQL["get_maintenance_lag"](), SQL["get_task_clashes"](stale_after_s=context.stale_after_s)
    )
    stale = [row for row in workers if row[5] > context.stale_after_s]
    live = [row for row in workers if row[5] <= context.stale_after_s]
    findings: list[Finding] = []
    if stale:
        named = _enumerate([f"{host} pid {pid} ({format_duration(age_s)})" for _, host, pid, _, _, age_s, *_ in stale])
        seen = f"{len(stale)} workers send no heartbeats: {named}"
        findings.append(Finding(FindingCode.STALE_WORKERS, seen, {"worker_ids": [row[0] for row in stale]}))
    if not live:
        return [*findings, Finding(FindingCode.NO_WORKERS, "no worker is live")]
    findings += [*_leader_findings(live, lags), *_version_findings(live), *_queue_findings(context, live)]
    if costly := [row for row in live if (row[8] or 0.0) >= RECYCLING_DOMINATES]:
        named = _enumerate([f"{host} pid {pid} ({share:.0%})" for _, host, pid, *_, share in costly])
        seen = f"{len(costly)} workers spend much of their children's time on starting them: {named}"
        data = {"worker_ids": [row[0] for row in costly], "share": max(row[8] for row in costly)}
        findings.append(Finding(FindingCode.RECYCLING_DOMINATES, seen, data))
    if clashes:
        named = _enumerate([f"{name} (of apps {', '.join(apps)})" for name, apps in clashes])
        seen = f"{len(clashes)} task names are in more than one app: {named}"
        data = {"tasks": {name: list(apps) for name, apps in clashes}}
        findings.append(Finding(FindingCode.TASK_NAME_CLASH, seen, data))
    return findings


def _leader_findings(live: Sequence[Row], lags: Sequence[Row]) -> Iterator[Finding]:
    if max(row[6] for row in live) <= ELECTION_S:
        return  # all of them have just started
    if not lags:
        seen = f"{len(live)} workers are live, and none of them holds the maintenance lease"
        yield Finding(FindingCode.LEADER_MISSING, seen)
    for (expired_s,) in lags:
        if expired_s > ELECTION_S:
            yield Finding(FindingCode.LEADER_MISSING, f"the maintenance lease expired {format_duration(expired_s)} ago")


def _version_findings(live: Sequence[Row]) -> Iterator[Finding]:
    versions = sorted({row[4] for row in live})
    if len(versions) > 1:
        counts = {version: sum(row[4] == version for row in live) for version in versions}
        words = ", ".join(f"{count} of {version}" for version, count in counts.items())
        yield Finding(FindingCode.WORKER_VERSIONS_DIFFER, f"workers are live: {words}", {"workers": counts})


def _queue_findings(context: CheckContext, live: Sequence[Row]) -> Iterator[Finding]:
    if context.queues is None:
        return
    declared, served = {queue.name for queue in context.queues}, {queue for row in live for queue in row[3]}
    if unserved := sorted(declared - served):
        seen = f"no worker serves {', '.join(unserved)}"
        yield Finding(FindingCode.QUEUE_WITHOUT_WORKER, seen, {"queues": unserved})
    served_for_app = {queue for row in live if row[7] in (None, context.app, context.locator) for queue in row[3]}
    if unknown := sorted(served_for_app - declared):
        yield Finding(FindingCode.QUEUE_UNKNOWN, f"workers serve {', '.join(unknown)}", {"queues": unknown})


# -- workflows


def check_workflows(context: CheckContext) -> Op[list[Finding]]:
    """Find workflows that make no progress.

    In a healthy system some are between two steps for an instant, so only those that are in the same state a little later count.
    """
    first = yield from get_stuck_workflows()
    if not first:
        return []
    yield from rows(SQL["sleep"](seconds=context.recheck_after_s))
    still = [stuck for stuck in (yield from get_stuck_workflows()) if stuck in first]
    if not still:
        return []
    roots = sorted({stuck.root_id for stuck in still})
    named = _enumerate([f"{stuck.root_id}: {stuck.reason}" for stuck in still], "; ")
    data = {"count": len(roots), "workflow_ids": roots[:MAX_LISTED]}
    return [Finding(FindingCode.WORKFLOWS_STUCK, f"{len(roots)} workflows: {named}", data)]


# -- schedules


def check_schedules(_context: CheckContext) -> Op[list[Finding]]:
    """Check whether a scheduler serves the schedules, and whether each belongs to an app."""
    overdue, unowned = yield from execute(
        SQL["get_overdue_schedules"](overdue_s=SLOT_OVERDUE_S), SQL["get_unowned_schedules"]()
    )
    findings: list[Finding] = []
    if overdue:
        named = _enumerate([f"{name} ({format_duration(late_s)})" for name, late_s in overdue])
        seen = f"slots of {len(overdue)} schedules are overdue: {named}"
        findings.append(Finding(FindingCode.SCHEDULES_UNSERVED, seen, {"schedules": [name for name, _ in overdue]}))
    if unowned:
        names = [name for (name,) in unowned]
        seen = f"{len(names)} schedules belong to no app: {_enumerate(names)}"
        findings.append(Finding(FindingCode.SCHEDULES_WITHOUT_APP, seen, {"schedules": names}))
    return findings


def check_owners(context: CheckContext) -> Op[list[Finding]]:
    """Find schedules that the app declares and that another app has stored."""
    if not context.schedules:
        return []
    own = [name for name in (context.app, context.locator) if name is not None]
    clashes = yield from rows(SQL["get_name_clashes"](names=list(context.schedules), own=own))
    if not clashes:
        return []
    named = _enumerate([f"{name} (of app {app})" for name, app in clashes])
    seen = f"{len(clashes)} schedules that app {context.app} declares belong to other apps: {named}"
    return [Finding(FindingCode.SCHEDULE_CLASH, seen, {"schedules": dict(clashes)})]


def _enumerate(names: Sequence[str], separator: str = ", ") -> str:
    more = [*names[:MAX_NAMED], "…"] if len(names) > MAX_NAMED else names
    return separator.join(more)
