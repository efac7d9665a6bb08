"""Checks of the server and the database: settings, schema, privileges, notifications, clocks, and vacuum.

Vacuum matters because dead rows slow claims down. The checks look for what keeps them from being removed (long transactions, prepared
transactions, replication slots, disabled autovacuum), and for the dead rows and the bloat themselves.
"""

from horsies.db.listen_check import ListenStatus, check_listen
from horsies.db.migrate import SQL as MIGRATE
from horsies.db.migrate import library_version
from horsies.db.partitions import DAYS_AHEAD, get_privileges
from horsies.db.statement import Op, execute, load, one, rows
from horsies.doctor.findings import MIB, CheckContext, Finding, FindingCode
from horsies.model.config import PostgresConfig
from horsies.model.validation import format_duration

MAX_COUNTED_ROWS = 10_000
MIN_FREE_CONNECTIONS = 5
MIN_FREE_SHARE = 0.1
MAX_QUEUE_USAGE = 0.1
ENABLED = ("O", "A")  # pg_trigger.tgenabled: fires in ordinary sessions, or always

_WRITES = {"INSERT", "UPDATE", "DELETE"}
SQL = load(__file__)

# -- server


def check_settings(context: CheckContext) -> Op[list[Finding]]:
    (row,) = yield from rows(SQL["get_settings"]())
    version_number, version, is_standby, is_read_only, unsafe, is_asynchronous = row
    findings: list[Finding] = []
    if version_number < context.oldest_postgres * 10_000:
        findings.append(Finding(FindingCode.POSTGRES_TOO_OLD, f"PostgreSQL is {version}", {"version": version}))
    if is_standby or is_read_only:
        seen = "the server is a standby" if is_standby else "default_transaction_read_only is on"
        findings.append(Finding(FindingCode.SERVER_READ_ONLY, seen))
    if unsafe:
        findings.append(Finding(FindingCode.FSYNC_OFF, f"{' and '.join(unsafe)} off", {"settings": unsafe}))
    if is_asynchronous:
        findings.append(Finding(FindingCode.SYNCHRONOUS_COMMIT_OFF, "synchronous_commit is off"))
    return findings


def check_connections(_context: CheckContext) -> Op[list[Finding]]:
    limits = yield from rows(SQL["get_connections"]())
    return [
        Finding(
            FindingCode.CONNECTIONS_SHORT,
            f"{used} of the {limit} connections of {whose} are in use",
            {"of": whose, "limit": limit, "used": used},
        )
        for whose, limit, used in limits
        if limit >= 0 and limit - used < max(MIN_FREE_CONNECTIONS, MIN_FREE_SHARE * limit)
    ]


# -- schema


def check_version(context: CheckContext) -> Op[list[Finding]]:
    if (yield from one(MIGRATE["is_installed"](schema=context.schema))) != (True,):
        return [Finding(FindingCode.SCHEMA_MISSING, f"schema {context.schema!r} does not contain horsies")]
    version, compatible_since = (yield from one(MIGRATE["get_version"]())) or (0, 0)
    ours = library_version()
    data = {"version": version, "library_version": ours}
    seen = f"schema {context.schema!r} is at version {version}, and this library at {ours}"
    if version < ours:
        return [Finding(FindingCode.SCHEMA_OLDER, seen, data)]
    if compatible_since > ours:
        return [Finding(FindingCode.SCHEMA_NEWER, f"{seen}; {compatible_since} is needed", data)]
    return [Finding(FindingCode.SCHEMA_AHEAD, seen, data)] if version > ours else []


def check_privileges(context: CheckContext) -> Op[list[Finding]]:
    missing = yield from rows(SQL["get_missing_privileges"](schema=context.schema))
    if not missing:
        return []
    seen = "this user has no " + "; ".join(f"{privileges} on {what}" for privileges, what in missing)
    data = {what: privileges.split(", ") for privileges, what in missing}
    reads_all = all(set(each).isdisjoint({"SELECT", "USAGE"}) for each in data.values())
    if reads_all and set(data.get("tasks", ())) >= _WRITES:
        return [
            Finding(FindingCode.ROLE_READ_ONLY, "this user may read everything, and write nothing", {"missing": data})
        ]
    return [Finding(FindingCode.PRIVILEGES_MISSING, seen, {"missing": data})]


def check_partition_privileges(context: CheckContext) -> Op[list[Finding]]:
    privileges = yield from get_privileges(context.schema)
    missing = {
        what: privilege for privilege, what in (yield from rows(SQL["get_missing_privileges"](schema=context.schema)))
    }
    if privileges.are_sufficient or {*missing.get("tasks", "").split(", ")} >= _WRITES:  # a role that only observes
        return []
    seen = f"{privileges.user} is not a member of {privileges.owner}, the owner of the tables, or may not create in the schema"
    return [Finding(FindingCode.PARTITION_PRIVILEGE_MISSING, seen, {"owner": privileges.owner})]


