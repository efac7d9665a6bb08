"""The schema: its version, what this user may do in it, the trigger that wakes workers, and the days of finished tasks."""

from horsies.db.listen_check import ListenReport, ListenStatus, check_listen
from horsies.db.migrate import SQL as MIGRATE
from horsies.db.migrate import library_version
from horsies.db.partitions import DAYS_AHEAD, get_privileges
from horsies.db.statement import Op, execute, load, one, rows
from horsies.doctor.findings import MIB, CheckContext, Finding, FindingCode
from horsies.model.config import PostgresConfig
from horsies.model.validation import format_duration

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


# --------
# The server: its version, its settings, and how many connections are left.

FEWEST_FREE = 5
FREE_SHARE = 0.1


def check_settings(case: CheckContext) -> Op[list[Finding]]:
    row = yield from one(SQL["get_settings"]())
    version_number, version, is_standby, is_read_only, unsafe, is_asynchronous = row or (0, "", False, False, [], False)
    found: list[Finding] = []
    if version_number < case.oldest_postgres * 10_000:
        found.append(Finding(FindingCode.POSTGRES_TOO_OLD, f"PostgreSQL is {version}", {"version": version}))
    if is_standby or is_read_only:
        seen = "the server is a standby" if is_standby else "default_transaction_read_only is on"
        found.append(Finding(FindingCode.SERVER_READ_ONLY, seen))
    if unsafe:
        found.append(Finding(FindingCode.FSYNC_OFF, f"{' and '.join(unsafe)} off", {"settings": unsafe}))
    if is_asynchronous:
        found.append(Finding(FindingCode.SYNCHRONOUS_COMMIT_OFF, "synchronous_commit is off"))
    return found


def check_connections(_case: CheckContext) -> Op[list[Finding]]:
    limits = yield from rows(SQL["get_connections"]())
    return [
        Finding(
            FindingCode.CONNECTIONS_SHORT,
            f"{used} of the {limit} connections of {whose} are in use",
            {"of": whose, "limit": limit, "used": used},
        )
        for whose, limit, used in limits
        if limit >= 0 and limit - used < max(FEWEST_FREE, FREE_SHARE * limit)
    ]


# --------
# Notifications: whether one that is sent is heard, what stands in the way, and whether PostgreSQL can get rid of them.

MAX_USAGE = 0.1


def probe_listening(config: PostgresConfig, case: CheckContext) -> list[Finding]:
    """On connections of its own: it listens on one and notifies from the other."""
    trip = check_listen(config, case.check_timeout_s, case.pooler_checks)
    found: list[Finding] = []
    if not trip.is_direct and trip.status is ListenStatus.RECEIVED:
        way = "past it" if trip.listens_directly else "through it"
        found.append(
            Finding(FindingCode.POOLER_FOUND, f"database_url leads through a pooler; notifications arrive {way}")
        )
    finding = _finding(config, case, trip)
    return [*found, *([finding] if finding else [])]


def _finding(config: PostgresConfig, case: CheckContext, trip: ListenReport) -> Finding | None:
    match trip.status:
        case ListenStatus.RECEIVED:
            return None
        case ListenStatus.SHARED_SESSION:
            missing = "listen_url is not set" if config.listen_url is None else "listen_url leads to the pooler as well"
            return Finding(FindingCode.LISTEN_POOLED, missing)
        case ListenStatus.NOT_RECEIVED:
            return Finding(FindingCode.LISTEN_SILENT, f"nothing arrived within {case.check_timeout_s:g} s")
        case ListenStatus.OTHER_DATABASE:
            return Finding(FindingCode.LISTEN_ELSEWHERE, "the two addresses lead to different databases, or servers")
        case ListenStatus.UNREACHABLE:
            return Finding(FindingCode.LISTEN_UNREACHABLE, trip.error)


def check_queue(_case: CheckContext) -> Op[list[Finding]]:
    row = yield from one(SQL["get_queue_usage"]())
    usage, pids = row or (0.0, [])
    if usage <= MAX_USAGE:
        return []
    words = f"; in a transaction, oldest first: pid {', '.join(map(str, pids))}" if pids else ""
    seen = f"{usage:.0%} of the queue of notifications is in use{words}"
    return [Finding(FindingCode.NOTIFY_QUEUE_FILLING, seen, {"usage": usage, "pids": pids})]


# --------
# Clocks: of this machine, of those who send, and of the database before it was set.


def check_this_clock(case: CheckContext) -> Op[list[Finding]]:
    """What the round trip takes is not held against the clocks."""
    before = case.clock()
    row = yield from one(SQL["get_clock"]())
    after = case.clock()
    theirs = row[0] if row else 0.0
    skew_s = max(before - theirs, theirs - after, 0.0)
    if skew_s <= case.max_skew_s:
        return []
    ahead = "ahead of" if before > theirs else "behind"
    seen = f"this machine is {skew_s:.1f} s {ahead} the database"
    return [Finding(FindingCode.CLOCK_SKEW, seen, {"skew_s": round((before + after) / 2 - theirs, 3)})]


