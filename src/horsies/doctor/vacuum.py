"""Vacuum: what keeps dead rows from being removed, and how many there are. They are what slows claims."""

from horsies.db.statement import Op, execute, load, one, rows
from horsies.doctor.findings import MIB, CheckContext, Finding, FindingCode
from horsies.model.validation import format_duration

SQL = load(__file__)


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