def check_search_path(context: CheckContext) -> Op[list[Finding]]:
    unpinned = yield from rows(SQL["get_unpinned_functions"](schema=context.schema))
    foreign = yield from rows(SQL["get_foreign_dependencies"](schema=context.schema))
    seen = [
        *(f"{function} does not set search_path" for (function,) in unpinned),
        *(f"{ours} uses {other}" for ours, other in foreign),
    ]
    data = {"functions": [function for (function,) in unpinned], "uses": [list(pair) for pair in foreign]}
    return [Finding(FindingCode.SEARCH_PATH_UNPINNED, "; ".join(seen), data)] if seen else []


def check_grants(context: CheckContext) -> Op[list[Finding]]:
    findings: list[Finding] = []
    if roles := [name for (name,) in (yield from rows(SQL["get_schema_creators"](schema=context.schema)))]:
        seen = f"{', '.join(roles)} may create objects in {context.schema!r}"
        findings.append(Finding(FindingCode.SCHEMA_OPEN, seen, {"roles": roles}))
    if schemas := [name for (name,) in (yield from rows(SQL["get_open_schemas"](schema=context.schema)))]:
        seen = f"every role may create objects in {', '.join(schemas)}"
        findings.append(Finding(FindingCode.OPEN_TO_PUBLIC, seen, {"schemas": schemas}))
    return findings


def check_trigger(context: CheckContext) -> Op[list[Finding]]:
    row = yield from one(SQL["get_trigger"](schema=context.schema))
    if row is None:
        return [Finding(FindingCode.NOTIFY_TRIGGER_OFF, "trigger tasks_notify_new on tasks does not exist")]
    if row[0] not in ENABLED:
        return [Finding(FindingCode.NOTIFY_TRIGGER_OFF, "trigger tasks_notify_new on tasks is disabled")]
    if row == ("O", True):
        seen = "session_replication_role is replica, which disables trigger tasks_notify_new"
        return [Finding(FindingCode.NOTIFY_TRIGGER_OFF, seen)]
    return []


def check_partitions(context: CheckContext) -> Op[list[Finding]]:
    query = SQL["get_partitions_ahead"](schema=context.schema, ahead=DAYS_AHEAD, enough=MAX_COUNTED_ROWS)
    ((ahead, in_default),) = yield from rows(query)
    findings: list[Finding] = []
    if ahead < context.min_partitions_ahead:
        seen = f"partitions exist for {ahead} days, including today"
        findings.append(Finding(FindingCode.PARTITIONS_MISSING, seen, {"days": ahead}))
    if in_default:
        count = f"{in_default} or more" if in_default == MAX_COUNTED_ROWS else f"{in_default}"
        seen = f"{count} rows in finished_default"
        findings.append(Finding(FindingCode.DEFAULT_PARTITION_USED, seen, {"rows": in_default}))
    return findings


# -- notifications


def probe_notifications(config: PostgresConfig, context: CheckContext) -> list[Finding]:
    """LISTEN on one connection of its own and NOTIFY from another one."""
    report = check_listen(config, context.check_timeout_s, context.pooler_checks)
    match report.status:
        case ListenStatus.RECEIVED if report.is_direct:
            return []
        case ListenStatus.RECEIVED:
            route = "past it" if report.listens_directly else "through it"
            seen = f"database_url leads through a pooler; notifications arrive {route}"
            return [Finding(FindingCode.POOLER_FOUND, seen)]
        case ListenStatus.SHARED_SESSION:
            seen = "listen_url is not set" if config.listen_url is None else "listen_url leads to the pooler as well"
            return [Finding(FindingCode.LISTEN_POOLED, seen)]
        case ListenStatus.NOT_RECEIVED:
            return [Finding(FindingCode.LISTEN_NOT_RECEIVED, f"nothing arrived within {context.check_timeout_s:g} s")]
        case ListenStatus.OTHER_DATABASE:
            seen = "the two addresses lead to different databases, or servers"
            return [Finding(FindingCode.LISTEN_OTHER_DATABASE, seen)]
        case ListenStatus.UNREACHABLE:
            return [Finding(FindingCode.LISTEN_UNREACHABLE, report.error)]


def check_notification_queue(_context: CheckContext) -> Op[list[Finding]]:
    ((usage, pids),) = yield from rows(SQL["get_queue_usage"]())
    if usage <= MAX_QUEUE_USAGE:
        return []
    sessions = f"; in a transaction, oldest first: pid {', '.join(map(str, pids))}" if pids else ""
    seen = f"{usage:.0%} of the notification queue is in use{sessions}"
    return [Finding(FindingCode.NOTIFY_QUEUE_FILLING, seen, {"usage": usage, "pids": pids})]


# -- clocks


def check_local_clock(context: CheckContext) -> Op[list[Finding]]:
    """Compare this machine's clock with the database's, without counting the round trip as a difference."""
    before = context.clock()
    ((theirs,),) = yield from rows(SQL["get_clock"]())
    after = context.clock()
    skew_s = max(before - theirs, theirs - after, 0.0)
    if skew_s <= context.max_skew_s:
        return []
    direction = "ahead of" if before > theirs else "behind"
    seen = f"this machine is {skew_s:.1f} s {direction} the database"
    return [Finding(FindingCode.CLOCK_SKEW, seen, {"skew_s": round((before + after) / 2 - theirs, 3)})]


