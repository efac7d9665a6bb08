"""Schedules: whether anybody serves them."""

from horsies.db.load import load
from horsies.db.op import Op, rows
from horsies.doctor.case import Case
from horsies.doctor.codes import Code
from horsies.doctor.finding import Finding
from horsies.doctor.words import NAMED
from horsies.model.durations import duration

OVERDUE_S = 60.0  # by then any scheduler that runs has dealt with the slot

SQL = load(__file__)


def check_schedules(_case: Case) -> Op[list[Finding]]:
    overdue = yield from rows(SQL["get_overdue"](overdue_s=OVERDUE_S))
    if not overdue:
        return []
    named = ", ".join(f"{name} ({duration(late_s)})" for name, late_s in overdue[:NAMED])
    seen = f"slots of {len(overdue)} schedules are overdue: {named}{', …' if len(overdue) > NAMED else ''}"
    return [Finding(Code.SCHEDULES_UNSERVED, seen, {"schedules": [name for name, _ in overdue]})]
