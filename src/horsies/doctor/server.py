"""The server: its version, its settings, and how many connections are left."""

from horsies.db.statement import Op, load, one, rows
from horsies.doctor.findings import CheckContext, Finding, FindingCode

FEWEST_FREE = 5
FREE_SHARE = 0.1

SQL = load(__file__)


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
