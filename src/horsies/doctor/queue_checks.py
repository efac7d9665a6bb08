"""Checks of tasks, workers, workflows and schedules. Those of queues whose tasks wait are in `waiting_checks.py`."""

from collections.abc import Iterator, Sequence, Sized
from datetime import datetime
from itertools import islice

from horsies.db.statement import Op, Query, Row, execute, load, rows, rows_in_index_order
from horsies.doctor.findings import (
    MAX_NAMED,
    CheckContext,
    Finding,
    FindingCode,
    Severity,
    app_data,
    enumerate_names,
    format_clock,
)
from horsies.model.error_codes import OperationalErrorCode
from horsies.model.text import plural
from horsies.model.validation import format_duration
from horsies.model.worker_config import RECYCLING_DOMINATES
from horsies.schedules.control import get_failing_schedules
from horsies.tasks.inspect import first_line
from horsies.tasks.queues import list_queues
from horsies.tasks.unknown import list_unknown_tasks
from horsies.workflows.inspect import get_stuck_workflows

LIMIT = 1_000
MAX_PAUSED = 20
MAX_LISTED = 10  # in its data
ELECTION_S = 10.0  # by then a worker that has just started, or the next candidate, has taken the maintenance lease
STATISTICS_LATE_S = 180.0  # the maintenance leader writes the statistics of a minute within two minutes
WORKER_CRASHED = OperationalErrorCode.WORKER_CRASHED.value
SLOT_OVERDUE_S = 60.0  # by then any running scheduler has handled the slot

SQL = load(__file__)


def _count(things: Sized, one: str, many: str) -> str:
    return f"{len(things)} {one if len(things) == 1 else many}"


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
            longest, _, longest_s = max(tasks, key=lambda row: row[2] or 0.0)
            count = f"{LIMIT} or more" if len(tasks) == LIMIT else len(tasks)
            named = enumerate_names([f"{task_id} ({name})" for task_id, name, _ in tasks])
            seen = f"{plural(count, 'task')}: {named}; for up to {format_duration(longest_s or 0.0)}"
            ids = [row[0] for row in tasks[:MAX_LISTED]]
            data = {"task_id": longest, "count": len(tasks), "task_ids": ids, "seconds": longest_s or 0.0}
            findings.append(Finding(code, seen, data))
    return findings


def check_crashes(context: CheckContext) -> Op[list[Finding]]:
    """Find tasks that kill the children that run them."""
    crashes = yield from rows_in_index_order(SQL["get_crashes"](since_s=context.max_since_crash_s, limit=LIMIT))
    findings: list[Finding] = []
    for name, deaths, live, ended, example, message, at, worker, host in crashes:
        on = host or f"worker {worker}"
        last = f", the last on {on} at {_clock_from_json(at)}: {WORKER_CRASHED}: {first_line(message)}" if at else ""
        period = format_duration(context.max_since_crash_s)
        seen = (
            f"task {name!r} has killed {deaths} child process{'' if deaths == 1 else 'es'}{last}; "
            f"{live} of these tasks {'is' if live == 1 else 'are'} live and {ended} failed in the last {period}, for example {example}"
        )
        data = {
            "task_name": name,
            "task_id": example,
            "error_code": WORKER_CRASHED,
            "deaths": deaths,
            "live": live,
            "failed": ended,
            "message": first_line(message),
            "worker_id": worker,
            "last_at": at,
        }
        severity = Severity.ERROR if deaths > 1 else Severity.WARNING
        findings.append(Finding(FindingCode.CHILDREN_CRASHING, seen, data, severity))
    return findings


def _clock_from_json(text: str) -> str:
    try:
        return format_clock(datetime.fromisoformat(text))
    except ValueError:  # other software has written the row
        return text


def check_unknown(context: CheckContext) -> Op[list[Finding]]:
    """Find tasks that wait for a worker that can run them. In the first minute a deployment may be under way."""
    unknown, ((now,),) = (yield from list_unknown_tasks(LIMIT)), (yield from rows(SQL["get_now"]()))
    findings: list[Finding] = []
    for tasks in unknown:
        count = f"{tasks.count} or more" if tasks.count >= LIMIT else f"{tasks.count}"
        what = "can read the arguments of" if tasks.is_refused else "knows"
        verb = "waits" if tasks.count == 1 else "wait"
        seen = f"no live worker {what} task {tasks.task_name!r}: {count} {verb} since {format_clock(tasks.since)}"
        data = {"task_name": tasks.task_name, "count": tasks.count, "since": tasks.since.isoformat()}
        code = FindingCode.TASKS_CHANGED if tasks.is_refused else FindingCode.TASKS_UNKNOWN
        is_long = (now - tasks.since).total_seconds() > context.max_unknown_s
        findings.append(Finding(code, seen, data, Severity.ERROR if is_long else Severity.INFO))
    return findings


