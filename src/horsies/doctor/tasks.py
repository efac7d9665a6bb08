"""Tasks: those that are stuck, and those that wait for too long, for nobody, or behind a pause."""

from collections.abc import Iterator

from horsies.db.statement import Op, Query, execute, load, rows
from horsies.doctor.findings import LISTED, CheckContext, Finding, FindingCode, tasks
from horsies.model.validation import format_duration
from horsies.tasks.queues import QueueSummary, list_queues
from horsies.tasks.unknown import MAX_COUNTED, list_unknown_tasks

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