def check_other_clocks(case: CheckContext) -> Op[list[Finding]]:
    """A transaction that was long under way when it sent looks like a skew: a few such tasks are none."""
    ((ids,), (beats,)) = yield from execute(
        SQL["get_id_skew"](max_s=case.max_producer_skew_s), SQL["get_heartbeats_ahead"](max_s=case.max_skew_s)
    )
    found: list[Finding] = []
    looked, skewed, by_s = ids
    if skewed and skewed * 4 >= looked:
        ahead = "ahead" if by_s > 0 else "behind"
        seen = f"{skewed} of the {looked} newest ids were made by a clock that is {abs(by_s):.0f} s {ahead}"
        found.append(Finding(FindingCode.PRODUCER_CLOCK_SKEW, seen, {"tasks": skewed, "skew_s": round(by_s, 3)}))
    workers, ahead_s = beats
    if workers:
        seen = f"heartbeats of {workers} workers lie up to {ahead_s:.1f} s in the future"
        found.append(Finding(FindingCode.HEARTBEAT_AHEAD, seen, {"workers": workers, "ahead_s": round(ahead_s, 3)}))
    return found


# --------
# Vacuum: what keeps dead rows from being removed, and how many there are. They are what slows claims.


def check_transactions(case: CheckContext) -> Op[list[Finding]]:
    open_ones, ((are_hidden,),) = yield from execute(
        SQL["get_long_transactions"](max_s=case.max_transaction_s), SQL["are_sessions_hidden"]()
    )
    found = [
        Finding(
            FindingCode.LONG_TRANSACTION,
            f"pid {pid} ({application}, user {user}) is {state} for {format_duration(seconds)}"
            + (f" and keeps the dead rows of {age} transactions" if age else ""),
            {"pid": pid, "application": application, "user": user, "state": state, "seconds": seconds, "xmin_age": age},
        )
        for pid, application, user, state, seconds, age in open_ones
    ]
    if are_hidden:
        found.append(Finding(FindingCode.SESSIONS_HIDDEN, "this user is no member of pg_read_all_stats"))
    return found


def check_prepared_transactions(case: CheckContext) -> Op[list[Finding]]:
    prepared = yield from rows(SQL["get_prepared_transactions"](max_s=case.max_transaction_s))
    return [
        Finding(
            FindingCode.PREPARED_TRANSACTION,
            f"{gid!r} of user {owner} is prepared for {format_duration(seconds)}",
            {"gid": gid, "owner": owner, "seconds": seconds, "xid_age": age},
        )
        for gid, owner, seconds, age in prepared
    ]


def check_slots(case: CheckContext) -> Op[list[Finding]]:
    slots = yield from rows(SQL["get_replication_slots"](max_age=case.max_slot_age, max_bytes=case.max_slot_lag_bytes))
    return [
        Finding(
            FindingCode.REPLICATION_SLOT_BEHIND,
            f"slot {name!r} ({'active' if active else 'inactive'}) is {behind // MIB} MiB of WAL and {age} transactions behind",
            {"slot": name, "active": active, "bytes_behind": behind, "xmin_age": age},
        )
        for name, active, age, behind in slots
    ]


def check_autovacuum(case: CheckContext) -> Op[list[Finding]]:
    row = yield from one(SQL["get_unvacuumed_tables"](schema=case.schema))
    is_off, tables = row or (False, [])
    if is_off:
        return [Finding(FindingCode.AUTOVACUUM_OFF, "autovacuum, or track_counts, is off for the whole server")]
    if tables:
        return [Finding(FindingCode.AUTOVACUUM_OFF, f"autovacuum is off for {', '.join(tables)}", {"tables": tables})]
    return []


def check_dead_rows(case: CheckContext) -> Op[list[Finding]]:
    tables = yield from rows(SQL["get_dead_rows"](schema=case.schema, max_dead=case.max_dead_rows))
    return [
        Finding(
            FindingCode.DEAD_ROWS,
            f"{table} has {dead} dead rows beside {live} live ones; "
            + ("it was never vacuumed" if seconds is None else f"it was vacuumed {format_duration(seconds)} ago"),
            {"table": table, "live": live, "dead": dead, "vacuumed_s_ago": seconds},
        )
        for table, live, dead, seconds in tables
    ]


def check_bloat(case: CheckContext) -> Op[list[Finding]]:
    tables = yield from rows(SQL["get_bloat"](schema=case.schema, min_bytes=case.min_bloat_bytes))
    return [
        Finding(
            FindingCode.TABLE_BLOATED,
            f"{table} and its indexes take {taken // MIB} MiB; its {live} rows need about {needed // MIB}",
            {"table": table, "live": live, "bytes": taken, "needed_bytes": needed},
        )
        for table, live, taken, needed in tables
    ]
