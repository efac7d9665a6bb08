"""Tasks: those that are stuck, and those that wait for too long, for nobody, or behind a pause."""

from collections.abc import Iterator, Sequence

from horsies.db.statement import Op, Query, Row, execute, load, rows
from horsies.doctor.findings import LISTED, NAMED, CheckContext, Finding, FindingCode, tasks
from horsies.model.validation import format_duration
from horsies.tasks.queues import QueueSummary, list_queues
from horsies.tasks.unknown import MAX_COUNTED, list_unknown_tasks
from horsies.workflows.inspect import get_stuck_workflows

LIMIT = 1_000

SQL = load(__file__)


def check_stuck(case: CheckContext) -> Op[list[Finding]]:
    """What the keeper, or any worker, sees to within seconds, if there is one."""
    grace_ms = case.recovery.grace_ms
    looks: dict[FindingCode, Query] = {
        FindingCode.TASKS_ORPHANED: SQL["get_orphans"](after_s=case.stuck_after_s, limit=LIMIT),
        FindingCode.LEASES_PAST: SQL["get_expired_leases"](after_s=case.stuck_after_s, limit=LIMIT),
        FindingCode.TASKS_OVERTIME: SQL["get_overtime_tasks"](
            after_s=case.stuck_after_s, grace_ms=grace_ms, limit=LIMIT
        ),
        FindingCode.PROMOTION_LATE: SQL["get_unpromoted_tasks"](after_s=case.stuck_after_s, limit=LIMIT),
        FindingCode.EXPIRY_LATE: SQL["get_unexpired_tasks"](after_s=case.stuck_after_s, limit=LIMIT),
        FindingCode.CANCEL_UNHEARD: SQL["get_ignored_cancels"](
            after_s=case.stuck_after_s, grace_ms=grace_ms, limit=LIMIT
        ),
    }
    answers = yield from execute(*looks.values())
    found: list[Finding] = []
    for code, answer in zip(looks, answers, strict=True):
        if answer:
            longest = max(row[2] or 0.0 for row in answer)
            seen = f"{tasks(answer, LIMIT)}; for up to {format_duration(longest)}"
            known = {"count": len(answer), "task_ids": [row[0] for row in answer[:LISTED]], "seconds": longest}
            found.append(Finding(code, seen, known))
    return found


def check_waiting(case: CheckContext) -> Op[list[Finding]]:
    lines = yield from list_queues(LIMIT)
    served = yield from rows(SQL["get_served_queues"](stale_s=case.stale_after_s))
    queues = {queue for (queue,) in served}
    return [finding for line in lines for finding in _of_queue(case, line, is_served=line.name in queues)]


def _of_queue(case: CheckContext, line: QueueSummary, *, is_served: bool) -> Iterator[Finding]:
    oldest_s = line.oldest_waiting_s
    if oldest_s is None:
        return
    count = f"{line.waiting} or more" if line.more_waiting else f"{line.waiting}"
    seen = f"{count} tasks wait in queue {line.name!r}, the oldest for {format_duration(oldest_s)}"
    known = {"queue": line.name, "oldest_s": oldest_s, "waiting": line.waiting}
    if line.paused_at is not None:
        yield Finding(
            FindingCode.QUEUE_PAUSED, f"{seen}; it is paused since {line.paused_at:%Y-%m-%d %H:%M:%S%z}", known
        )
    if not is_served and oldest_s > case.stuck_after_s:
        yield Finding(FindingCode.QUEUE_UNSERVED, seen, known)
    elif line.paused_at is None and oldest_s > case.max_wait_s:
        yield Finding(FindingCode.WAITING_LONG, seen, known)


def check_unknown(_case: CheckContext) -> Op[list[Finding]]:
    """What waits for a worker that can run it."""
    found: list[Finding] = []
    for line in (yield from list_unknown_tasks()):
        count = f"{line.count} or more" if line.count >= MAX_COUNTED else f"{line.count}"
        seen = f"{count} tasks named {line.task_name!r} wait since {line.since:%Y-%m-%d %H:%M:%S%z}"
        known = {"task_name": line.task_name, "count": line.count, "since": line.since.isoformat()}
        found.append(Finding(FindingCode.TASKS_CHANGED if line.is_refused else FindingCode.TASKS_UNKNOWN, seen, known))
    return found


def check_caps(case: CheckContext) -> Op[list[Finding]]:
    """Which caps a worker minds is not written down anywhere; that one is exceeded can be seen."""
    caps = {queue.name: queue.max_concurrency for queue in case.queues or () if queue.max_concurrency is not None}
    lines = (yield from list_queues(LIMIT)) if caps else []
    return [
        Finding(
            FindingCode.CAP_EXCEEDED,
            f"{in_flight} tasks of queue {line.name!r} are in flight, and max_concurrency is {caps[line.name]}",
            {"queue": line.name, "in_flight": in_flight, "max_concurrency": caps[line.name]},
        )
        for line in lines
        if (in_flight := line.claimed + line.running) > caps.get(line.name, in_flight)
    ]


# --------
# Workers: whether they live, whether one of them is the keeper, and whether they agree with each other and with the app.

SETTLED_S = 10.0  # by then a worker that has just started, or the next in line, has taken the lease