def check_other_clocks(context: CheckContext) -> Op[list[Finding]]:
    """Check the clocks of producers and workers.

    A long transaction that sends looks like a skewed clock, because `sent_at` is the start of the transaction. A few such tasks are therefore no finding.
    """
    (((compared, skewed, skew_s),), ((workers, ahead_s),)) = yield from execute(
        SQL["get_id_skew"](max_s=context.max_producer_skew_s), SQL["get_heartbeats_ahead"](max_s=context.max_skew_s)
    )
    findings: list[Finding] = []
    if skewed and skewed * 4 >= compared:
        direction = "ahead" if skew_s > 0 else "behind"
        seen = f"{skewed} of the {compared} newest ids are from a clock that is {abs(skew_s):.0f} s {direction}"
        data = {"tasks": skewed, "skew_s": round(skew_s, 3)}
        findings.append(Finding(FindingCode.PRODUCER_CLOCK_SKEW, seen, data))
    if workers:
        seen = f"heartbeats of {workers} workers are up to {ahead_s:.1f} s in the future"
        findings.append(Finding(FindingCode.HEARTBEAT_AHEAD, seen, {"workers": workers, "ahead_s": round(ahead_s, 3)}))
    return findings


# -- vacuum


def check_transactions(context: CheckContext) -> Op[list[Finding]]:
    transactions, ((are_hidden,),) = yield from execute(
        SQL["get_long_transactions"](max_s=context.max_transaction_s), SQL["are_sessions_hidden"]()
    )
    findings = [
        Finding(
            FindingCode.LONG_TRANSACTION,
            f"pid {pid} ({application}, user {user}) is {state} for {format_duration(seconds)}"
            + (f" and keeps the dead rows of {age} transactions" if age else ""),
            {"pid": pid, "application": application, "user": user, "state": state, "seconds": seconds, "xmin_age": age},
        )
        for pid, application, user, state, seconds, age in transactions
    ]
    if are_hidden:
        findings.append(Finding(FindingCode.SESSIONS_HIDDEN, "this user is not a member of pg_read_all_stats"))
    return findings


def check_prepared_transactions(context: CheckContext) -> Op[list[Finding]]:
    prepared = yield from rows(SQL["get_prepared_transactions"](max_s=context.max_transaction_s))
    return [
        Finding(
            FindingCode.PREPARED_TRANSACTION,
            f"{gid!r} of user {owner} has been prepared for {format_duration(seconds)}",
            {"gid": gid, "owner": owner, "seconds": seconds, "xid_age": age},
        )
        for gid, owner, seconds, age in prepared
    ]


def check_slots(context: CheckContext) -> Op[list[Finding]]:
    slots = yield from rows(
        SQL["get_replication_slots"](max_age=context.max_slot_age, max_bytes=context.max_slot_lag_bytes)
    )
    return [
        Finding(
            FindingCode.REPLICATION_SLOT_BEHIND,
            f"slot {name!r} ({'active' if active else 'inactive'}) is {behind // MIB} MiB of WAL and {age} transactions behind",
            {"slot": name, "active": active, "bytes_behind": behind, "xmin_age": age},
        )
        for name, active, age, behind in slots
    ]


def check_autovacuum(context: CheckContext) -> Op[list[Finding]]:
    ((is_off, tables),) = yield from rows(SQL["get_unvacuumed_tables"](schema=context.schema))
    if is_off:
        return [Finding(FindingCode.AUTOVACUUM_OFF, "autovacuum, or track_counts, is off for the whole server")]
    if tables:
        return [Finding(FindingCode.AUTOVACUUM_OFF, f"autovacuum is off for {', '.join(tables)}", {"tables": tables})]
    return []


def check_dead_rows(context: CheckContext) -> Op[list[Finding]]:
    tables = yield from rows(SQL["get_dead_rows"](schema=context.schema, max_dead=context.max_dead_rows))
    return [
        Finding(
            FindingCode.DEAD_ROWS,
            f"{table} has {dead} dead rows and {live} live ones; "
            + ("it was never vacuumed" if seconds is None else f"it was vacuumed {format_duration(seconds)} ago"),
            {"table": table, "live": live, "dead": dead, "vacuumed_s_ago": seconds},
        )
        for table, live, dead, seconds in tables
    ]


def check_bloat(context: CheckContext) -> Op[list[Finding]]:
    tables = yield from rows(SQL["get_bloat"](schema=context.schema, min_bytes=context.min_bloat_bytes))
    return [
        Finding(
            FindingCode.TABLE_BLOATED,
            f"{table} and its indexes take {taken // MIB} MiB; its {live} rows need about {needed // MIB}",
            {"table": table, "live": live, "bytes": taken, "needed_bytes": needed},
        )
        for table, live, taken, needed in tables
    ]
