"""One tick of a scheduler: enqueue the tasks of the slots that are due.

**Each slot exactly once**, whichever process dies and however many schedulers run. The row of a schedule holds its next slot. In one
transaction a scheduler locks due rows (it skips those that another scheduler has locked), decides, and then, in one statement, moves each
row to a later slot and inserts the tasks of the slots in between. All of this commits, or nothing. If the outcome of the commit is unknown,
nothing has to be repaired: the next tick, of any scheduler, reads the rows as they are.

A tick needs no app. The row of a schedule holds its pattern and everything that its task needs (`sync.py` stores it), so schedulers of two
releases that run at the same time do the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from horsies.db.errors import DriverError, is_about_row, short_text
from horsies.db.statement import Op, Query, execute, load, rows
from horsies.model.schedule import Overlap
from horsies.schedules.decide import DueSchedule, ScheduleDecision, SlotDecision, SlotOutcome, decide
from horsies.tasks.ids import new_task_ids

TICK_BATCH: Final = 1_000

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class TickResult:
    """What one tick did.

    `unreadable`: schedules that this process cannot decide about, with the reasons. `failed`: schedules that the database did not accept.
    """

    is_full: bool
    """The batch was full: more schedules may be due."""
    next_due_s: float | None
    decisions: Sequence[SlotDecision] = ()
    unreadable: dict[str, str] = field(default_factory=dict[str, str])
    failed: dict[str, str] = field(default_factory=dict[str, str])


def tick(now: datetime | None = None, *, excluded: Sequence[str] = (), limit: int = TICK_BATCH) -> Op[TickResult]:
    """Handle one batch of due schedules, without those that are `excluded`. `now` is for tests: otherwise the clock of the database decides.

    If a statement fails because of a row, the schedules are handled one by one.
    """
    try:
        return (yield from _tick_batch(now, excluded, limit))
    except DriverError as error:
        if not is_about_row(error):
            raise
        yield from rows(SQL["roll_back_tick"]())
    ((moment,),) = yield from rows(SQL["get_tick_time"](now=now))
    # Outside a transaction, so that the rows are locked only during this statement: each schedule is locked again by its own tick.
    found = yield from rows(SQL["lock_due_schedules"](moment=moment, excluded=list(excluded), limit=limit))
    results, failed = list[TickResult](), dict[str, str]()
    for name, *_ in found:
        try:
            results.append((yield from _tick_batch(now, [*excluded, *failed], 1, only=name)))
        except DriverError as error:
            if not is_about_row(error):
                raise
            yield from rows(SQL["roll_back_tick"]())
            failed[name] = short_text(error)
    unreadable = {name: reason for result in results for name, reason in result.unreadable.items()}
    ((next_due_s,),) = yield from rows(SQL["get_next_due"](now=now, excluded=[*excluded, *failed, *unreadable]))
    decisions = [decision for result in results for decision in result.decisions]
    return TickResult(len(found) == limit, next_due_s, decisions, unreadable, failed)


def _tick_batch(now: datetime | None, excluded: Sequence[str], limit: int, only: str | None = None) -> Op[TickResult]:
    _, _, ((moment,),) = yield from execute(
        SQL["begin_tick"](), SQL["set_tick_limits"](), SQL["get_tick_time"](now=now)
    )
    found = yield from rows(
        SQL["lock_due_schedules"](moment=moment, excluded=list(excluded), limit=limit)
        if only is None
        else SQL["lock_due_schedule"](moment=moment, name=only)
    )
    due = [DueSchedule(*row) for row in found]
    # The previous tasks that have not ended. A separate statement, because its snapshot must be newer than the row locks.
    ids = [each.last_task_id for each in due if each.last_task_id and each.overlap == Overlap.SKIP]
    unfinished = (yield from rows(SQL["get_unfinished_tasks"](ids=ids))) if ids else []
    running = {task_id for (task_id,) in unfinished}
    decisions, unreadable = list[ScheduleDecision](), dict[str, str]()
    for each in due:
        try:
            decisions.append(decide(each, moment, is_running=each.last_task_id in running))
        except Exception as error:  # noqa: BLE001 - a row may hold anything, also what a user wrote with SQL
            unreadable[each.name] = str(error) or type(error).__name__
    *_, ((next_due_s,),) = yield from execute(
        *([_record_decisions(decisions)] if decisions else []),
        SQL["commit_tick"](),
        SQL["get_next_due"](now=now, excluded=[*excluded, *unreadable]),
    )
    slots = [slot for decision in decisions for slot in decision.slots]
    return TickResult(len(due) == limit, next_due_s, slots, unreadable)


def _record_decisions(decisions: Sequence[ScheduleDecision]) -> Query:
    slots = [slot for decision in decisions for slot in decision.slots]
    enqueued = [slot.outcome is SlotOutcome.ENQUEUED for slot in slots]
    new_ids = iter(new_task_ids(sum(enqueued)))
    tasks = [next(new_ids) if is_enqueued else None for is_enqueued in enqueued]
    last_tasks = {slot.name: task for slot, task in zip(slots, tasks, strict=True) if task}
    return SQL["record_decisions"](
        names=[decision.due.name for decision in decisions],
        slots=[decision.due.next_slot_at for decision in decisions],
        next_slots=[decision.next_slot_at for decision in decisions],
        last_slots=[decision.last_slot_at for decision in decisions],
        last_tasks=[last_tasks.get(decision.due.name) for decision in decisions],
        run_names=[slot.name for slot in slots],
        outcomes=[slot.outcome for slot in slots],
        run_slots=[slot.slot_at for slot in slots],
        run_last_slots=[slot.last_slot_at for slot in slots],
        tasks=tasks,
        delays_ms=[slot.delay_ms for slot in slots],
    )
