"""Tasks: those that are stuck, and those that wait for too long, for nobody, or behind a pause."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from horsies.db.load import load
from horsies.db.op import Op, Query, ask, rows
from horsies.doctor.case import Case
from horsies.doctor.codes import Code
from horsies.doctor.finding import Finding
from horsies.doctor.words import tasks
from horsies.model.durations import duration

LIMIT = 1_000
NAMED = 10

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class Line:
    """Those who wait in one queue. `waiting` is counted only so far."""

    queue: str
    oldest_s: float
    waiting: int

    def __str__(self) -> str:
        count = f"{self.waiting}{' or more' if self.waiting >= LIMIT else ''}"
        return f"{count} tasks wait in queue {self.queue!r}, the oldest for {duration(self.oldest_s)}"


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
    return [
        finding
        for queue, oldest_s, count in waiting
        for finding in _of_queue(case, Line(queue, oldest_s, count), since.get(queue), is_served=queue in queues)
    ]


def _of_queue(case: Case, line: Line, paused_s: float | None, *, is_served: bool) -> Iterator[Finding]:
    if paused_s is not None:
        yield Finding(Code.QUEUE_PAUSED, f"{line}; it is paused for {duration(paused_s)}", asdict(line))
    if not is_served and line.oldest_s > case.stuck_after_s:
        yield Finding(Code.QUEUE_UNSERVED, f"{line}", asdict(line))
    elif paused_s is None and line.oldest_s > case.max_wait_s:
        yield Finding(Code.WAITING_LONG, f"{line}", asdict(line))


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