def check_caps(context: CheckContext) -> Op[list[Finding]]:
    """Find caps of the app that are exceeded. Which caps a worker uses is not stored, so only this shows a difference.

    Not caps that were set at run time: all workers read them, and tasks that ran before may be more.
    """
    caps = {queue.name: queue.max_concurrency for queue in context.queues or () if queue.max_concurrency is not None}
    queues = (yield from list_queues(LIMIT, not_due=False)) if caps else []
    return [
        Finding(
            FindingCode.CAP_EXCEEDED,
            f"{in_flight} tasks of queue {queue.name!r} are in flight, and max_concurrency is {caps[queue.name]}",
            {"queue": queue.name, "in_flight": in_flight, "max_concurrency": caps[queue.name]},
        )
        for queue in queues
        if queue.cap is None and (in_flight := queue.claimed + queue.running) > caps.get(queue.name, in_flight)
    ]


# -- workers


def check_workers(context: CheckContext) -> Op[list[Finding]]:
    """Check whether workers are live, one of them is the maintenance leader, and they agree with each other and the app."""
    workers, lags, minutes, clashes, mixed = yield from execute(
        SQL["get_workers"](),
        SQL["get_maintenance_lag"](),
        SQL["get_minutes_lag"](),
        SQL["get_task_clashes"](stale_after_s=context.stale_after_s),
        SQL["get_mixed_queues"](stale_s=context.stale_after_s),
    )
    stale = [row for row in workers if row[5] > context.stale_after_s]
    live = [row for row in workers if row[5] <= context.stale_after_s]
    findings: list[Finding] = []
    if stale:
        named = enumerate_names(
            [f"{host} pid {pid} ({format_duration(age_s)})" for _, host, pid, _, _, age_s, *_ in stale]
        )
        seen = f"{_count(stale, 'worker sends', 'workers send')} no heartbeats: {named}"
        ids = [row[0] for row in stale]
        findings.append(Finding(FindingCode.STALE_WORKERS, seen, {"worker_id": ids[0], "worker_ids": ids}))
    if not live:
        return [*findings, (yield from _find_what_waits(context))]
    findings += [
        *_leader_findings(live, lags, minutes),
        *_version_findings(context, live),
        *_queue_findings(context, live),
    ]
    if costly := [row for row in live if (row[8] or 0.0) >= RECYCLING_DOMINATES]:
        named = enumerate_names([f"{host} pid {pid} ({share:.0%})" for _, host, pid, *_, share in costly])
        seen = f"{_count(costly, 'worker spends', 'workers spend')} much of the time of child processes on starting them: {named}"
        costly.sort(key=lambda row: -row[8])
        ids = [row[0] for row in costly]
        data = {"worker_id": ids[0], "worker_ids": ids, "share": costly[0][8]}
        findings.append(Finding(FindingCode.RECYCLING_DOMINATES, seen, data))
    if clashes:
        named = enumerate_names([f"{name} (of apps {', '.join(apps)})" for name, apps in clashes])
        seen = f"{_count(clashes, 'task name is', 'task names are')} in more than one app: {named}"
        data = {"task_name": clashes[0][0], "tasks": {name: list(apps) for name, apps in clashes}}
        findings.append(Finding(FindingCode.TASK_NAME_CLASH, seen, data))
    if mixed and not clashes:
        named = enumerate_names([f"{queue} (by apps {', '.join(apps)})" for queue, apps in mixed])
        seen = f"workers of different apps serve {plural(len(mixed), 'queue')}: {named}"
        data = {"queue": mixed[0][0], "queues": {queue: list(apps) for queue, apps in mixed}}
        findings.append(Finding(FindingCode.APPS_MIXED, seen, data))
    return findings