def check_workers(case: CheckContext) -> Op[list[Finding]]:
    workers, lag, clashes = yield from execute(
        SQL["get_workers"](), SQL["get_maintenance_lag"](), SQL["get_task_clashes"](stale_after_s=case.stale_after_s)
    )
    stale = [row for row in workers if row[5] > case.stale_after_s]
    living = [row for row in workers if row[5] <= case.stale_after_s]
    found: list[Finding] = []
    if stale:
        named = ", ".join(
            f"{host} pid {pid} ({format_duration(silent)})" for _, host, pid, _, _, silent, *_ in stale[:NAMED]
        )
        seen = f"{len(stale)} workers are silent: {named}{', …' if len(stale) > NAMED else ''}"
        found.append(Finding(FindingCode.STALE_WORKERS, seen, {"worker_ids": [row[0] for row in stale]}))
    if not living:
        return [*found, Finding(FindingCode.NO_WORKERS, "no worker is alive")]
    return [
        *found,
        *_leader_missing(living, lag),
        *_versions_differ(living),
        *_queues_differ(case, living),
        *_tasks_clash(clashes),
    ]


def _leader_missing(living: Sequence[Row], lag: Sequence[Row]) -> Iterator[Finding]:
    oldest_s = max(row[6] for row in living)
    if not lag and oldest_s > SETTLED_S:
        yield Finding(
            FindingCode.LEADER_MISSING, f"{len(living)} workers are alive, and nobody holds the keeper's lease"
        )
    for (since_s,) in lag:
        if since_s > SETTLED_S and oldest_s > SETTLED_S:
            yield Finding(FindingCode.LEADER_MISSING, f"the keeper's lease ran out {format_duration(since_s)} ago")


def _versions_differ(living: Sequence[Row]) -> Iterator[Finding]:
    versions = sorted({row[4] for row in living})
    if len(versions) > 1:
        counts = {version: sum(row[4] == version for row in living) for version in versions}
        words = ", ".join(f"{count} of {version}" for version, count in counts.items())
        yield Finding(FindingCode.WORKER_VERSIONS_DIFFER, f"workers are alive: {words}", {"workers": counts})


def _queues_differ(case: CheckContext, living: Sequence[Row]) -> Iterator[Finding]:
    if case.queues is None:
        return
    ours, served = {queue.name for queue in case.queues}, {queue for row in living for queue in row[3]}
    if alone := sorted(ours - served):
        yield Finding(FindingCode.QUEUE_WITHOUT_WORKER, f"no worker serves {', '.join(alone)}", {"queues": alone})
    served_for_us = {queue for row in living if row[7] in (None, case.app, case.locator) for queue in row[3]}
    if unknown := sorted(served_for_us - ours):
        yield Finding(FindingCode.QUEUE_UNKNOWN, f"workers serve {', '.join(unknown)}", {"queues": unknown})


def _tasks_clash(clashes: Sequence[Row]) -> Iterator[Finding]:
    if clashes:
        named = ", ".join(f"{name} (of apps {', '.join(apps)})" for name, apps in clashes[:NAMED])
        seen = f"{len(clashes)} task names are in more than one app: {named}{', …' if len(clashes) > NAMED else ''}"
        yield Finding(FindingCode.TASK_NAME_CLASH, seen, {"tasks": {name: list(apps) for name, apps in clashes}})


# --------
# Workflows that stand still. In a healthy system some do for an instant, between two steps: only those that still do a little later count.


def check_workflows(case: CheckContext) -> Op[list[Finding]]:
    first = yield from get_stuck_workflows()
    if not first:
        return []
    yield from rows(SQL["sleep"](seconds=case.look_again_s))
    still = [stuck for stuck in (yield from get_stuck_workflows()) if stuck in first]
    if not still:
        return []
    roots = sorted({stuck.root_id for stuck in still})
    named = "; ".join(f"{stuck.root_id}: {stuck.reason}" for stuck in still[:NAMED])
    seen = f"{len(roots)} workflows: {named}{'; …' if len(still) > NAMED else ''}"
    return [Finding(FindingCode.WORKFLOWS_STUCK, seen, {"count": len(roots), "workflow_ids": roots[:LISTED]})]


# --------
# Schedules: whether a scheduler serves them, and whether each belongs to one app.

OVERDUE_S = 60.0  # by then any scheduler that runs has dealt with the slot


def check_schedules(_case: CheckContext) -> Op[list[Finding]]:
    overdue, unowned = yield from execute(
        SQL["get_overdue_schedules"](overdue_s=OVERDUE_S), SQL["get_unowned_schedules"]()
    )
    found: list[Finding] = []
    if overdue:
        seen = f"slots of {len(overdue)} schedules are overdue: "
        seen += _listed([f"{name} ({format_duration(late_s)})" for name, late_s in overdue])
        found.append(Finding(FindingCode.SCHEDULES_UNSERVED, seen, {"schedules": [name for name, _ in overdue]}))
    if unowned:
        names = [name for (name,) in unowned]
        seen = f"{len(names)} schedules belong to no app: {_listed(names)}"
        found.append(Finding(FindingCode.SCHEDULES_WITHOUT_APP, seen, {"schedules": names}))
    return found


def check_owners(case: CheckContext) -> Op[list[Finding]]:
    """Find schedules that the app declares and that another app has stored."""
    if not case.schedules:
        return []
    own = [name for name in (case.app, case.locator) if name is not None]
    clashes = yield from rows(SQL["get_name_clashes"](names=list(case.schedules), own=own))
    if not clashes:
        return []
    named = _listed([f"{name} (of app {app})" for name, app in clashes])
    seen = f"{len(clashes)} schedules that app {case.app} declares belong to other apps: {named}"
    return [Finding(FindingCode.SCHEDULE_CLASH, seen, {"schedules": dict(clashes)})]


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:NAMED])}{', …' if len(names) > NAMED else ''}"
