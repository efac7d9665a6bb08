"""Tick: enqueue what is due.

**Each slot exactly once**, whatever dies and however many schedulers there are. A schedule's row says which slot comes next. In one
transaction a scheduler locks rows that are due (those that another has locked it skips), decides, and in one statement moves each row on to a later
slot and inserts the tasks of the slots that lie between. Either all of it is committed or nothing. After an unknown outcome nothing needs
to be known: the next tick, anybody's, reads where the rows stand.

A tick needs no app. What a schedule enqueues and by which pattern is in its row (`sync.py` has put it there), so schedulers of two releases that run side
by side do the same.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from horsies.db.errors import DriverError, is_about_row, short_text
from horsies.db.statement import Op, Query, execute, load, rows
from horsies.model.schedule import Overlap
from horsies.schedules.decide import Due, DueDecision, SlotDecision, SlotOutcome, decide
from horsies.tasks.ids import new_task_ids

BATCH: Final = 1_000

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class TickResult:
    """What one tick did. `unreadable` are schedules that this process cannot serve, with the reasons; `failed` those that the database did
    not accept this time.
    """

    is_full: bool
    next_due_s: float | None
    verdicts: Sequence[SlotDecision] = ()
    unreadable: dict[str, str] = field(default_factory=dict[str, str])
    failed: dict[str, str] = field(default_factory=dict[str, str])


def tick(now: datetime | None = None, *, excluded: Sequence[str] = (), limit: int = BATCH) -> Op[TickResult]:
    """One batch. `excluded` are schedules to leave to others. `now` is for tests: only the database's clock decides.

    After a failure that one of the schedules may be to blame for, they are served one by one.
    """
    try:
        return (yield from _tick(now, excluded, limit))
    except DriverError as error:
        if not is_about_row(error):
            raise
        yield from rows(SQL["roll_back_tick"]())
    ((moment,),) = yield from rows(SQL["get_tick_time"](now=now))
    # Nothing stays locked: this is a statement of its own.
    found = yield from rows(SQL["lock_due_schedules"](moment=moment, excluded=list(excluded), limit=limit))
    ticked, failed = list[TickResult](), dict[str, str]()
    for name, *_ in found:
        try:
            ticked.append((yield from _tick(now, [*excluded, *failed], 1, only=name)))
        except DriverError as error:
            if not is_about_row(error):
                raise
            yield from rows(SQL["roll_back_tick"]())
            failed[name] = short_text(error)
    unreadable = {name: reason for each in ticked for name, reason in each.unreadable.items()}
    left_out = [*excluded, *failed, *unreadable]
    ((next_due_s,),) = yield from rows(SQL["get_next_due"](now=now, excluded=left_out))
    verdicts = [verdict for each in ticked for verdict in each.verdicts]
    return TickResult(len(found) == limit, next_due_s, verdicts, unreadable, failed)


def _tick(now: datetime | None, excluded: Sequence[str], limit: int, only: str | None = None) -> Op[TickResult]:
    _, _, ((moment,),) = yield from execute(
        SQL["begin_tick"](), SQL["set_tick_limits"](), SQL["get_tick_time"](now=now)
    )
    found = yield from rows(
        SQL["lock_due_schedules"](moment=moment, excluded=list(excluded), limit=limit)
        if only is None
        else SQL["lock_due_schedule"](moment=moment, name=only)
    )
    due = [Due(*row) for row in found]
    going = yield from _going(due)
    decisions, unreadable = _decide_all(due, moment, going)
    verdicts = [verdict for decision in decisions for verdict in decision.verdicts]
    left_out = [*excluded, *unreadable]
    *_, ((next_due_s,),) = yield from execute(
        *([_settle(decisions, verdicts)] if decisions else []),
        SQL["commit_tick"](),
        SQL["get_next_due"](now=now, excluded=left_out),
    )
    return TickResult(len(due) == limit, next_due_s, verdicts, unreadable)


def _going(due: Sequence[Due]) -> Op[set[str]]:
    """Last runs that have not ended. Asked in a statement of its own, whose snapshot is younger than the locks."""
    ids = [each.last_task_id for each in due if each.last_task_id and each.overlap == Overlap.SKIP]
    found = (yield from rows(SQL["get_unfinished_tasks"](ids=ids))) if ids else []
    return {task_id for (task_id,) in found}


def _decide_all(due: Sequence[Due], moment: datetime, going: set[str]) -> tuple[list[DueDecision], dict[str, str]]:
    decisions, unreadable = list[DueDecision](), dict[str, str]()
    for each in due:
        try:
            decisions.append(decide(each, moment, is_going=each.last_task_id in going))
        except Exception as error:  # noqa: BLE001 - anything may be stored, also by hand
            unreadable[each.name] = str(error) or type(error).__name__
    return decisions, unreadable


def _settle(decisions: Sequence[DueDecision], verdicts: Sequence[SlotDecision]) -> Query:
    tasks = list(_task_ids(verdicts))
    last = {verdict.name: task for verdict, task in zip(verdicts, tasks, strict=True) if task}
    return SQL["record_decisions"](
        names=[decision.due.name for decision in decisions],
        slots=[decision.due.next_slot_at for decision in decisions],
        next_slots=[decision.next_slot_at for decision in decisions],
        last_slots=[decision.last_slot_at for decision in decisions],
        last_tasks=[last.get(decision.due.name) for decision in decisions],
        run_names=[verdict.name for verdict in verdicts],
        outcomes=[verdict.outcome for verdict in verdicts],
        run_slots=[verdict.slot_at for verdict in verdicts],
        run_last_slots=[verdict.last_slot_at for verdict in verdicts],
        tasks=tasks,
        delays_ms=[verdict.delay_ms for verdict in verdicts],
    )


def _task_ids(verdicts: Sequence[SlotDecision]) -> Iterator[str | None]:
    enqueued = [verdict.outcome is SlotOutcome.ENQUEUED for verdict in verdicts]
    ids = iter(new_task_ids(sum(enqueued)))
    for is_enqueued in enqueued:
        yield next(ids) if is_enqueued else None