def check_dead_workers(context: CheckContext) -> Op[list[Finding]]:
    """Find workers that ended without deregistering."""
    dead = yield from rows(SQL["get_dead_workers"](since_s=context.max_since_crash_s))
    if not dead:
        return []
    named = enumerate_names(
        [
            f"{host} pid {pid} at {format_clock(at)} with {plural(held, 'task')}"
            for _, host, pid, _, at, held, *_ in dead
        ]
    )
    seen = f"{plural(len(dead), 'worker')} died in the last {format_duration(context.max_since_crash_s)}: {named}"
    ids, tasks = [row[0] for row in dead], [task for row in dead for task in row[7]]
    data = {"worker_id": ids[0], "worker_ids": ids, "task_ids": tasks[:MAX_LISTED]}
    return [Finding(FindingCode.DEAD_WORKERS, seen, data)]


def _find_what_waits(context: CheckContext) -> Op[Finding]:
    waiting = [queue for queue in (yield from list_queues(LIMIT, not_due=False)) if queue.oldest_waiting_s is not None]
    queues = {queue.name: queue.oldest_waiting_s for queue in waiting}
    data = {"tasks_wait": bool(queues), "queues": list(queues), **app_data(context)}
    if not queues:
        return Finding(FindingCode.NO_WORKERS, "no worker is live", data)
    first = [
        f"{name!r} (for {format_duration(waits_s or 0.0)})" for name, waits_s in islice(queues.items(), MAX_NAMED + 1)
    ]
    named = enumerate_names(first)
    seen = f"no worker is live, and tasks wait in queue{'' if len(queues) == 1 else 's'} {named}"
    return Finding(FindingCode.NO_WORKERS, seen, data, Severity.ERROR)


def _leader_findings(live: Sequence[Row], lags: Sequence[Row], minutes: Sequence[Row]) -> Iterator[Finding]:
    if max(row[6] for row in live) <= ELECTION_S:
        return  # all of them have just started
    # A leader that leaves gives its lease up, and the next one takes it a second later: not a fault if the statistics were written lately.
    if not lags and not any(lag_s < STATISTICS_LATE_S for (lag_s,) in minutes):
        seen = f"{len(live)} workers are live, and none of them holds the maintenance lease"
        yield Finding(FindingCode.LEADER_MISSING, seen)
    for (expired_s,) in lags:
        if expired_s > ELECTION_S:
            yield Finding(FindingCode.LEADER_MISSING, f"the maintenance lease expired {format_duration(expired_s)} ago")


def _is_deploying(context: CheckContext, live: Sequence[Row]) -> bool:
    """Whether some workers started a short time ago, and some did not: one release may be replacing another."""
    return min(row[6] for row in live) < context.max_deploy_s < max(row[6] for row in live)


def _version_findings(context: CheckContext, live: Sequence[Row]) -> Iterator[Finding]:
    versions = sorted({row[4] for row in live})
    if len(versions) > 1 and not _is_deploying(context, live):
        counts = {version: sum(row[4] == version for row in live) for version in versions}
        words = ", ".join(f"{count} of {version}" for version, count in counts.items())
        yield Finding(FindingCode.WORKER_VERSIONS_DIFFER, f"workers are live: {words}", {"workers": counts})


def _queue_findings(context: CheckContext, live: Sequence[Row]) -> Iterator[Finding]:
    if context.queues is None:
        return
    declared, served = {queue.name for queue in context.queues}, {queue for row in live for queue in row[3]}
    if unserved := sorted(declared - served):
        seen = f"no worker serves {', '.join(unserved)}"
        data = {"queue": unserved[0], "queues": unserved, **app_data(context)}
        yield Finding(FindingCode.QUEUE_WITHOUT_WORKER, seen, data)
    served_for_app = {queue for row in live if row[7] in (None, context.app, context.locator) for queue in row[3]}
    if (unknown := sorted(served_for_app - declared)) and not _is_deploying(context, live):
        data = {"queue": unknown[0], "queues": unknown}
        yield Finding(FindingCode.QUEUE_UNKNOWN, f"workers serve {', '.join(unknown)}", data)


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
    named = enumerate_names([f"{stuck.root_id}: {stuck.reason}" for stuck in still], "; ")
    data = {"workflow_id": roots[0], "count": len(roots), "workflow_ids": roots[:MAX_LISTED]}
    return [Finding(FindingCode.WORKFLOWS_STUCK, f"{plural(len(roots), 'workflow')}: {named}", data)]


