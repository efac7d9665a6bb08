"""What an operator may do to a schedule. None or False: there is none of that name."""

from datetime import datetime

from horsies.db.load import load
from horsies.db.op import Op, ask
from horsies.model.calendar import next_slot, zone_named
from horsies.model.errors import ConfigError
from horsies.model.patterns import from_stored
from horsies.model.task import TaskId
from horsies.schedules.sync import SQL as SYNC
from horsies.schedules.tick import SQL as TICK

SQL = load(__file__)


def pause(name: str) -> Op[bool]:
    """Nothing more is enqueued by this schedule, whatever apps declare, until it is resumed."""
    found, _ = yield from ask(SQL["pause_schedule"](name=name), SYNC["notify_schedules"]())
    return bool(found)


def resume(name: str, now: datetime | None = None) -> Op[bool]:
    """It goes on with its first slot from now on: what came while it was paused was not wanted. Nothing changes if it is not paused."""
    _, _, found, ((moment,),) = yield from ask(
        TICK["begin_tick"](), TICK["set_tick_limits"](), SQL["lock_schedule"](name=name), TICK["get_tick_time"](now=now)
    )
    changes = []
    for pattern, timezone, enabled, is_paused in found:
        if is_paused:
            try:
                slot = next_slot(from_stored(pattern), zone_named(timezone), moment) if enabled else None
            except ValueError as error:
                raise ConfigError(f"schedule {name!r}", [str(error)]) from None
            changes = [SQL["resume_schedule"](name=name, next_slot=slot), SYNC["notify_schedules"]()]
    yield from ask(*changes, TICK["commit_tick"]())
    return bool(found)


def run_now(name: str, task_id: TaskId) -> Op[bool]:
    """Enqueue its task once, now, on the terms of the schedule; its slots are as before. The same id never does it twice."""
    _, _, found, *_ = yield from ask(
        TICK["begin_tick"](),
        TICK["set_tick_limits"](),
        SQL["lock_schedule"](name=name),
        SQL["run_schedule"](name=name, id=task_id),
        TICK["commit_tick"](),
    )
    return bool(found)
