"""Checks of queues whose tasks wait: which queue is paused, not served, blocked or late, and why.

A queue is *blocked* if every slot that could run its tasks is held by a task that has been running for much longer than such tasks did in the last day.
This is known seconds after the last slot is taken. A task of which no run is known is given half a minute, or the time limit that it has.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import NamedTuple

from horsies.db.statement import Op, Row, execute, load, rows
from horsies.doctor.findings import (
    CheckContext,
    Finding,
    FindingCode,
    Severity,
    app_data,
    enumerate_names,
    format_clock,
)
from horsies.model.validation import format_duration
from horsies.tasks.queues import QueueSummary, list_queues

LIMIT = 1_000
MAX_LISTED = 10
MAX_PAIRS = 10  # of queue and task, whose usual durations are read
NEWEST = 2_000
MINUTES = 60  # in which such tasks have ended
OVERDUE = 3  # a task that has run for so many times its usual duration is taken for one that does not end
FLOW_MINUTES = 5
MOST = 0.5  # of the time of the slots

SQL = load(__file__)


class SlotHolder(NamedTuple):
    """A task that has been running for some time, and its worker."""

    id: str
    name: str
    queue: str
    worker: str | None
    since: datetime
    seconds: float
    has_timeout: bool
    hostname: str | None
    pid: int | None

    @property
    def place(self) -> str:
        return f"on worker {self.worker}" if self.hostname is None else f"on {self.hostname} pid {self.pid}"

    def __str__(self) -> str:
        return f"{self.name} ({self.id}), which runs for {format_duration(self.seconds)} {self.place} since {format_clock(self.since)}"


@dataclass(frozen=True, slots=True)
class LateTask:
    """A task that has been running for much longer than such tasks do."""

    task: SlotHolder
    usual_s: float | None
    """How long all but a few of them have run at most; None if that is not known."""

    def __str__(self) -> str:
        usual = (
            "how long it usually takes is not known"
            if self.usual_s is None
            else f"it usually takes less than {self.usual_s * 1000:.0f} ms"
            if self.usual_s < 1
            else f"it usually takes less than {format_duration(self.usual_s)}"
        )
        return f"{self.task} ({usual})"


@dataclass(frozen=True, slots=True)
class Slots:
    """What could run the tasks of one queue: the slots of the workers that serve it, up to its cap."""

    by_worker: Mapping[str, int]
    cap: int | None

    @property
    def count(self) -> int:
        return sum(self.by_worker.values())

    def __str__(self) -> str:
        return "the only slot of its worker is" if self.count == 1 else f"all {self.count} slots of its workers are"

    def find_holders(self, queue: str, running: Sequence[SlotHolder]) -> list[SlotHolder]:
        """Return the tasks that hold all of it; none if something is free."""
        if self.cap is not None and len(own := [task for task in running if task.queue == queue]) >= self.cap:
            return own
        # There may be thousands of queues, and most have more slots than tasks run.
        if not self.by_worker or self.count > len(running):
            return []
        held = Counter(task.worker for task in running)
        if any(held[worker] < count for worker, count in self.by_worker.items()):
            return []
        return [task for task in running if task.worker in self.by_worker]


def check_waiting(context: CheckContext) -> Op[list[Finding]]:
    """Find queues whose tasks wait, and why; and tasks that run for long without a time limit."""
    queues = yield from list_queues(LIMIT, not_due=False)
    capacity, running_rows, in_flight = yield from execute(
        SQL["get_capacity"](stale_s=context.stale_after_s),
        SQL["get_running"](after_s=min(context.overdue_after_s, context.max_run_s)),
        SQL["get_in_flight"](),
    )
    running = [SlotHolder(*row) for row in running_rows]
    slots = _slots_of_queues(context, queues, capacity)
    # What is claimed in advance waits too; not for a worker, but for a child.
    waits_s = {queue.name: queue.oldest_waiting_s or 0.0 for queue in queues}
    for name, _, _, claimed, oldest_s in in_flight:
        waits_s[name] = max(oldest_s or 0.0, waits_s.get(name, 0.0)) if claimed else waits_s.get(name, 0.0)
    active = [queue for queue in queues if queue.paused_at is None]
    waiting = [queue.name for queue in active if waits_s[queue.name] > context.blocked_after_s]
    blocked = yield from _find_blocked(context, waiting, slots, running)
    groups: dict[tuple[str, ...], list[str]] = {}  # queues of the same workers are blocked by the same tasks
    for name, holders in blocked.items():
        groups.setdefault(tuple(each.task.id for each in holders), []).append(name)
    findings = [_blocked_finding(names, slots, waits_s, blocked[names[0]]) for names in groups.values()]
    findings += [
        finding
        for queue in queues
        for finding in _paused_or_unserved(context, queue, slots[queue.name], has_workers=bool(capacity))
    ]
    late = [
        queue
        for queue in active
        if queue.name not in blocked
        and slots[queue.name].by_worker
        and (queue.oldest_waiting_s or 0.0) > min(context.max_lag_s, context.max_wait_s)
    ]
    findings += yield from _find_late(context, late[:MAX_LISTED], slots, running, in_flight)
    # A task whose worker is gone is another fault.
    return [*findings, *_long_findings(context, [task for task in running if task.pid is not None])]


def _slots_of_queues(
    context: CheckContext, queues: Sequence[QueueSummary], capacity: Sequence[Row]
) -> dict[str, Slots]:
    declared = {each.name: each.max_concurrency for each in context.queues or ()}
    by_queue = defaultdict[str, dict[str, int]](dict)
    for worker, served, count in capacity:
        for name in served:
            by_queue[name][worker] = count
    return {queue.name: Slots(by_queue.get(queue.name, {}), queue.cap or declared.get(queue.name)) for queue in queues}


def _find_blocked(
    context: CheckContext, names: Sequence[str], slots: Mapping[str, Slots], running: Sequence[SlotHolder]
) -> Op[dict[str, list[LateTask]]]:
    """Return the queues whose slots are all held by late tasks, with these."""
    running = [task for task in running if task.seconds > context.overdue_after_s]
    candidates = {name: holders for name in names if (holders := slots[name].find_holders(name, running))}
    if not candidates:
        return {}
    kinds = Counter((task.queue, task.name) for holders in candidates.values() for task in holders)
    pairs = [pair for pair, _ in kinds.most_common(MAX_PAIRS)]
    query = SQL["get_usual_durations"](
        queues=[queue for queue, _ in pairs], tasks=[name for _, name in pairs], limit=NEWEST, minutes=MINUTES
    )
    usual_s = {(queue, name): _usual_s(buckets, counts) for queue, name, buckets, counts in (yield from rows(query))}
    late = {
        task.id: LateTask(task, usual_s.get((task.queue, task.name)))
        for holders in candidates.values()
        for task in holders
        if _is_late(context, task, usual_s.get((task.queue, task.name)))
    }
    blocked: dict[str, list[LateTask]] = {}
    for name, holders in candidates.items():
        if still := slots[name].find_holders(name, [task for task in holders if task.id in late]):
            blocked[name] = [late[task.id] for task in still]
    return blocked


def _usual_s(buckets: Sequence[int], counts: Sequence[int]) -> float:
    """Return the end of the bucket of a histogram below which 19 of 20 are: bucket n, from 1, ends at 2**(n - 1) ms."""
    below, wanted = 0, 0.95 * sum(counts)
    for bucket, count in zip(buckets, counts, strict=True):
        below += count
        if below >= wanted:
            return 2.0 ** (bucket - 1) / 1000
    return 2.0 ** (buckets[-1] - 1) / 1000


def _is_late(context: CheckContext, task: SlotHolder, usual_s: float | None) -> bool:
    if usual_s is not None:
        return task.seconds > max(context.overdue_after_s, OVERDUE * usual_s)
    return not task.has_timeout and task.seconds > context.blocking_after_s


def _blocked_finding(
    names: Sequence[str], slots: Mapping[str, Slots], waits_s: Mapping[str, float], holders: Sequence[LateTask]
) -> Finding:
    first, name, oldest_s = holders[0], names[0], max(waits_s[name] for name in names)
    task, cap = first.task, slots[name].cap
    is_capped = cap is not None and len(holders) >= cap and all(each.task.queue == name for each in holders)
    what = f"its cap of {cap} is" if is_capped else str(slots[name])
    others = f", also by {enumerate_names([str(each) for each in holders[1:]], '; ')}" if len(holders) > 1 else ""
    queues = (
        f"queue {name!r} is" if len(names) == 1 else f"queues {enumerate_names([repr(each) for each in names])} are"
    )
    seen = f"{queues} blocked by {first}: {what} taken{others}; tasks wait for {format_duration(oldest_s)}"
    data = {
        "queue": name,
        "queues": list(names),
        "task_id": task.id,
        "task_name": task.name,
        "worker_id": task.worker,
        "task_ids": [each.task.id for each in holders[:MAX_LISTED]],
        "count": len(holders),
        "since": task.since.isoformat(),
        "seconds": task.seconds,
        "usual_s": first.usual_s,
        "oldest_s": oldest_s,
    }
    # One that is given back by its time limit, or that may be expected to take so long, is less of a fault.
    is_sure = first.usual_s is not None and not task.has_timeout
    return Finding(FindingCode.QUEUE_BLOCKED, seen, data, Severity.ERROR if is_sure else Severity.OK)


def _paused_or_unserved(
    context: CheckContext, queue: QueueSummary, slots: Slots, *, has_workers: bool
) -> Iterator[Finding]:
    oldest_s = queue.oldest_waiting_s
    if oldest_s is None:
        return
    # Without any worker, that is the finding.
    is_unserved = has_workers and not slots.by_worker and oldest_s > context.stuck_after_s
    if queue.paused_at is None and not is_unserved:
        return
    seen = _describe_waiting(queue)
    data = {"queue": queue.name, "oldest_s": oldest_s, "waiting": queue.waiting, **app_data(context)}
    if queue.paused_at is not None:
        paused = f"queue {queue.name!r} has been paused since {format_clock(queue.paused_at)}: {seen}"
        since = {"since": queue.paused_at.isoformat()}
        yield Finding(FindingCode.QUEUE_PAUSED, paused, {**data, **since})
    if is_unserved:
        yield Finding(FindingCode.QUEUE_UNSERVED, f"no live worker serves queue {queue.name!r}: {seen}", data)


def _describe_waiting(queue: QueueSummary) -> str:
    count = f"{queue.waiting} or more" if queue.more_waiting else f"{queue.waiting}"
    return f"{count} task{' waits' if queue.waiting == 1 else 's wait'}, the oldest for {format_duration(queue.oldest_waiting_s or 0.0)}"


# -- queues that are late


def _find_late(
    context: CheckContext,
    late: Sequence[QueueSummary],
    slots: Mapping[str, Slots],
    running: Sequence[SlotHolder],
    in_flight: Sequence[Row],
) -> Op[list[Finding]]:
    """Find what keeps the tasks of queues waiting for long."""
    if not late:
        return []
    names = [queue.name for queue in late]
    # What takes the time of their workers may be in other queues.
    workers = {worker for name in names for worker in slots[name].by_worker}
    others = {name for name, each in slots.items() if workers & each.by_worker.keys()}
    flow, arrivals = yield from execute(
        SQL["get_flow"](queues=sorted({*names, *others})), SQL["get_arrivals"](queues=names, limit=LIMIT * 10)
    )
    arrived = dict(arrivals)
    findings: list[Finding] = []
    for queue in late:
        oldest_s = queue.oldest_waiting_s or 0.0
        here = [task for task in running if task.worker in slots[queue.name].by_worker]
        cause, words, more = _find_cause(
            queue, slots[queue.name], _Flow(flow, arrived.get(queue.name, 0)), here, in_flight
        )
        if here:
            words += f"; the longest that runs there: {here[0]}"
            more["task_id"] = here[0].id
        code = FindingCode.WAITING_LONG if oldest_s > context.max_wait_s else FindingCode.LAGGING
        data = {"queue": queue.name, "oldest_s": oldest_s, "waiting": queue.waiting, "cause": cause}
        seen = f"queue {queue.name!r} is late by {format_duration(oldest_s)}: {words}; {_describe_waiting(queue)}"
        findings.append(Finding(code, seen, {**data, **more, **app_data(context)}))
    return findings


@dataclass(frozen=True, slots=True)
class _Flow:
    """What was read about the tasks of the last minutes."""

    rows: Sequence[Row]
    """Queue, task, how many ended, and for how many seconds they ran together."""
    arrived: int
    """In the last minute, of one queue."""


def _find_cause(
    queue: QueueSummary, slots: Slots, flow: _Flow, running: Sequence[SlotHolder], in_flight: Sequence[Row]
) -> tuple[str, str, dict[str, object]]:
    """Return the cause that a queue is late, as a word and as words, and the numbers."""
    busy = sum(count for _, worker, count, *_ in in_flight if worker in slots.by_worker)
    claimed = sum(count for _, worker, _, count, _ in in_flight if worker in slots.by_worker)
    ended = sum(count for name, _, count, _ in flow.rows if name == queue.name) / FLOW_MINUTES if flow.rows else None
    data: dict[str, object] = {
        "slots": slots.count,
        "busy": busy,
        "arrived_per_minute": flow.arrived,
        "ended_per_minute": ended,
    }
    rates = "" if ended is None else f"; in a minute {flow.arrived} become due and {ended:.0f} end"
    if slots.cap is not None and queue.claimed + queue.running >= slots.cap:
        return "cap", f"its cap of {slots.cap} is reached{rates}", {**data, "cap": slots.cap}
    if busy + claimed < slots.count:
        return "free_slots", f"only {busy} of the {slots.count} slots of its workers are taken{rates}", data
    task, share = _find_slow_task(flow, running)
    if share >= MOST and task is not None:
        words = f"{slots} taken, and task {task!r} takes {share:.0%} of their time{rates}"
        return "slow_task", words, {**data, "task_name": task, "share": round(share, 2)}
    if ended is not None and ended > flow.arrived:
        return ("catching_up", f"{slots} taken, and fewer tasks come than end{rates}", data)
    return "too_few_slots", f"{slots} taken{rates}", data


def _find_slow_task(flow: _Flow, running: Sequence[SlotHolder]) -> tuple[str | None, float]:
    """Return the task that took most of the time of some slots, if they have others to run too, and its share."""
    spent_s, runs = defaultdict[str, float](float), Counter[str]()
    for _, name, count, seconds in flow.rows:
        spent_s[name] += seconds
        runs[name] += count
    for task in running:
        spent_s[task.name] += min(task.seconds, FLOW_MINUTES * 60.0)
        runs[task.name] += 1
    total_s = sum(spent_s.values())
    if total_s <= 0:
        return None, 0.0
    name, seconds = max(spent_s.items(), key=itemgetter(1))
    # A task that is most of all runs is not slow: there are too many of it.
    return (None, 0.0) if runs[name] / sum(runs.values()) >= MOST else (name, seconds / total_s)


def _long_findings(context: CheckContext, running: Sequence[SlotHolder]) -> Iterator[Finding]:
    long = [task for task in running if task.seconds > context.max_run_s and not task.has_timeout]
    if long:
        seen = f"{len(long)} task{' runs' if len(long) == 1 else 's run'} long without a time limit: {enumerate_names([str(task) for task in long], '; ')}"
        ids = [task.id for task in long[:MAX_LISTED]]
        data = {"task_id": ids[0], "task_name": long[0].name, "count": len(long), "task_ids": ids}
        yield Finding(FindingCode.TASK_RUNS_LONG, seen, {**data, "seconds": long[0].seconds})