def check_paused_workflows(_context: CheckContext) -> Op[list[Finding]]:
    """Find paused workflows, and the failed node if that is the reason: one finding for those that failed alike."""
    paused = yield from rows(SQL["get_paused_workflows"](limit=MAX_PAUSED))
    groups: dict[tuple[str, str, str, str], list[Row]] = {}
    others: list[Row] = []
    for row in paused:
        root, name, node, task, code, message, _ = row
        if node is None:
            others.append(row)
        else:
            reason = ": ".join(words for words in (code, first_line(message)) if words) or f"task {task} failed"
            groups.setdefault((name, node, code, reason), []).append(row)
    findings: list[Finding] = []
    for (name, node, code, reason), alike in groups.items():
        root, since = alike[0][0], alike[0][6]
        more = f", and {len(alike) - 1} more runs likewise" if len(alike) > 1 else ""
        at = f" since {format_clock(since)}" if since else ""
        seen = f"workflow {name!r} is paused because its node {node!r} failed: {reason}; run {root}{at}{more}"
        ids = [row[0] for row in alike]
        data = {"workflow_id": root, "workflow": name, "node": node, "error_code": code, "count": len(ids)}
        findings.append(Finding(FindingCode.WORKFLOW_PAUSED_BY_ERROR, seen, {**data, "workflow_ids": ids[:MAX_LISTED]}))
    if others:
        count = f"{MAX_PAUSED} or more" if len(others) == MAX_PAUSED else f"{len(others)}"
        named = enumerate_names([f"{name} ({root})" for root, name, *_ in others])
        seen = f"{count} workflow{' is' if len(others) == 1 else 's are'} paused: {named}"
        ids = [row[0] for row in others]
        data = {"workflow_id": ids[0], "count": len(ids), "workflow_ids": ids[:MAX_LISTED]}
        findings.append(Finding(FindingCode.WORKFLOW_PAUSED, seen, data))
    return findings


# -- schedules


def check_failing_schedules(_context: CheckContext) -> Op[list[Finding]]:
    """Find schedules whose runs fail."""
    findings: list[Finding] = []
    for each in (yield from get_failing_schedules(MAX_PAUSED)):
        reason = ": ".join(word for word in (each.error_code, each.message) if word)
        times = "once" if each.failures_in_a_row == 1 else f"{each.failures_in_a_row} times in a row"
        since = "" if each.since is None else f" since {format_clock(each.since)}"
        success = "none of its newest runs has succeeded" if each.never_succeeded else "it has succeeded before"
        seen = f"schedule {each.name!r} failed {times}: {reason}; it runs task {each.task_name!r}, which fails{since}, and {success}"
        data = {
            "schedule": each.name,
            "failures_in_a_row": each.failures_in_a_row,
            "error_code": each.error_code,
            "since": each.since and each.since.isoformat(),
        }
        findings.append(Finding(FindingCode.SCHEDULE_FAILING, seen, data))
    return findings


def check_schedules(context: CheckContext) -> Op[list[Finding]]:
    """Check whether a scheduler serves the schedules, and whether each belongs to an app."""
    overdue, unowned = yield from execute(
        SQL["get_overdue_schedules"](overdue_s=SLOT_OVERDUE_S), SQL["get_unowned_schedules"]()
    )
    findings: list[Finding] = []
    if overdue:
        named = enumerate_names([f"{name} ({format_duration(late_s)})" for name, late_s in overdue])
        seen = f"slots of {_count(overdue, 'schedule', 'schedules')} are overdue: {named}"
        names = [name for name, _ in overdue]
        data = {"schedule": names[0], "schedules": names, **app_data(context)}
        findings.append(Finding(FindingCode.SCHEDULES_UNSERVED, seen, data))
    if unowned:
        names = [name for (name,) in unowned]
        seen = f"{_count(names, 'schedule belongs', 'schedules belong')} to no app: {enumerate_names(names)}"
        findings.append(Finding(FindingCode.SCHEDULES_WITHOUT_APP, seen, {"schedule": names[0], "schedules": names}))
    return findings


def check_owners(context: CheckContext) -> Op[list[Finding]]:
    """Find schedules that the app declares and that another app has stored, or that were created at run time."""
    if not context.schedules:
        return []
    own = [name for name in (context.app, context.locator) if name is not None]
    clashes = yield from rows(SQL["get_name_clashes"](names=list(context.schedules), own=own))
    if not clashes:
        return []
    named = enumerate_names(
        [f"{name} ({'created at run time' if app is None else f'of app {app}'})" for name, app in clashes]
    )
    seen = f"app {context.app} declares {_count(clashes, 'schedule that is', 'schedules that are')} not in force, because of others of the same name: {named}"
    return [Finding(FindingCode.SCHEDULE_CLASH, seen, {"schedule": clashes[0][0], "schedules": dict(clashes)})]
