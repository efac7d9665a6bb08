"""Tasks: those that are stuck, and those that wait for too long, for nobody, or behind a pause."""

from collections.abc import Iterator

from horsies.db.load import load
from horsies.db.op import Op, Query, ask, rows
from horsies.doctor.case import Case
from horsies.doctor.finding import Code, Finding
from horsies.doctor.words import tasks
from horsies.model.durations import duration

LIMIT = 1_000
NAMED = 10

SQL = load(__file__)


def check_stuck(case: Case) -> Op[list[Finding]]:
    """What the keeper, or any worker, sees to within seconds, if there is one."""
    grace_ms = case.recovery.grace_ms
    looks: dict[Code, Query] = {
        Code.TASKS_ORPHANED: SQL["get_orphans"](after_s=case.stuck_after_s, limit=LIMIT),
        Code.LEASES_PAST: SQL["get_past_leases"](after_s=case.stuck_after_s, limit=LIMIT),
        Code.TASKS_OVERTIME: SQL["get_overtime"](after_s=case.stuck_after_s, grace_ms=grace_ms, limit=LIMIT),
        Code.PROMOTION_LATE: SQL["get_unpromoted"](after_s=case.stuck_after_s, limit=LIMIT),
        Code.CANCEL_UNHEARD: SQL["get_unheard_cancels"](after_s=case.stuck_after_s, grace_ms=grace_ms, limit=LIMIT),
    }
    answers = yield from ask(*looks.values())
    found: list[Finding] = []
    for code, answer in zip(looks, answers, strict=True):
        if answer:
            longest = max(row[2] or 0.0 for row in answer)
            seen = f"{tasks(answer, LIMIT)}; for up to {duration(longest)}"
            known = {"count": len(answer), "task_ids": [row[0] for row in answer[:NAMED]], "seconds": longest}
            found.append(Finding(code, seen, known))
    return found


def check_waiting(case: Case) -> Op[list[Finding]]:
    waiting, served, paused = yield from ask(
        SQL["get_waiting"](enough=LIMIT), SQL["get_served"](stale_s=case.stale_after_s), SQL["get_paused"]()
    )
    since = dict(paused)
    queues = {queue for (queue,) in served}
    found: list[Finding] = []
    for queue, oldest_s, count in waiting:
        many = f"{count}{' or more' if count >= LIMIT else ''} tasks wait in queue {queue!r}, the oldest for {duration(oldest_s)}"
        known = {"queue": queue, "waiting": count, "oldest_s": oldest_s}
        found += _of_queue(case, many, known, paused_s=since.get(queue), is_served=queue in queues)
    return found


def _of_queue(
    case: Case, many: str, known: dict[str, object], *, paused_s: float | None, is_served: bool
) -> Iterator[Finding]:
    oldest_s = known["oldest_s"]
    assert isinstance(oldest_s, float)  # noqa: S101 - as it was put there
    if paused_s is not None:
        yield Finding(Code.QUEUE_PAUSED, f"{many}; it is paused for {duration(paused_s)}", known)
    if not is_served and oldest_s > case.stuck_after_s:
        yield Finding(Code.QUEUE_UNSERVED, many, known)
    elif paused_s is None and oldest_s > case.max_wait_s:
        yield Finding(Code.WAITING_LONG, many, known)


def check_caps(case: Case) -> Op[list[Finding]]:
    """Which caps a worker minds is not written down anywhere; that one is exceeded can be seen."""
    caps = {queue.name: queue.max_concurrency for queue in case.queues or () if queue.max_concurrency is not None}
    in_flight = (yield from rows(SQL["get_in_flight"](queues=list(caps)))) if caps else []
    return [
        Finding(
            Code.CAP_EXCEEDED,
            f"{count} tasks of queue {queue!r} are in flight, and max_concurrency is {caps[queue]}",
            {"queue": queue, "in_flight": count, "max_concurrency": caps[queue]},
        )
        for queue, count in in_flight
        if count > caps[queue]
    ]
