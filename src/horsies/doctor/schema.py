"""The schema: its version, what this user may do in it, the trigger that wakes workers, and the days of finished tasks."""

from horsies.db.migrate import SQL as MIGRATE
from horsies.db.migrate import library_version
from horsies.db.partitions import DAYS_AHEAD, get_privileges
from horsies.db.statement import Op, load, one, rows
from horsies.doctor.findings import CheckContext, Finding, FindingCode

ENOUGH = 10_000
ENABLED = ("O", "A")  # always, or unless the session replicates

SQL = load(__file__)


def check_version(case: CheckContext) -> Op[list[Finding]]:
    if (yield from one(MIGRATE["is_installed"](schema=case.schema))) != (True,):
        return [Finding(FindingCode.SCHEMA_MISSING, f"there is no horsies in schema {case.schema!r}")]
    version, compatible_since = (yield from one(MIGRATE["get_version"]())) or (0, 0)
    ours = library_version()
    known = {"version": version, "library_version": ours}
    seen = f"schema {case.schema!r} is at version {version}, and this library at {ours}"
    if version < ours:
        return [Finding(FindingCode.SCHEMA_OLDER, seen, known)]
    if compatible_since > ours:
        return [Finding(FindingCode.SCHEMA_NEWER, f"{seen}; {compatible_since} is needed", known)]
    return [Finding(FindingCode.SCHEMA_AHEAD, seen, known)] if version > ours else []


def check_privileges(case: CheckContext) -> Op[list[Finding]]:
    missing = yield from rows(SQL["get_missing_privileges"](schema=case.schema))
    if not missing:
        return []
    words = "; ".join(f"{privileges} on {what}" for privileges, what in missing)
    known = {what: privileges.split(", ") for privileges, what in missing}
    return [Finding(FindingCode.PRIVILEGES_MISSING, f"this user has no {words}", {"missing": known})]


def check_days_privilege(case: CheckContext) -> Op[list[Finding]]:
    rights = yield from get_privileges(case.schema)
    if rights.are_sufficient:
        return []
    seen = f"{rights.user} is no member of {rights.owner}, who owns the tables, or may not create in the schema"
    return [Finding(FindingCode.DAYS_PRIVILEGE_MISSING, seen, {"owner": rights.owner})]


def check_search_path(case: CheckContext) -> Op[list[Finding]]:
    unpinned = yield from rows(SQL["get_unpinned_functions"](schema=case.schema))
    foreign = yield from rows(SQL["get_foreign_dependencies"](schema=case.schema))
    seen = [
        *(f"{function} does not set search_path" for (function,) in unpinned),
        *(f"{ours} uses {other}" for ours, other in foreign),
    ]
    if not seen:
        return []
    known = {"functions": [function for (function,) in unpinned], "uses": [list(pair) for pair in foreign]}
    return [Finding(FindingCode.SEARCH_PATH_UNPINNED, "; ".join(seen), known)]


def check_grants(case: CheckContext) -> Op[list[Finding]]:
    found: list[Finding] = []
    if roles := (yield from rows(SQL["get_schema_creators"](schema=case.schema))):
        names = [name for (name,) in roles]
        found.append(
            Finding(
                FindingCode.SCHEMA_OPEN, f"{', '.join(names)} may create objects in {case.schema!r}", {"roles": names}
            )
        )
    if schemas := (yield from rows(SQL["get_open_schemas"](schema=case.schema))):
        names = [name for (name,) in schemas]
        found.append(
            Finding(
                FindingCode.OPEN_TO_PUBLIC, f"everybody may create objects in {', '.join(names)}", {"schemas": names}
            )
        )
    return found


def check_trigger(case: CheckContext) -> Op[list[Finding]]:
    row = yield from one(SQL["get_trigger"](schema=case.schema))
    if row is None:
        return [Finding(FindingCode.NOTIFY_TRIGGER_OFF, "trigger tasks_notify_new on tasks is gone")]
    if row[0] not in ENABLED:
        return [Finding(FindingCode.NOTIFY_TRIGGER_OFF, "trigger tasks_notify_new on tasks is disabled")]
    if row == ("O", True):
        return [
            Finding(
                FindingCode.NOTIFY_TRIGGER_OFF,
                "session_replication_role is replica, which disables trigger tasks_notify_new",
            )
        ]
    return []


def check_days(case: CheckContext) -> Op[list[Finding]]:
    row = yield from one(SQL["get_partitions_ahead"](schema=case.schema, ahead=DAYS_AHEAD, enough=ENOUGH))
    ahead, stray = row or (0, 0)
    found: list[Finding] = []
    if ahead < case.min_days_ahead:
        found.append(Finding(FindingCode.DAYS_MISSING, f"{ahead} days are prepared, today included", {"days": ahead}))
    if stray:
        words = f"{stray} or more" if stray == ENOUGH else f"{stray}"
        found.append(Finding(FindingCode.DEFAULT_DAY_USED, f"{words} rows in finished_default", {"rows": stray}))
    return found
