"""Schedules: whether a scheduler serves them, and whether each belongs to one app."""

from collections.abc import Sequence

from horsies.db.statement import Op, execute, load, rows
from horsies.doctor.findings import NAMED, CheckContext, Finding, FindingCode
from horsies.model.validation import format_duration

OVERDUE_S = 60.0  # by then any scheduler that runs has dealt with the slot

SQL = load(__file__)


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
